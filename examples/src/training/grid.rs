//! The grid of ranks, and the groups that communicate in it.

use serde::Serialize;

use crate::Failure;

/// The degrees of parallelism.
///
/// Ranks are numbered as in Megatron: those of a tensor-parallel group are neighbours, then come
/// the replicas of the model, and the stages of the pipeline are farthest from each other. Expert
/// parallelism divides the replicas: neighbouring replicas hold different experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args, Serialize)]
#[command(next_help_heading = "Grid")]
pub(super) struct Grid {
    /// Replicas of the model (data parallelism)
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = degree)]
    pub(super) dp: usize,
    /// Ranks that share each layer (tensor parallelism)
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = degree)]
    pub(super) tp: usize,
    /// Stages of layers (pipeline parallelism)
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = degree)]
    pub(super) pp: usize,
    /// Replicas that share the experts (expert parallelism)
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = degree)]
    pub(super) ep: usize,
}

fn degree(text: &str) -> Result<usize, String> {
    crate::cli::number_in(text, 1..=1_000_000)
}

/// A kind of parallelism, and of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// Gradients of the parameters that all replicas have.
    Data,
    /// Gradients of experts, among the replicas that have the same ones.
    ExpertData,
    /// Activations of the ranks that share a layer.
    Tensor,
    /// Activations and their gradients between stages.
    Pipeline,
    /// Tokens on their way to and from their experts.
    Expert,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Tensor, Self::Expert, Self::Pipeline, Self::Data, Self::ExpertData];

    /// The name in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::ExpertData => "expert data",
            Self::Tensor => "tensor",
            Self::Pipeline => "pipeline",
            Self::Expert => "expert",
        }
    }
}

/// The place of a rank in the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Coordinates {
    tensor: usize,
    /// The replica's number among those that share the experts.
    expert: usize,
    /// The number of that set of replicas.
    expert_data: usize,
    /// The stage of the pipeline.
    pub(super) stage: usize,
}

impl Grid {
    /// Number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.dp.saturating_mul(self.tp).saturating_mul(self.pp)
    }

    /// Checks that the degrees fit each other.
    ///
    /// # Errors
    /// If expert parallelism does not divide the replicas.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let Self { dp, ep, .. } = *self;
        if dp % ep != 0 {
            return Err(Failure::usage(format!(
                "--dp {dp} is no multiple of --ep {ep}: replicas share the experts; change one of them"
            )));
        }
        Ok(())
    }

    /// Checks that a job has as many ranks as the grid.
    ///
    /// # Errors
    /// If it has more or fewer.
    pub(super) fn check_ranks(&self, ranks: usize) -> Result<(), Failure> {
        let Self { dp, tp, pp, .. } = *self;
        if ranks != self.ranks() {
            return Err(Failure::usage(format!(
                "{ranks} ranks for a grid of --dp {dp} x --tp {tp} x --pp {pp} = {}; change one of these, or the \
                 number of ranks",
                self.ranks()
            )));
        }
        Ok(())
    }

    /// Number of ranks of a group of a kind.
    pub(super) fn degree(&self, kind: Kind) -> usize {
        match kind {
            Kind::Data => self.dp,
            Kind::ExpertData => self.dp / self.ep,
            Kind::Tensor => self.tp,
            Kind::Pipeline => self.pp,
            Kind::Expert => self.ep,
        }
    }

    /// The distance of neighbours in a group of a kind.
    pub(super) fn stride(&self, kind: Kind) -> usize {
        match kind {
            Kind::Tensor => 1,
            Kind::Data | Kind::Expert => self.tp,
            Kind::ExpertData => self.tp * self.ep,
            Kind::Pipeline => self.tp * self.dp,
        }
    }

    pub(super) fn coordinates(&self, rank: usize) -> Coordinates {
        let Self { dp, tp, ep, .. } = *self;
        let replica = rank / tp % dp;
        Coordinates { tensor: rank % tp, expert: replica % ep, expert_data: replica / ep, stage: rank / (tp * dp) }
    }

    /// The number of a rank's group among the groups of a kind.
    pub(super) fn group(&self, kind: Kind, rank: usize) -> usize {
        let Self { dp, tp, ep, .. } = *self;
        let Coordinates { tensor, expert, expert_data, stage } = self.coordinates(rank);
        match kind {
            Kind::Data => stage * tp + tensor,
            Kind::ExpertData => (stage * ep + expert) * tp + tensor,
            Kind::Tensor => rank / tp,
            Kind::Pipeline => rank % (tp * dp),
            Kind::Expert => (stage * (dp / ep) + expert_data) * tp + tensor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: Grid = Grid { dp: 6, tp: 2, pp: 3, ep: 3 };

    fn members(kind: Kind, rank: usize) -> Vec<usize> {
        let group = GRID.group(kind, rank);
        (0..GRID.ranks()).filter(|&other| GRID.group(kind, other) == group).collect()
    }

    #[test]
    fn groups_have_the_ranks_of_their_degree_and_stride() {
        for kind in Kind::ALL {
            let mut groups: Vec<usize> = (0..GRID.ranks()).map(|rank| GRID.group(kind, rank)).collect();
            groups.sort_unstable();
            groups.dedup();
            assert_eq!(groups.len(), GRID.ranks() / GRID.degree(kind), "{kind:?}");
            for rank in 0..GRID.ranks() {
                let members = members(kind, rank);
                assert_eq!(members.len(), GRID.degree(kind), "{kind:?}");
                let strides = members.windows(2).map(|pair| pair[1] - pair[0]);
                assert!(strides.into_iter().all(|stride| stride == GRID.stride(kind)), "{kind:?}: {members:?}");
            }
        }
        assert_eq!(members(Kind::Tensor, 13), [12, 13]);
        assert_eq!(members(Kind::Expert, 13), [13, 15, 17]);
        assert_eq!(members(Kind::ExpertData, 13), [13, 19]);
        assert_eq!(members(Kind::Data, 13), [13, 15, 17, 19, 21, 23]);
        assert_eq!(members(Kind::Pipeline, 13), [1, 13, 25]);
        assert_eq!(GRID.coordinates(13).stage, 1);
    }

    #[test]
    fn grids_that_do_not_fit_are_refused() {
        let error = Grid { dp: 3, ep: 2, ..GRID }.check().unwrap_err().to_string();
        assert!(error.contains("--dp 3 is no multiple of --ep 2"), "{error}");
        let error = GRID.check_ranks(4).unwrap_err().to_string();
        assert!(error.contains("4 ranks for a grid of --dp 6 x --tp 2 x --pp 3 = 36"), "{error}");
        GRID.check().and_then(|()| GRID.check_ranks(36)).unwrap();
    }
}
