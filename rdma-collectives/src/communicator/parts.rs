//! Communicators of some of the ranks.

use crate::bootstrap::Group;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::signature;

impl Communicator {
    /// Connects some of the ranks by a communicator of their own: those that give the same color,
    /// in the order of their keys, and of their ranks where keys are equal. Collective: every rank
    /// is in the part of its color.
    ///
    /// This is NCCL's `ncclCommSplit` and MPI's `MPI_Comm_split`; with one color it is
    /// `MPI_Comm_dup`.
    ///
    /// The part begins with the [limit](Self::set_limit) that this communicator has now, and each
    /// can be given another one afterwards.
    ///
    /// # Errors
    /// If a rank has failed, or lacks the memory.
    #[doc(alias = "ncclCommSplit")]
    #[doc(alias = "MPI_Comm_split")]
    #[doc(alias = "MPI_Comm_dup")]
    pub fn split(&mut self, color: usize, key: usize) -> Result<Self, Error> {
        self.maker.check()?;
        self.recorder.record(signature::OF_SPLIT)?;
        let part = self.group.split(color, key);
        let part = self.or_mismatch(part)?;
        self.part(part)
    }

    /// Connects the ranks of a list by a communicator of their own, in the order of the list; the
    /// others get `None`. Collective: every rank gives the same list.
    ///
    /// This is MPI's `MPI_Comm_create`.
    ///
    /// # Errors
    /// If the list names a rank twice, or one that there is not, or if ranks give different lists;
    /// as for [`split`](Self::split).
    #[doc(alias = "MPI_Comm_create")]
    pub fn subset(&mut self, ranks: &[usize]) -> Result<Option<Self>, Error> {
        self.maker.check()?;
        self.recorder.record(signature::OF_SPLIT)?;
        let part = self.group_of(ranks);
        let (part, is_member) = self.or_mismatch(part)?;
        is_member.then(|| self.part(part)).transpose()
    }

    /// Connects the ranks of a part.
    fn part(&self, group: Group) -> Result<Self, Error> {
        let mut part = Self::of_group(self.rails[..self.own_rails].to_vec(), group, self.tuning.clone())?;
        part.limit = self.limit;
        Ok(part)
    }

    /// The part of the group that this rank is in, and whether that is the list.
    fn group_of(&mut self, ranks: &[usize]) -> Result<(Group, bool), Error> {
        let lists = self.group.all_gather("the ranks of a part", &ranks.to_vec())?;
        if let Some(other) = lists.iter().position(|list| *list != lists[0]) {
            return Err(Error::invalid(format!("rank 0 and rank {other} give different ranks for a part")));
        }
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() < ranks.len() || sorted.last().is_some_and(|&last| last >= self.ranks()) {
            let most = self.ranks() - 1;
            return Err(Error::invalid(format!("a part of ranks {ranks:?}: give ranks from 0 to {most}, each once")));
        }
        let place = ranks.iter().position(|&rank| rank == self.rank());
        // The others are a part, too, which is not connected.
        let (color, key) = place.map_or((1, self.rank()), |place| (0, place));
        Ok((self.group.split(color, key)?, place.is_some()))
    }
}
