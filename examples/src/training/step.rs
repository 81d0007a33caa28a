//! The steps of one rank.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::exchange::{Exchange, Hop, Tally, Team};
use super::grid::{Coordinates, Grid, Kind};
use super::model::{Model, routing, transposed, whole};
use super::options::Args;
use crate::Failure;
use crate::device::Chosen;
use rdma_collectives::bootstrap::Group;
use rdma_collectives::{Communicator, Pending, Queue, Tuning};

/// The sums of a rank by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Tallies([Tally; Kind::ALL.len()]);

impl Tallies {
    pub(super) fn of(&self, kind: Kind) -> &Tally {
        &self.0[kind as usize]
    }

    fn add(&mut self, kind: Kind, tally: &Tally) {
        self.0[kind as usize].add(tally);
    }

    /// Adds the sums of another step.
    pub(super) fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, tally)| sum.add(tally));
    }

    /// Elements with wrong values.
    pub(super) fn wrong(&self) -> u64 {
        self.0.iter().map(|tally| tally.wrong).sum()
    }
}

/// Device and parameters, with which the groups of a rank connect.
#[derive(Debug)]
pub(super) struct Connector<'a> {
    pub(super) args: &'a Args,
    pub(super) chosen: &'a Chosen,
    pub(super) tuning: Tuning,
}

impl Connector<'_> {
    /// Connects the groups of a kind, if the model has its traffic; collective.
    fn team(&self, group: &mut Group, kind: Kind) -> Result<Option<Team>, Failure> {
        let Args { grid, model, .. } = self.args;
        let mut part = group.split(grid.group(kind, group.rank()), group.rank())?;
        if model.traffic(grid, kind).sent() == 0.0 {
            return Ok(None);
        }
        let comm = Communicator::new(&self.chosen.adapter, &mut part, self.tuning.clone());
        Ok(Some(Team::new(comm.map_err(|failure| in_group(kind, failure.into()))?, part)))
    }
}

/// The failure of an operation in a group, whose ranks have numbers of their own.
fn in_group(kind: Kind, failure: Failure) -> Failure {
    failure.context(format!("a group of {} parallelism", kind.name()))
}

/// A rank, and all that it needs for a step.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    grid: &'a Grid,
    model: &'a Model,
    layer_time: Duration,
    stage: usize,
    tensor: Option<(Team, Exchange)>,
    experts: Option<Experts>,
    pipeline: Option<(Team, Hop)>,
    gradients: Vec<Gradients>,
    tallies: Tallies,
}

/// The experts' group, with the ways of tokens to the experts and back.
#[derive(Debug)]
struct Experts {
    team: Team,
    dispatch: Exchange,
    combine: Exchange,
}

impl<'a> Worker<'a> {
    /// Connects the groups of this rank, and allocates all tensors; collective.
    pub(super) fn new(connector: &Connector<'a>, group: &mut Group) -> Result<Self, Failure> {
        let Args { grid, model, step, .. } = connector.args;
        let Coordinates { stage, .. } = grid.coordinates(group.rank());
        let with = |kind: Kind| move |failure| in_group(kind, failure);
        let tensor = match connector.team(group, Kind::Tensor)? {
            Some(mut team) => {
                let exchange = team.all_reduce(model.activations()).map_err(with(Kind::Tensor))?;
                Some((team, exchange))
            }
            None => None,
        };
        let experts = match connector.team(group, Kind::Expert)? {
            Some(team) => Some(Experts::new(team, grid, model).map_err(with(Kind::Expert))?),
            None => None,
        };
        let pipeline = match connector.team(group, Kind::Pipeline)? {
            Some(mut team) => {
                let hop = team.hop(model.activations() / grid.tp).map_err(with(Kind::Pipeline))?;
                Some((team, hop))
            }
            None => None,
        };
        let mut gradients = Vec::new();
        for kind in [Kind::Data, Kind::ExpertData] {
            if let Some(team) = connector.team(group, kind)? {
                gradients.push(Gradients::new(kind, team, connector.args).map_err(with(kind))?);
            }
        }
        let layer_time = Duration::from_secs_f64(step.layer_time);
        let tallies = Tallies::default();
        Ok(Self { grid, model, layer_time, stage, tensor, experts, pipeline, gradients, tallies })
    }

    /// Does a step, and returns what it was made of. All forward passes come before all backward
    /// ones, as in `GPipe`.
    pub(super) fn step(&mut self, verify: bool) -> Result<Tallies, Failure> {
        self.tallies = Tallies::default();
        let (batches, layers) = (self.model.micro_batches, self.model.stage_layers(self.grid));
        for batch in 0..batches {
            self.receive_from(self.stage.checked_sub(1), 2 * batch, verify)?;
            for _ in 0..layers {
                self.pass_layer(verify, 1)?;
            }
            self.send_to(self.next_stage(), 2 * batch, verify)?;
        }
        for batch in 0..batches {
            self.receive_from(self.next_stage(), 2 * batch + 1, verify)?;
            for layer in (0..layers).rev() {
                self.pass_layer(verify, 2)?;
                if batch + 1 == batches {
                    self.gradients.iter_mut().for_each(|gradients| gradients.start(layer, verify));
                }
            }
            self.send_to(self.stage.checked_sub(1), 2 * batch + 1, verify)?;
        }
        for gradients in &mut self.gradients {
            let kind = gradients.kind;
            let tally = gradients.finish().map_err(|failure| in_group(kind, failure))?;
            self.tallies.add(kind, &tally);
        }
        Ok(self.tallies)
    }

    fn next_stage(&self) -> Option<usize> {
        Some(self.stage + 1).filter(|&stage| stage < self.grid.pp)
    }

    /// Passes a micro-batch through a layer, which takes `times` the time of a layer: attention,
    /// then experts.
    fn pass_layer(&mut self, verify: bool, times: u32) -> Result<(), Failure> {
        std::thread::sleep(self.layer_time * times);
        self.reduce_activations(verify)?;
        if let Some(Experts { team, dispatch, combine }) = &mut self.experts {
            for exchange in [dispatch, combine] {
                let tally = exchange.wait(team, verify).map_err(|failure| in_group(Kind::Expert, failure))?;
                self.tallies.add(Kind::Expert, &tally);
            }
        }
        self.reduce_activations(verify)
    }

    fn reduce_activations(&mut self, verify: bool) -> Result<(), Failure> {
        if let Some((team, exchange)) = &mut self.tensor {
            let tally = exchange.wait(team, verify).map_err(|failure| in_group(Kind::Tensor, failure))?;
            self.tallies.add(Kind::Tensor, &tally);
        }
        Ok(())
    }

    fn send_to(&mut self, stage: Option<usize>, number: usize, verify: bool) -> Result<(), Failure> {
        self.hop(stage, |hop, team, stage| hop.send(team, stage, verify.then_some(number)))
    }

    fn receive_from(&mut self, stage: Option<usize>, number: usize, verify: bool) -> Result<(), Failure> {
        self.hop(stage, |hop, team, stage| hop.receive(team, stage, verify.then_some(number)))
    }

    /// Passes a message from or to another stage, if there is one.
    fn hop(
        &mut self,
        stage: Option<usize>,
        pass: impl FnOnce(&Hop, &mut Team, usize) -> Result<Tally, Failure>,
    ) -> Result<(), Failure> {
        if let (Some((team, hop)), Some(stage)) = (&mut self.pipeline, stage) {
            let tally = pass(hop, team, stage).map_err(|failure| in_group(Kind::Pipeline, failure))?;
            self.tallies.add(Kind::Pipeline, &tally);
        }
        Ok(())
    }
}

impl Experts {
    fn new(mut team: Team, grid: &Grid, model: &Model) -> Result<Self, Failure> {
        let ranks = team.ranks();
        let routed = routing(model.routed_tokens(), ranks);
        let elements = |counts: Vec<usize>| counts.into_iter().map(|tokens| tokens * model.token(grid)).collect();
        let combine = transposed(&routed, ranks);
        let (dispatch, combine) = (team.all_to_all(elements(routed))?, team.all_to_all(elements(combine))?);
        Ok(Self { team, dispatch, combine })
    }
}

/// The gradients of a kind, which are reduced in the background.
#[derive(Debug)]
struct Gradients {
    kind: Kind,
    queue: Queue,
    /// The buckets of each layer, while they are not in flight.
    layers: Vec<Vec<Exchange>>,
    in_flight: Vec<(usize, Pending<(Exchange, Tally)>)>,
    /// Number of the next bucket that is verified; equal at all ranks of the group.
    verified: usize,
}

impl Gradients {
    /// Allocates the buckets, and starts the queue.
    fn new(kind: Kind, mut team: Team, args: &Args) -> Result<Self, Failure> {
        let (all, most) = (whole(args.model.layer_gradients(&args.grid, kind)), args.bucket());
        let mut layers = Vec::new();
        for _ in 0..args.model.stage_layers(&args.grid) {
            let buckets = (0..all).step_by(most).map(|start| team.all_reduce(most.min(all - start)));
            layers.push(buckets.collect::<Result<_, _>>()?);
        }
        let queue = Queue::new(team.comm)?;
        Ok(Self { kind, queue, layers, in_flight: Vec::new(), verified: 0 })
    }

    /// Starts to reduce the gradients of a layer.
    fn start(&mut self, layer: usize, verify: bool) {
        for bucket in std::mem::take(&mut self.layers[layer]) {
            self.verified += usize::from(verify);
            let number = verify.then_some(self.verified);
            let reduced = self.queue.start(move |comm| {
                let tally = bucket.run(comm, number)?;
                Ok((bucket, tally))
            });
            self.in_flight.push((layer, reduced));
        }
    }

    /// Waits for all gradients.
    fn finish(&mut self) -> Result<Tally, Failure> {
        let started = Instant::now();
        let mut sum = Tally::default();
        for (layer, reduced) in self.in_flight.drain(..) {
            let (bucket, tally) = reduced.wait()?;
            sum.add(&tally);
            self.layers[layer].push(bucket);
        }
        sum.exposed = started.elapsed().as_secs_f64();
        Ok(sum)
    }
}
