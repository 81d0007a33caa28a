//! Parts of a group, as `MPI_Comm_split` makes them.

use std::sync::Arc;

use super::Group;
use crate::Error;

impl Group {
    /// Divides the group: the ranks that give the same color form a group of their own, in which
    /// they are numbered in the order of their keys, and of their present ranks where keys are
    /// equal. Collective.
    ///
    /// A part lives as long as the job: once the job's group has ended, its operations fail.
    ///
    /// # Errors
    /// If a rank has failed, or does not come in time.
    pub fn split(&mut self, color: usize, key: usize) -> Result<Self, Error> {
        let all = self.all_gather("the colors of a split", &(color, key))?;
        let mut ranks: Vec<usize> = (0..self.ranks()).filter(|&rank| all[rank].0 == color).collect();
        ranks.sort_by_key(|&rank| all[rank].1);
        let rank = ranks.iter().position(|&rank| rank == self.rank);
        let rank = rank.ok_or_else(|| Error::new("a rank is in no part of its group"))?;
        let id = self.id.part(self.splits);
        self.splits += 1;
        let members: Vec<usize> = ranks.iter().map(|&rank| self.members[rank]).collect();
        let inbox = self.router.open(&id, &members);
        Ok(Self {
            maker: self.maker,
            rank,
            members,
            splits: 0,
            address: self.address,
            is_private: self.is_private,
            hosts: ranks.iter().map(|&rank| self.hosts[rank].clone()).collect(),
            terms: self.terms.clone(),
            router: Arc::clone(&self.router),
            inbox,
            id,
            watch: self.watch.of_part(),
            limit: None,
            _heartbeat: None,
        })
    }

    /// Whether this is the group of the job, and not a part that a split made.
    pub(super) fn is_whole(&self) -> bool {
        self.id.is_whole()
    }

    /// The ranks of the job that this rank sends to: those of the others at rank 0, that of rank 0
    /// at the others.
    pub(super) fn recipients(&self) -> Vec<usize> {
        if self.rank == 0 { self.members[1..].to_vec() } else { vec![self.members[0]] }
    }
}
