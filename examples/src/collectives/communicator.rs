//! A communicator: the ranks of a job, connected over RDMA, and the collectives that they do
//! together.

use std::time::Duration;

use rdma::ExposedRegion;

use super::blocks::{Blocks, parts};
use super::direct::Direct;
use super::element::{Element, Reduction};
use super::execute::{Execution, Memory};
use super::fabric::{Fabric, expose_together};
use super::ring::Ring;
use super::schedules::Algorithm;
use super::shm::{AllReduce, Host, HostLinks};
use super::step::Schedule;
use super::streams::{StreamLinks, Streams};
use super::tensor::{Operation, Part, Tensor, TensorMemory};
use super::wait::Patience;
use crate::Failure;
use crate::bootstrap::Group;
use crate::connect::Method;
use crate::device::Chosen;

/// Parameters of the collectives.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Largest message of the ring, in bytes.
    pub chunk: usize,
    /// Ticks between the steps of a block: more ticks hide more latency and need more scratch
    /// memory.
    pub lead: usize,
    /// Up to this size (in bytes) every rank sends everything to every other: one step.
    pub one_step: usize,
    /// Up to this size (in bytes) every rank sums one segment for all: two steps. Larger tensors
    /// take the ring.
    pub two_steps: usize,
    /// Prepare for schedules, which needs connections between all ranks.
    pub schedules: bool,
    /// Watch memory for arrivals where the device says that writes land in order.
    pub watch_memory: bool,
    /// Announce arrivals by separate messages on every device, as iWARP needs it.
    pub by_messages: bool,
    /// Set if there are more ranks than cores.
    pub shared_cores: bool,
    /// Longest time that the other ranks may make no progress.
    pub stall: Duration,
    /// How the ranks connect.
    pub method: Method,
}

/// The way in which ranks reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Shared memory if all ranks are on one host and can connect there, else verbs.
    Auto,
    /// Shared memory.
    Shm,
    /// RDMA by the verbs.
    Verbs,
}

/// Beyond this number of ranks, each rank is connected to its two neighbours only.
const MESH: usize = 16;

/// The ranks of a job, connected over RDMA.
#[derive(Debug)]
pub struct Communicator {
    world: usize,
    fabric: Fabric,
    /// The ranks of this host, if all share memory.
    host: Option<Host>,
    tuning: Tuning,
    ring: Option<Ring>,
    direct: Option<Direct>,
    streams: Option<Streams>,
    /// Memory for schedules; grows as needed.
    scratch: ExposedRegion,
    blocks: Blocks,
    /// The tensor that barriers reduce.
    token: Option<Tensor<u64>>,
}

impl Communicator {
    /// Connects the ranks of a group; collective.
    ///
    /// # Errors
    /// If any rank fails; every rank is told.
    pub fn new(chosen: &Chosen, group: &mut Group, tuning: Tuning) -> Result<Self, Failure> {
        let (rank, world) = (group.rank(), group.world());
        let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
        let mesh = world <= MESH || tuning.schedules;
        let is_peer = |peer: usize| peer != rank && (mesh || peer == left || peer == right);
        let peers: Vec<usize> = (0..world).filter(|&peer| is_peer(peer)).collect();
        let patience = Patience::new(group.watch(), tuning.shared_cores, tuning.stall);
        let fabric = Fabric::connect(chosen, group, &peers, &tuning, patience)?;
        let (mut ring, mut direct) = (None, None);
        if world > 1 {
            ring = Some(Ring::new(&fabric, group, tuning.chunk, tuning.lead)?);
            if mesh {
                direct = Some(Direct::new(&fabric, group, tuning.one_step.max(tuning.chunk))?);
            }
        }
        let streams = if tuning.schedules { Some(Streams::new(&fabric, group, tuning.chunk)?) } else { None };
        let scratch = group.agree("the scratch memory", fabric.expose(0))?;
        let blocks = Blocks::new();
        let mut comm = Self { world, fabric, host: None, tuning, ring, direct, streams, scratch, blocks, token: None };
        comm.token = Some(comm.allocate(group, 1)?);
        Ok(comm)
    }

    /// Chooses the way in which ranks reach the tensors that are allocated from now on; collective.
    /// Returns the choice, and if it is not the best one, the reason.
    ///
    /// # Errors
    /// If shared memory is asked for and cannot be had, or if any rank fails.
    pub fn choose_transport(&mut self, group: &mut Group, wanted: Transport) -> Result<(Transport, String), Failure> {
        if wanted == Transport::Verbs || self.world == 1 {
            return Ok((Transport::Verbs, String::new()));
        }
        let patience = Patience::new(group.watch(), self.tuning.shared_cores, self.tuning.stall);
        match Host::connect(group, patience)? {
            Ok(host) => {
                self.host = Some(host);
                self.token = Some(self.allocate(group, 1)?);
                Ok((Transport::Shm, String::new()))
            }
            Err(why) if wanted == Transport::Auto => Ok((Transport::Verbs, why)),
            Err(why) => Err(Failure::new(format!("no shared memory ({why}); --transport verbs does without"))),
        }
    }

    /// Allocates a tensor of `count` elements at every rank; collective.
    ///
    /// # Errors
    /// If any rank lacks the memory; every rank is told.
    pub fn allocate<T: Element>(&mut self, group: &mut Group, count: usize) -> Result<Tensor<T>, Failure> {
        let bytes = count * size_of::<T>();
        let memory = match &mut self.host {
            Some(host) => TensorMemory::Shared(host.allocate(group, bytes)?),
            None => {
                let (region, remotes) = expose_together(&self.fabric, group, "the tensors", bytes)?;
                TensorMemory::Exposed(region, remotes)
            }
        };
        Ok(Tensor::new(memory, count))
    }

    /// How this rank notices arrivals, as text for the report.
    #[must_use]
    pub fn notice(&self) -> &'static str {
        self.fabric.notice()
    }

    /// Reduces the first `count` elements of every rank's `input` into every rank's `output`, which
    /// may be the same tensor.
    ///
    /// Returns when this rank's output is complete and both tensors may be changed again.
    ///
    /// # Errors
    /// If the tensors are too short, or if a rank fails.
    pub fn all_reduce<T: Element>(
        &mut self,
        input: &Tensor<T>,
        output: &Tensor<T>,
        count: usize,
        reduction: Reduction,
    ) -> Result<(), Failure> {
        if count > input.count() || count > output.count() {
            return Err(Failure::new(format!("all-reduce of {count} elements in tensors that have fewer")));
        }
        if count == 0 {
            return Ok(());
        }
        if self.world == 1 {
            return self.copy(input, output, count);
        }
        let bytes = count * size_of::<T>();
        if let (Some(host), Some(input), Some(output)) = (&self.host, input.shared(), output.shared()) {
            return AllReduce { host, input, output, bytes, reduction }.run::<T>();
        }
        let (fabric, blocks) = (&mut self.fabric, &mut self.blocks);
        let operation = Operation { fabric, blocks, input, output, count, reduction };
        match (&mut self.direct, &mut self.ring) {
            (Some(direct), _) if bytes <= self.tuning.one_step => direct.one_step(operation),
            (Some(direct), _) if bytes <= self.tuning.two_steps => direct.two_steps(operation),
            (_, Some(ring)) => ring.run(operation),
            _ => Err(Failure::new("ranks that are not connected cannot work together")),
        }
    }

    /// The algorithm of [`Self::all_reduce`] for a number of bytes.
    #[must_use]
    pub fn all_reduce_algorithm(&self, bytes: usize) -> Algorithm {
        let (one_step, two_steps) = match (&self.host, &self.direct) {
            (Some(_), _) => (AllReduce::ONE_STEP, usize::MAX),
            (None, Some(_)) => (self.tuning.one_step, self.tuning.two_steps),
            (None, None) => return Algorithm::Ring,
        };
        match bytes {
            _ if bytes <= one_step => Algorithm::Direct,
            _ if bytes <= two_steps => Algorithm::TwoStep,
            _ => Algorithm::Ring,
        }
    }

    /// Runs this rank's part of a collective; the other ranks run theirs.
    ///
    /// Returns when this rank's output is complete and both tensors may be changed again.
    ///
    /// # Errors
    /// If a tensor is too short for the schedule, or if a rank fails.
    pub fn run<T: Element>(
        &mut self,
        schedule: &Schedule,
        input: &Part<'_, T>,
        output: &Part<'_, T>,
        reduction: Reduction,
    ) -> Result<(), Failure> {
        let bytes = schedule.scratch * size_of::<T>();
        if let (Some(host), Some(from), Some(to)) = (&mut self.host, input.shared(), output.shared()) {
            let memory = Memory { input: from?, output: to?, scratch: host.scratch(bytes)? };
            let tensors = [input.tensor(), output.tensor()].map(Tensor::shared);
            let mut links = HostLinks::new(host, tensors.into_iter().flatten())?;
            return Execution::new(&mut links, &mut self.blocks, &memory, reduction).run::<T>(schedule);
        }
        if bytes > self.scratch.len() {
            self.scratch = self.fabric.expose(bytes)?;
        }
        let (input, output, scratch) = (input.exposed()?, output.exposed()?, self.scratch.slice(..bytes)?);
        let memory = Memory { input, output, scratch };
        let streams = self.streams.as_mut().ok_or_else(|| Failure::new("this communicator runs no schedules"))?;
        let mut links = StreamLinks { fabric: &mut self.fabric, streams };
        Execution::new(&mut links, &mut self.blocks, &memory, reduction).run::<T>(schedule)
    }

    /// Divides a sum by the number of ranks if `reduction` is the average, which no schedule does.
    ///
    /// # Errors
    /// If the tensor has fewer elements.
    pub fn finish<T: Element>(&self, sum: &Part<'_, T>, reduction: Reduction) -> Result<(), Failure> {
        if reduction != Reduction::Avg {
            return Ok(());
        }
        sum.change(|elements| reduction.finish(elements, self.world))
    }

    /// Returns when every rank has called this function.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn barrier(&mut self) -> Result<(), Failure> {
        let Some(tensor) = self.token.take() else { return Ok(()) };
        let result = self.all_reduce(&tensor, &tensor, 1, Reduction::Sum);
        self.token = Some(tensor);
        result
    }

    fn copy<T: Element>(&mut self, input: &Tensor<T>, output: &Tensor<T>, count: usize) -> Result<(), Failure> {
        if input.is(output) {
            return Ok(());
        }
        let (block, _) = self.blocks.of::<T>();
        for part in parts(0..count, block.len()) {
            let block = &mut block[..part.len()];
            input.read(part.start, block)?;
            output.write(part.start, block)?;
        }
        Ok(())
    }
}
