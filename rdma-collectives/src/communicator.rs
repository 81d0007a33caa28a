//! A communicator: the ranks of a job, connected by shared memory and by RDMA, and the collectives
//! that they do together.

use rdma::ExposedRegion;

use crate::Error;
use crate::adapter::Adapter;
use crate::blocks::{Blocks, parts};
use crate::bootstrap::Group;
use crate::choose::{AlgorithmTable, Point, choose};
use crate::direct::Direct;
use crate::element::{Element, Reduction};
use crate::execute::{Execution, Memory, Traffic};
use crate::fabric::{Fabric, Rail, expose_together};
use crate::gpu::GpuMemory;
use crate::link::Links;
use crate::pair::PairLinks;
use crate::place::{RankGpu, TensorPlace};
use crate::ring::Ring;
use crate::schedule::step::Schedule;
use crate::schedule::{Algorithm, Collective, Job, build};
use crate::shm::{AllReduce, DirectReads, Host, HostLinks, HostSlice, UNCUT, reads_directly};
use crate::streams::{StreamLinks, Streams};
use crate::tensor::{Operation, Part, Tensor, TensorMemory};
use crate::transport::{self, Transports};
use crate::tuning::Tuning;
use crate::wait::Patience;

/// Beyond this number of ranks, each rank is connected to its two neighbours only.
const MESH: usize = 16;

/// The ranks of a job, connected to each other.
#[derive(Debug)]
pub struct Communicator {
    rank: usize,
    world: usize,
    /// Number of ranks that have an input.
    contributors: usize,
    hosts: Vec<usize>,
    transports: Transports,
    /// The names of the devices.
    rails: Vec<String>,
    /// The rail of each connection to another rank.
    channels: Vec<usize>,
    /// The connections to the ranks that share no memory with this one.
    fabrics: Vec<Fabric>,
    /// The ranks that share memory with this one. `None` if no ranks at all share memory, and one
    /// device sends all.
    host: Option<Host>,
    tuning: Tuning,
    ring: Option<Ring>,
    direct: Option<Direct>,
    streams: Option<Streams>,
    /// This rank's GPU, if tensors are on GPUs.
    gpu: Option<GpuMemory>,
    /// Memory for schedules, if no ranks share memory; grows as needed.
    scratch: ExposedRegion,
    blocks: Blocks,
    /// The tensor that barriers reduce.
    token: Option<Tensor<u64>>,
    traffic: Traffic,
}

impl Communicator {
    /// Connects the ranks of a group by one device of each; collective.
    ///
    /// # Errors
    /// As for [`on_rails`](Self::on_rails).
    pub fn new(adapter: &Adapter, group: &mut Group, tuning: Tuning) -> Result<Self, Error> {
        let rail = group.agree("the domains", Rail::new(adapter, tuning.method))?;
        Self::on_rails(&[rail], group, tuning)
    }

    /// Connects the ranks of a group by the devices of each; collective.
    ///
    /// # Errors
    /// If shared memory is asked for and cannot be had, or if any rank fails; every rank is told.
    pub fn on_rails(rails: &[Rail<'_>], group: &mut Group, tuning: Tuning) -> Result<Self, Error> {
        let world = group.world();
        let patience = Patience::new(group.watch(), tuning.shared_cores, tuning.stall);
        let Channels { rails: channels, are_many_devices } = channels(rails, group, &tuning)?;
        let (mut host, transports) = transport::connect(group, tuning.transport, patience.clone())?;
        if host.is_none() && are_many_devices {
            // Memory that several devices send from is a segment.
            host = Some(Host::alone(group, patience.clone())?);
        }
        let is_striped = channels.len() > 1;
        let schedules = tuning.schedules || host.is_some() || is_striped;
        let peers = verbs_peers(group, host.as_ref(), world <= MESH || schedules);
        let mut fabrics = Vec::new();
        for &rail in &channels {
            fabrics.push(Fabric::connect(&rails[rail], group, &peers, &tuning, patience.clone())?);
        }
        let (mut ring, mut direct, mut streams) = (None, None, None);
        if world > 1 && host.is_none() && !is_striped {
            ring = Some(Ring::new(&fabrics[0], group, tuning.chunk, tuning.lead)?);
            if world <= MESH || schedules {
                direct = Some(Direct::new(&fabrics[0], group, tuning.one_step.max(tuning.chunk))?);
            }
        }
        if let Some(host) = host.as_mut().filter(|host| !host.is_whole()) {
            host.register_with(rails.iter().map(|rail| rail.pd.clone()).collect());
        }
        if schedules && !host.as_ref().is_some_and(Host::is_whole) {
            streams = Some(Streams::new(&fabrics, &channels, group, tuning.chunk)?);
        }
        let scratch = group.agree("the scratch memory", fabrics[0].expose(0))?;
        let (rank, hosts, blocks) = (group.rank(), group.hosts(), Blocks::new());
        let mut comm = Self {
            rank,
            world,
            contributors: world,
            hosts,
            transports,
            rails: rails.iter().map(|rail| rail.adapter.name()).collect(),
            channels,
            fabrics,
            host,
            tuning,
            ring,
            direct,
            streams,
            gpu: None,
            scratch,
            blocks,
            token: None,
            traffic: Traffic::default(),
        };
        comm.token = Some(comm.allocate(group, 1)?);
        Ok(comm)
    }

    /// The devices, and the bytes that this rank has sent by each.
    #[must_use]
    pub fn sent_by_rail(&self) -> Vec<(String, u64)> {
        let sent = |rail: usize| {
            let fabrics = self.channels.iter().zip(&self.fabrics).filter(|(used, _)| **used == rail);
            fabrics.map(|(_, fabric)| fabric.bytes_sent()).sum()
        };
        self.rails.iter().enumerate().map(|(at, name)| (name.clone(), sent(at))).collect()
    }

    /// The number of queue pairs by which this rank is connected to each rank that it reaches by
    /// verbs.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.channels.len()
    }

    /// The transports between the ranks.
    #[must_use]
    pub fn transports(&self) -> &Transports {
        &self.transports
    }

    /// Whether [`all_reduce`](Self::all_reduce) has ways of its own, besides schedules.
    #[must_use]
    pub fn is_uniform(&self) -> bool {
        let is_whole = match &self.host {
            Some(host) => host.is_whole(),
            None => self.channels.len() == 1,
        };
        self.gpu.is_none() && is_whole
    }

    /// Puts the tensors that are allocated from now on into the memory of GPUs, of which each rank
    /// of a host takes the next; collective. Earlier tensors cannot be used any more. Returns each
    /// rank's GPU.
    ///
    /// # Errors
    /// If there is no GPU, if the communicator runs no schedules, has another transport than the
    /// verbs or several connections between two ranks, or if any rank fails.
    pub fn use_gpus(&mut self, group: &mut Group, wanted: TensorPlace) -> Result<Vec<RankGpu>, Error> {
        let streams = self.streams.as_mut().filter(|_| self.host.is_none()).ok_or_else(no_streams)?;
        if self.fabrics.len() != 1 {
            return Err(Error::invalid("tensors on GPUs use one device and one queue pair per connection"));
        }
        let gpu = GpuMemory::new(self.fabrics[0].nic(), group.position_on_host(), streams.room(), wanted);
        let gpu = gpu.and_then(|gpu| Ok((gpu.slots()?, gpu)));
        let (slots, gpu) = group.agree("the memory of GPUs", gpu)?;
        streams.move_to(group, slots)?;
        let own = self.gpu.insert(gpu).describe();
        self.token = Some(self.allocate(group, 1)?);
        group.all_gather("the GPUs", &own)
    }

    /// Allocates a tensor of `count` elements at every rank; collective.
    ///
    /// # Errors
    /// If any rank lacks the memory; every rank is told.
    pub fn allocate<T: Element>(&mut self, group: &mut Group, count: usize) -> Result<Tensor<T>, Error> {
        // No rank can allocate the whole address space, so each hears of a count that is too large.
        let bytes = count.saturating_mul(size_of::<T>());
        let memory = match (&self.gpu, &mut self.host) {
            (Some(gpu), _) => TensorMemory::Gpu(group.agree("the tensors", gpu.allocate(bytes))?),
            (None, Some(host)) => TensorMemory::Shared(host.allocate(group, bytes)?),
            (None, None) => {
                let (region, remotes) = expose_together(&self.fabrics[0], group, "the tensors", bytes)?;
                TensorMemory::Exposed(region, remotes)
            }
        };
        Ok(Tensor::new(memory, count))
    }

    /// How this rank notices arrivals, as text for the report.
    #[must_use]
    pub fn notice(&self) -> &'static str {
        self.fabrics[0].notice()
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
    ) -> Result<(), Error> {
        if count > input.count() || count > output.count() {
            return Err(Error::new(format!("all-reduce of {count} elements in tensors that have fewer")));
        }
        if count == 0 {
            return Ok(());
        }
        if self.world == 1 {
            return self.copy(input, output, count);
        }
        if !self.is_uniform() {
            return self.all_reduce_by_schedule(input, output, count, reduction);
        }
        let bytes = count * size_of::<T>();
        if let (Some(host), Some(input), Some(output)) = (&self.host, input.shared(), output.shared()) {
            return AllReduce { host, input, output, bytes, reduction }.run::<T>();
        }
        let (fabric, blocks) = (&mut self.fabrics[0], &mut self.blocks);
        let operation = Operation { fabric, blocks, input, output, count, reduction };
        match (&mut self.direct, &mut self.ring) {
            (Some(direct), _) if bytes <= self.tuning.one_step => direct.one_step(operation),
            (Some(direct), _) if bytes <= self.tuning.two_steps => direct.two_steps(operation),
            (_, Some(ring)) => ring.run(operation),
            _ => Err(Error::new("ranks that are not connected cannot work together")),
        }
    }

    /// The algorithm of [`Self::all_reduce`] for a number of bytes.
    #[must_use]
    pub fn all_reduce_algorithm(&self, bytes: usize) -> Algorithm {
        if !self.is_uniform() {
            return self.choose_all_reduce(bytes);
        }
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

    /// The algorithm of an all-reduce by a schedule.
    fn choose_all_reduce(&self, bytes: usize) -> Algorithm {
        let hosts = self.hosts.iter().enumerate().filter(|(rank, host)| rank == *host).count();
        let (ranks, transport) = (self.world, self.transports.main());
        let point = Point { op: Collective::AllReduce, bytes: bytes as u64, ranks, hosts, transport };
        choose(&point, &AlgorithmTable::default())
    }

    fn all_reduce_by_schedule<T: Element>(
        &mut self,
        input: &Tensor<T>,
        output: &Tensor<T>,
        count: usize,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let mut job = Job::new(self.rank, self.world, count);
        (job.in_place, job.hosts, job.chunk) =
            (input.is(output), self.hosts.clone(), self.tuning.chunk / size_of::<T>());
        let algorithm = self.choose_all_reduce(count * size_of::<T>());
        let schedule = build(Collective::AllReduce, algorithm, &job);
        let schedule = schedule.map_err(|unsupported| Error::new(unsupported.to_string()))?;
        let output = output.part(0..count);
        self.run(&schedule, &input.part(0..count), &output, reduction)?;
        self.finish(&output, reduction)
    }

    /// Runs a collective in which each rank reads what its output is made of, where the other ranks
    /// have it; the other ranks run theirs. Input and output lie in the tensors as
    /// [`Job::layout`] tells in place, and at the start out of place. An average is left a sum.
    ///
    /// Returns false, at all ranks and before anything is done, if not all ranks share memory or a
    /// rank would write what another one reads.
    ///
    /// # Errors
    /// If a tensor is too short, the job is invalid, or a rank fails.
    pub fn read_directly<T: Element>(
        &mut self,
        op: Collective,
        job: &Job,
        input: &Tensor<T>,
        output: &Tensor<T>,
        reduction: Reduction,
    ) -> Result<bool, Error> {
        let (Some(host), Some(input), Some(output)) = (&self.host, input.shared(), output.shared()) else {
            return Ok(false);
        };
        if !host.is_whole() || !reads_directly(op, job.in_place) {
            return Ok(false);
        }
        job.check(op).map_err(|invalid| Error::new(invalid.to_string()))?;
        DirectReads { host, op, job, input, output, reduction }.run::<T>()?;
        Ok(true)
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
    ) -> Result<(), Error> {
        if let (Some(gpu), Some(from), Some(to)) = (&mut self.gpu, input.gpu(), output.gpu()) {
            let streams = self.streams.as_mut().ok_or_else(no_streams)?;
            let links = StreamLinks { fabrics: &mut self.fabrics, streams };
            self.traffic += gpu.run::<T>(links, &mut self.blocks, schedule, [from?, to?], reduction)?;
            return Ok(());
        }
        let scratch = self.scratch(schedule.scratch.saturating_mul(size_of::<T>()))?;
        let memory = Memory { input: input.slice()?, output: output.slice()?, scratch };
        let fabrics = &mut self.fabrics[..];
        let streams = self.streams.as_mut().map(|streams| StreamLinks { fabrics, streams });
        let host = match &mut self.host {
            Some(host) => {
                let tensors = [input.tensor(), output.tensor()].into_iter().filter_map(Tensor::shared);
                let piece = streams.as_ref().map_or(UNCUT, StreamLinks::piece);
                Some(HostLinks::new(host, tensors, piece)?)
            }
            None => None,
        };
        let mut links = PairLinks { host, streams };
        let execution = Execution::new(&mut links, &mut self.blocks, &memory, reduction);
        self.traffic += execution.run::<T>(schedule)?;
        Ok(())
    }

    /// Memory for a schedule.
    fn scratch(&mut self, bytes: usize) -> Result<HostSlice, Error> {
        if let Some(host) = &mut self.host {
            return host.scratch(bytes);
        }
        if bytes > self.scratch.len() {
            self.scratch = self.fabrics[0].expose(bytes)?;
        }
        Ok(self.scratch.slice(..bytes)?.into())
    }

    /// The bytes of this rank's messages in all schedules so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Says that only the first ranks have an input; the others are aggregators.
    pub fn set_contributors(&mut self, ranks: usize) {
        self.contributors = ranks;
    }

    /// Divides a sum by the number of ranks if `reduction` is the average, which no schedule does.
    ///
    /// # Errors
    /// If the tensor has fewer elements.
    pub fn finish<T: Element>(&self, sum: &Part<'_, T>, reduction: Reduction) -> Result<(), Error> {
        if reduction != Reduction::Avg {
            return Ok(());
        }
        sum.change(|elements| reduction.finish(elements, self.contributors))
    }

    /// Returns when every rank has called this function.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn barrier(&mut self) -> Result<(), Error> {
        let Some(tensor) = self.token.take() else { return Ok(()) };
        let result = self.all_reduce(&tensor, &tensor, 1, Reduction::Sum);
        self.token = Some(tensor);
        result
    }

    fn copy<T: Element>(&mut self, input: &Tensor<T>, output: &Tensor<T>, count: usize) -> Result<(), Error> {
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

fn no_streams() -> Error {
    Error::new("tensors on GPUs need a communicator that runs schedules, and the transport verbs")
}

/// The connections between two ranks that use verbs.
struct Channels {
    /// The rail of each at this rank.
    rails: Vec<usize>,
    /// Whether a rank may use several devices; equal at all ranks.
    are_many_devices: bool,
}

/// Agrees on the connections between two ranks; collective.
fn channels(rails: &[Rail<'_>], group: &mut Group, tuning: &Tuning) -> Result<Channels, Error> {
    let own = (rails.len(), tuning.queue_pairs, tuning.cross_rail);
    let all = group.all_gather("the rails", &own)?;
    if let Some(other) = all.iter().position(|&(_, pairs, cross)| (pairs, cross) != (own.1, own.2)) {
        let (rank, (_, pairs, cross)) = (group.rank(), all[other]);
        return Err(Error::invalid(format!(
            "rank {rank} has {} queue pairs per connection and cross-rail {}, and rank {other} {pairs} and {cross}; \
             give all ranks the same",
            own.1, own.2
        )));
    }
    if tuning.queue_pairs == 0 || all.iter().any(|(rails, ..)| *rails == 0) {
        return Err(Error::invalid("every rank needs a device and a queue pair per connection"));
    }
    let counts = || all.iter().map(|(rails, ..)| *rails);
    let (least, most) = (counts().min().unwrap_or(1), counts().max().unwrap_or(1));
    let hosts = group.hosts();
    let host = (0..hosts[group.rank()]).filter(|&rank| hosts[rank] == rank).count();
    let once = tuning.cross_rail.connections(rails.len(), least, most, host);
    Ok(Channels { are_many_devices: most > 1 && once.len() > 1, rails: once.repeat(tuning.queue_pairs) })
}

/// The ranks to which this one is connected by verbs.
fn verbs_peers(group: &Group, host: Option<&Host>, mesh: bool) -> Vec<usize> {
    let (rank, world) = (group.rank(), group.world());
    let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
    let is_near = |peer: usize| host.is_some_and(|host| host.reaches(peer));
    let is_peer = |peer: &usize| *peer != rank && !is_near(*peer) && (mesh || *peer == left || *peer == right);
    (0..world).filter(is_peer).collect()
}

#[cfg(test)]
mod tests;
