//! The model, and the traffic of its training by kind.

use serde::Serialize;

use super::grid::{Grid, Kind};
use crate::Failure;
use crate::cli;
use crate::plan::units;
use crate::table::bus_factor;
use rdma_collectives::Collective;

/// Bytes of a gradient or an activation, which are bf16.
pub(super) const BYTES: u64 = 2;

/// The numbers of a transformer that decide its traffic.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Model")]
pub(super) struct Model {
    /// Parameters of the model with its experts (default: 12 x hidden^2 for each layer, with 8 of
    /// the 12 for each expert)
    #[arg(long, value_name = "N", value_parser = |text: &str| units::positive(text).map(whole))]
    #[arg(hide_short_help = true)]
    parameters: Option<usize>,
    /// Layers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = cli::count)]
    pub(super) layers: usize,
    /// Elements of a token's activation
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = cli::count)]
    hidden: usize,
    /// Experts of each layer; 0: a dense model, which has one
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = |text: &str| cli::number_in(text, 0..=1_000_000_usize))]
    experts: usize,
    /// Experts to which each token goes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = cli::count)]
    #[arg(hide_short_help = true)]
    top_k: usize,
    /// Tokens of a micro-batch
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = cli::count)]
    #[arg(hide_short_help = true)]
    sequence: usize,
    /// Micro-batches of a step
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = cli::count)]
    #[arg(hide_short_help = true)]
    pub(super) micro_batches: usize,
}

/// The traffic of one kind in a step, at the rank that sends most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Traffic {
    pub(super) kind: Kind,
    /// The collective.
    pub(super) operation: Collective,
    /// Ranks of a group.
    pub(super) ranks: usize,
    /// Operations in a step.
    pub(super) operations: u64,
    /// Bytes of an operation, in nccl-tests' meaning.
    pub(super) size: f64,
}

impl Traffic {
    /// Bytes that the rank sends in a step, without in-network reduction.
    pub(super) fn sent(&self) -> f64 {
        if self.ranks < 2 {
            return 0.0;
        }
        self.operations as f64 * self.size * bus_factor(self.operation, self.ranks)
    }
}

impl Model {
    /// Parameters of all experts.
    fn expert_parameters(&self) -> f64 {
        8.0 * self.matrix() * self.experts as f64 * self.layers as f64
    }

    /// Parameters that are in no expert.
    fn dense_parameters(&self) -> f64 {
        let shared = if self.experts == 0 { 12.0 } else { 4.0 };
        let of_layers = shared * self.matrix() * self.layers as f64;
        self.parameters.map_or(of_layers, |all| all as f64 - self.expert_parameters())
    }

    fn matrix(&self) -> f64 {
        self.hidden as f64 * self.hidden as f64
    }

    /// Checks that the model fits a grid.
    ///
    /// # Errors
    /// If a number does not divide; the message says which options to change.
    pub(super) fn check(&self, grid: &Grid) -> Result<(), Failure> {
        let Self { layers, hidden, experts, top_k, .. } = *self;
        let divides = |option: &str, number: usize, by: &str, degree: usize| {
            if number % degree == 0 {
                return Ok(());
            }
            let text = format!("{option} {number} is no multiple of {by} {degree}; change one of them");
            Err(Failure::usage(text))
        };
        grid.check()?;
        divides("--layers", layers, "--pp", grid.pp)?;
        divides("--hidden", hidden, "--tp", grid.tp)?;
        if experts == 0 && grid.ep > 1 {
            let ep = grid.ep;
            return Err(Failure::usage(format!("--ep {ep} of a model without experts; give --ep 1, or --experts")));
        }
        divides("--experts", experts, "--ep", grid.ep)?;
        if experts > 0 && top_k > experts {
            return Err(Failure::usage(format!("--top-k {top_k} of {experts} experts; give fewer, or more --experts")));
        }
        if self.dense_parameters() < 1.0 {
            return Err(Failure::usage(format!(
                "the experts alone have {:e} parameters, by --layers, --hidden and --experts; give more --parameters",
                self.expert_parameters()
            )));
        }
        Ok(())
    }

    /// Layers of a stage.
    pub(super) fn stage_layers(&self, grid: &Grid) -> usize {
        self.layers / grid.pp
    }

    /// Gradients of a kind at a rank, for one layer.
    pub(super) fn layer_gradients(&self, grid: &Grid, kind: Kind) -> f64 {
        let all = match kind {
            Kind::ExpertData => self.expert_parameters() / grid.ep as f64,
            _ => self.dense_parameters(),
        };
        (all / (self.layers * grid.tp) as f64).ceil()
    }

    /// Activations of a micro-batch.
    pub(super) fn activations(&self) -> usize {
        self.sequence * self.hidden
    }

    /// Tokens of a micro-batch on their way to experts: each counts once for each of its experts.
    pub(super) fn routed_tokens(&self) -> usize {
        self.sequence * self.top_k
    }

    /// Elements that a rank sends of a routed token. Ranks that share a layer send a part each.
    pub(super) fn token(&self, grid: &Grid) -> usize {
        self.hidden / grid.tp
    }

    /// The traffic of a kind.
    pub(super) fn traffic(&self, grid: &Grid, kind: Kind) -> Traffic {
        let (layers, batches) = (self.stage_layers(grid) as u64, self.micro_batches as u64);
        let (operation, operations, elements) = match kind {
            Kind::Data | Kind::ExpertData => (Collective::AllReduce, layers, self.layer_gradients(grid, kind)),
            // Two forward and two backward: after the attention and after the experts.
            Kind::Tensor => (Collective::AllReduce, 4 * layers * batches, self.activations() as f64),
            // A stage inside sends activations to the next, and their gradients to the one before.
            Kind::Pipeline => {
                (Collective::SendRecv, batches * 2.min(grid.pp as u64 - 1), (self.activations() / grid.tp) as f64)
            }
            // To the experts and back, forward and backward.
            Kind::Expert => (
                Collective::AllToAll,
                if self.experts == 0 { 0 } else { 4 * layers * batches },
                self.routed_tokens() as f64 * self.token(grid) as f64,
            ),
        };
        Traffic { kind, operation, ranks: grid.degree(kind), operations, size: elements * BYTES as f64 }
    }

    /// The kinds of traffic that there are.
    pub(super) fn traffics(&self, grid: &Grid) -> Vec<Traffic> {
        let all = Kind::ALL.into_iter().map(|kind| self.traffic(grid, kind));
        all.filter(|traffic| traffic.sent() > 0.0).collect()
    }
}

/// A number of things that a formula gives.
#[expect(clippy::cast_possible_truncation, reason = "all numbers beyond the type's are too many")]
pub(super) fn whole(number: f64) -> usize {
    number as usize
}

/// The tokens that each rank sends to each other, as an uneven all-to-all has them: `tokens` in
/// all from each rank, with more for some of the other ranks than for others. A rank keeps its even
/// share, so that it sends as much as the planner says.
pub(super) fn routing(tokens: usize, ranks: usize) -> Vec<usize> {
    let mut counts = vec![tokens / ranks; ranks * ranks];
    for (from, row) in counts.chunks_mut(ranks).enumerate() {
        row[from] += tokens % ranks;
        for pair in 0..(ranks - 1) / 2 {
            let (more, less) = ((from + 2 * pair + 1) % ranks, (from + 2 * pair + 2) % ranks);
            let moved = row[less] / 4;
            row[more] += moved;
            row[less] -= moved;
        }
    }
    counts
}

/// The way back of routed tokens.
pub(super) fn transposed(counts: &[usize], ranks: usize) -> Vec<usize> {
    (0..ranks * ranks).map(|at| counts[at % ranks * ranks + at / ranks]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dense model with the numbers of a 70e9 one.
    const MODEL: Model = Model {
        parameters: Some(70_000_000_000),
        layers: 80,
        hidden: 8192,
        experts: 0,
        top_k: 2,
        sequence: 4096,
        micro_batches: 8,
    };

    #[test]
    fn seventy_billion_gradients_are_140_gb_and_move_280() {
        let grid = Grid { dp: 1024, tp: 1, pp: 1, ep: 1 };
        MODEL.check(&grid).unwrap();
        let [traffic] = MODEL.traffics(&grid)[..] else { panic!("data parallelism alone") };
        assert!((traffic.size * traffic.operations as f64 - 140e9).abs() < 1e3);
        assert!((traffic.sent() - 280e9 * 1023.0 / 1024.0).abs() < 1e3);
    }

    #[test]
    fn every_kind_divides_the_model() {
        let grid = Grid { dp: 16, tp: 8, pp: 4, ep: 4 };
        let model = Model { parameters: None, experts: 8, ..MODEL };
        model.check(&grid).unwrap();
        let sent = |kind| model.traffic(&grid, kind).sent();
        let matrix = 8192.0 * 8192.0;
        let activations = 4096.0 * 8192.0 * 2.0;
        // 20 layers of a stage, 8 micro-batches.
        assert_eq!(sent(Kind::Tensor), 4.0 * 20.0 * 8.0 * activations * 2.0 * 7.0 / 8.0);
        assert_eq!(sent(Kind::Expert), 4.0 * 20.0 * 8.0 * 2.0 * activations / 8.0 * 3.0 / 4.0);
        assert_eq!(sent(Kind::Pipeline), 2.0 * 8.0 * activations / 8.0);
        assert_eq!(sent(Kind::Data), 20.0 * 4.0 * matrix / 8.0 * 2.0 * 2.0 * 15.0 / 16.0);
        assert_eq!(sent(Kind::ExpertData), 20.0 * 8.0 * 8.0 * matrix / 8.0 / 4.0 * 2.0 * 2.0 * 3.0 / 4.0);
        assert_eq!(model.traffics(&grid).len(), 5);
    }

    #[test]
    fn models_that_do_not_fit_are_refused() {
        let refused = |model: Model, grid: Grid, part: &str| {
            let error = model.check(&grid).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let grid = Grid { dp: 6, tp: 1, pp: 1, ep: 1 };
        refused(MODEL, Grid { pp: 3, ..grid }, "--layers 80 is no multiple of --pp 3");
        refused(MODEL, Grid { tp: 3, ..grid }, "--hidden 8192 is no multiple of --tp 3");
        refused(MODEL, Grid { ep: 2, ..grid }, "without experts");
        refused(Model { experts: 4, ..MODEL }, Grid { ep: 3, ..grid }, "--experts 4 is no multiple of --ep 3");
        refused(Model { experts: 1, ..MODEL }, grid, "--top-k 2 of 1 experts");
        refused(Model { experts: 2, ..MODEL }, grid, "give more --parameters");
    }

    #[test]
    fn every_token_is_routed_and_comes_back() {
        for ranks in 1..=5 {
            for tokens in [0, 1, 7, 128] {
                let counts = routing(tokens, ranks);
                assert!(counts.chunks(ranks).all(|row| row.iter().sum::<usize>() == tokens), "{counts:?}");
                let back = transposed(&counts, ranks);
                assert_eq!(transposed(&back, ranks), counts);
                assert!((0..ranks).all(|to| back[to * ranks] == counts[to]));
            }
        }
        assert_eq!(routing(9, 2), [5, 4, 4, 5]);
        assert_eq!(routing(12, 3), [4, 5, 3, 3, 4, 5, 5, 3, 4]);
    }
}
