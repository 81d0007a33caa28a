//! A communicator: the ranks of a job, connected by shared memory and by RDMA, and the collectives
//! that they do together. It is what NCCL and MPI call a communicator.

mod parts;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdma::ExposedRegion;

use crate::adapter::Adapter;
use crate::blocks::Blocks;
use crate::bootstrap::{Aborter, Group, Recorder, Signature};
use crate::cause::Cause;
use crate::choose::AlgorithmTable;
use crate::connect::Method;
use crate::direct::Direct;
use crate::element::{Element, Reduction};
use crate::error::{Error, ErrorKind};
use crate::execute::{Execution, Memory, Traffic};
use crate::fabric::{Fabric, Rail, expose_together};
use crate::gpu::GpuMemory;
use crate::link::Links;
use crate::operation::{Operation, Request};
use crate::pair::PairLinks;
use crate::place::{RankGpu, TensorPlace};
use crate::process::Maker;
use crate::ring::Ring;
use crate::schedule::Collective;
use crate::schedule::step::Schedule;
use crate::shm::{Host, HostLinks, HostSlice, SharedTensor, UNCUT};
use crate::signature;
use crate::stats::Stats;
use crate::streams::{StreamLinks, Streams};
use crate::tcp;
use crate::tensor::{Part, Tensor, TensorMemory, finish};
use crate::text::{self, PeerText};
use crate::transport::{self, Transports};
use crate::tuning::Tuning;
use crate::wait::Patience;
use crate::ways::{self, Ways};

/// The number of the next communicator of the process.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Most connections between two ranks.
const MOST_CHANNELS: usize = 1024;
/// Beyond this number of ranks, each rank is connected to its two neighbours only.
const MESH: usize = 16;

/// The ranks of a job, connected to each other: NCCL's `ncclComm_t`, MPI's `MPI_Comm`.
///
/// Every rank does the same operations in the same order, one at a time. To do them in the
/// background, give the communicator to a [`Queue`](crate::Queue).
///
/// A rank that fails, or whose arguments make no sense, gets an error; the others wait for it until
/// [`Tuning::stall`], unless the rank ends its job with the error
/// ([`Group::conclude`], [`placement::run`](crate::placement::run)). They then get the reason.
///
/// # Operations that differ
///
/// The ranks compare their operations in the background, which costs an operation a few stores.
/// Twice a second each rank tells rank 0 of the communicator which ones it has begun, over the
/// connections of the job's group; less often in a job of thousands of ranks. If two ranks have
/// done different ones, the operations of all ranks end with `InvalidInput`, about a second after
/// they have begun, and so does each later one of this communicator, but for messages. The error
/// names both ranks, both operations and their number, which counts the operations, allocations and
/// splits of the communicator from 1. Other communicators go on.
///
/// The collective, the type and number of elements, the counts, the reduction, the root, the kind
/// of memory and the algorithm are compared. So ranks are found that wait for each other, and also
/// those that do not wait and get elements that mean nothing. The last operations are compared when
/// the communicator is dropped, and at the end of the job: [`Group::conclude`] then returns the
/// error, to the ranks of a part of the job only if they have not ended before. If the operations
/// that differ are only known to lie further back than the last 32, the error says between which
/// numbers they lie.
///
/// A rank that is late or stopped is not accused, since nothing is compared that it has not begun.
/// Of an aggregator, the collective, the type of elements, the reduction, the root and the kind of
/// memory are compared. Schedules that a program has made itself are not compared, unless it gives
/// them an [identity](Schedule::identity). Nor are messages: a message of another length than its
/// receiver has named is an error there, and another type of the same size is not found.
/// [`compare_operations`](Self::compare_operations) finds a difference before anything is done.
#[doc(alias = "ncclComm_t")]
#[doc(alias = "MPI_Comm")]
#[derive(Debug)]
pub struct Communicator {
    pub(crate) maker: Maker,
    /// The number of this communicator in its process, which its tensors and operations have.
    pub(crate) number: u64,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    /// A group of this communicator's own.
    group: Group,
    /// Processes, the last ones, that have neither input nor output.
    aggregators: usize,
    /// Most aggregators just below an aggregator.
    pub(crate) radix: usize,
    pub(crate) hosts: Vec<usize>,
    pub(crate) transports: Transports,
    /// The devices that were chosen, and the software device if it stands in for one of them.
    rails: Vec<Rail>,
    /// The number of those that were chosen.
    own_rails: usize,
    /// The rail of each connection to another rank.
    pub(crate) channels: Vec<usize>,
    /// The connections to the ranks that share no memory with this one.
    pub(crate) fabrics: Vec<Fabric>,
    /// The ranks that share memory with this one. `None` if no ranks at all share memory, and one
    /// device sends all.
    pub(crate) host: Option<Host>,
    pub(crate) tuning: Tuning,
    pub(crate) ring: Option<Ring>,
    pub(crate) direct: Option<Direct>,
    streams: Option<Streams>,
    /// This rank's GPU, if tensors are on GPUs.
    pub(crate) gpu: Option<GpuMemory>,
    /// Memory for schedules, if no ranks share memory; grows as needed.
    scratch: ExposedRegion,
    pub(crate) blocks: Blocks,
    /// The tensor that barriers reduce.
    pub(crate) token: Option<Tensor<u64>>,
    traffic: Traffic,
    /// The tensors through which the program's memory is copied.
    pub(crate) stage: Option<[TensorMemory; 2]>,
    limit: Option<Duration>,
    /// Whether the last operation had a limit.
    has_limit: bool,
    /// Whether operations are steps of another one, whose limit they have.
    is_step: bool,
    /// Whether the ranks compare their operations first.
    compares: bool,
    /// The reduction by which they do, and its tensor.
    comparison: Option<(Operation, Tensor<u64>)>,
    /// Keeps what this rank does, which the ranks compare in the background.
    recorder: Recorder,
    pub(crate) stats: Stats,
    patience: Patience,
    /// By which algorithms are chosen.
    table: AlgorithmTable,
    /// The last operation that was asked for by name.
    pub(crate) last: Option<Operation>,
}

impl Communicator {
    /// Connects the ranks of a group by one device of each; collective, and blocking. The
    /// communicator lives as long as the job: once the job's group has ended, its operations fail.
    ///
    /// With [`Group::meet`], this is NCCL's `ncclCommInitRank`. `tuning` is the same at all ranks.
    ///
    /// # Errors
    /// As for [`on_rails`](Self::on_rails).
    #[doc(alias = "ncclCommInitRank")]
    pub fn new(adapter: &Adapter, group: &mut Group, tuning: Tuning) -> Result<Self, Error> {
        let rail = group.agree("the domains", Rail::new(adapter, tuning.method))?;
        Self::on_rails(vec![rail], group, tuning)
    }

    /// Connects the ranks of a group by the devices of each, whose connections share the bytes of
    /// every message; collective, and blocking. Of two ranks whose first devices do not connect
    /// them, the software device stands in for their devices.
    ///
    /// # Errors
    /// If shared memory is asked for and cannot be had, if two ranks share neither memory nor a
    /// kind of hardware and do not listen for each other ([`tcp::listen`]), or
    /// if any rank fails; every rank is told.
    pub fn on_rails(rails: Vec<Rail>, group: &mut Group, tuning: Tuning) -> Result<Self, Error> {
        let own = group.split(0, group.rank())?;
        Self::of_group(rails, own, tuning)
    }

    fn of_group(mut rails: Vec<Rail>, mut group: Group, tuning: Tuning) -> Result<Self, Error> {
        let world = group.ranks();
        let recorder = group.recorder(signature::describe, signature::outline);
        let patience = Patience::new(group.watch(), tuning.shared_cores, tuning.stall);
        let own_rails = rails.len();
        let Channels { rails: mut channels, are_many_devices } = channels(&rails, &mut group, &tuning)?;
        let (mut host, mut transports) = transport::connect(&mut group, tuning.transport, patience.clone())?;
        let ways = match host.as_ref().is_some_and(Host::is_whole) {
            true => Ways::default(),
            false => {
                let peers = verbs_peers(&group, host.as_ref(), true);
                ways::choose(&rails[0].adapter, &mut group, &peers, tuning.transport)?
            }
        };
        transports.set_pairs(ways.pairs, ways.tcp, ways.why.as_deref());
        let devices = channels.len();
        if ways.has_fallback {
            let (rail, software) = group.agree("the software devices", software(&rails))?;
            rails.extend(software);
            channels.extend(vec![rail; tuning.queue_pairs]);
        }
        if host.is_none() && (are_many_devices || ways.has_fallback) {
            // Memory that several devices send from is a segment.
            host = Some(Host::alone(&mut group, patience.clone())?);
        }
        let is_striped = channels.len() > 1;
        let schedules = tuning.schedules || host.is_some() || is_striped;
        let mut peers = verbs_peers(&group, host.as_ref(), world <= MESH || schedules);
        let mut fabrics = Vec::new();
        for (channel, &rail) in channels.iter().enumerate() {
            if ways.has_fallback {
                peers = ways.peers(channel >= devices);
            }
            fabrics.push(Fabric::connect(&rails[rail], &mut group, &peers, &tuning, patience.clone())?);
        }
        let used = |rank: usize| match ways.to.get(rank) {
            Some(Some(way)) if way.is_fallback => devices..channels.len(),
            _ => 0..devices,
        };
        let (mut ring, mut direct, mut streams) = (None, None, None);
        if world > 1 && host.is_none() && !is_striped {
            ring = Some(Ring::new(&fabrics[0], &mut group, tuning.chunk, tuning.lead)?);
            if world <= MESH || schedules {
                direct = Some(Direct::new(&fabrics[0], &mut group, tuning.one_step.max(tuning.chunk))?);
            }
        }
        if let Some(host) = host.as_mut().filter(|host| !host.is_whole()) {
            host.register_with(rails.iter().map(|rail| rail.pd.clone()).collect());
        }
        if schedules && !host.as_ref().is_some_and(Host::is_whole) {
            streams = Some(Streams::new(&fabrics, &channels, &mut group, (tuning.chunk, &used))?);
        }
        let scratch = group.agree("the scratch memory", fabrics[0].expose(0))?;
        let (rank, hosts, blocks) = (group.rank(), group.hosts(), Blocks::new());
        let mut comm = Self {
            maker: Maker::current()?,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            rank,
            world,
            group,
            aggregators: 0,
            radix: usize::MAX,
            hosts,
            transports,
            rails,
            own_rails,
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
            stage: None,
            limit: None,
            has_limit: false,
            is_step: false,
            compares: false,
            comparison: None,
            recorder,
            stats: Stats::default(),
            patience,
            table: AlgorithmTable::default(),
            last: None,
        };
        comm.token = Some(comm.allocate_tensor(1)?);
        Ok(comm)
    }

    /// What this communicator has done so far, at this rank.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let sent = |rail: usize| {
            let fabrics = self.channels.iter().zip(&self.fabrics).filter(|(used, _)| **used == rail);
            fabrics.map(|(_, fabric)| fabric.bytes_sent()).sum()
        };
        let rails = self.rails.iter().enumerate().map(|(at, rail)| (rail.adapter.name(), sent(at))).collect();
        Stats { traffic: self.traffic, rails, naps: self.patience.naps(), ..self.stats.clone() }
    }

    /// The number of queue pairs by which this rank is connected to each rank that it reaches by
    /// verbs: those of its own devices, and of the software device if a pair of the job needs that.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.channels.len()
    }

    /// The transports between the ranks; as text, they say why ranks of one host do not share
    /// memory.
    #[must_use]
    pub fn transports(&self) -> &Transports {
        &self.transports
    }

    /// Puts the tensors that are allocated from now on into the memory of GPUs, of which each rank
    /// of a host takes the next; collective. Earlier tensors cannot be used any more. Returns each
    /// rank's GPU.
    ///
    /// # Errors
    /// If there is no GPU, if the communicator runs no schedules, has another transport than the
    /// verbs or several connections between two ranks, or if any rank fails.
    pub fn use_gpus(&mut self, wanted: TensorPlace) -> Result<Vec<RankGpu>, Error> {
        let streams = self.streams.as_mut().filter(|_| self.host.is_none()).ok_or_else(no_streams)?;
        if self.fabrics.len() != 1 {
            return Err(Error::invalid("tensors on GPUs use one device and one queue pair per connection"));
        }
        let group = &mut self.group;
        let gpu = GpuMemory::new(self.fabrics[0].nic(), group.position_on_host(), streams.room(), wanted);
        let gpu = gpu.and_then(|gpu| Ok((gpu.slots()?, gpu)));
        let (slots, gpu) = group.agree("the memory of GPUs", gpu)?;
        streams.move_to(group, slots)?;
        let own = self.gpu.insert(gpu).describe();
        (self.stage, self.last, self.comparison) = (None, None, None);
        self.token = Some(self.allocate_tensor(1)?);
        self.group.all_gather("the GPUs", &own)
    }

    /// Allocates a tensor of `count` elements at every rank; collective. All ranks give the same
    /// count. The memory is freed when the tensor is dropped.
    ///
    /// It is registered with the devices, as by NCCL's `ncclMemAlloc` and `ncclCommRegister`.
    ///
    /// # Errors
    /// If any rank lacks the memory; every rank is told.
    #[doc(alias = "ncclMemAlloc")]
    #[doc(alias = "ncclCommRegister")]
    pub fn allocate<T: Element>(&mut self, count: usize) -> Result<Tensor<T>, Error> {
        self.maker.check()?;
        self.recorder.record(signature::OF_ALLOCATION)?;
        let allocated = self.allocate_tensor(count);
        self.or_mismatch(allocated)
    }

    fn allocate_tensor<T: Element>(&mut self, count: usize) -> Result<Tensor<T>, Error> {
        // No rank can allocate the whole address space, so each hears of a count that is too large.
        let bytes = count.saturating_mul(size_of::<T>());
        self.begin();
        let memory = self.allocate_bytes(bytes);
        let memory = self.ended(None, memory)?;
        Ok(Tensor::new(memory, count, self.number))
    }

    /// Allocates the memory of a tensor; collective.
    pub(crate) fn allocate_bytes(&mut self, bytes: usize) -> Result<TensorMemory, Error> {
        self.maker.check()?;
        let group = &mut self.group;
        Ok(match (&self.gpu, &mut self.host) {
            (Some(gpu), _) => TensorMemory::Gpu(group.agree("the tensors", gpu.allocate(bytes))?),
            (None, Some(host)) => TensorMemory::Shared(host.allocate(group, bytes)?),
            (None, None) => {
                let (region, remotes) = expose_together(&self.fabrics[0], group, "the tensors", bytes)?;
                TensorMemory::Exposed(region, remotes)
            }
        })
    }

    /// How this rank notices arrivals, as text for the report.
    #[must_use]
    pub fn notice(&self) -> &'static str {
        let used = self.fabrics.iter().find(|fabric| fabric.is_used());
        used.unwrap_or(&self.fabrics[0]).notice()
    }

    /// Runs this rank's part of a schedule that [`build`](crate::build()) has made, or the program;
    /// the other ranks run theirs.
    ///
    /// Returns when this rank's output is complete and both tensors may be changed again. Of
    /// [`Reduction::Avg`] it makes the sum, which [`finish`](Self::finish) divides.
    /// [`perform`](Self::perform) does both, and chooses the schedule.
    ///
    /// The ranks [compare](Self#operations-that-differ) schedules that have an
    /// [identity](Schedule::identity), with the type of the elements and the reduction.
    ///
    /// # Errors
    /// If the ranks run schedules of different identities, or another operation. If a tensor is
    /// another communicator's or too short for the schedule, if the schedule names a
    /// rank that there is not, or if a rank fails.
    pub fn run<T: Element>(
        &mut self,
        schedule: &Schedule,
        input: &Part<'_, T>,
        output: &Part<'_, T>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.maker.check()?;
        self.check_tensors(input.tensor(), output.tensor())?;
        if schedule.identity == 0 {
            return self.run_part(schedule, input, output, reduction);
        }
        self.record(signature::of_run(schedule.identity, T::TYPE, reduction))?;
        let done = self.run_part(schedule, input, output, reduction);
        self.or_mismatch(done)
    }

    /// Runs a schedule as a part of an operation.
    pub(crate) fn run_part<T: Element>(
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
        let tensors = [input.tensor(), output.tensor()].into_iter().filter_map(Tensor::shared);
        self.execute::<T>(schedule, &memory, tensors, reduction)
    }

    /// Refuses tensors of other communicators, whose ranks have other numbers.
    pub(crate) fn check_tensors<T: Element>(&self, input: &Tensor<T>, output: &Tensor<T>) -> Result<(), Error> {
        if input.owner() == self.number && output.owner() == self.number {
            return Ok(());
        }
        Err(Error::invalid("a tensor belongs to the communicator that has allocated it, and this one is another"))
    }

    /// Runs a schedule on host memory.
    pub(crate) fn execute<'a, T: Element>(
        &'a mut self,
        schedule: &Schedule,
        memory: &Memory<HostSlice>,
        tensors: impl Iterator<Item = &'a SharedTensor>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let Linked { mut links, blocks, traffic } = self.links(tensors)?;
        *traffic += Execution::new(&mut links, blocks, memory, reduction).run::<T>(schedule)?;
        Ok(())
    }

    /// The links to all ranks, for messages in some tensors.
    pub(crate) fn links<'a>(
        &'a mut self,
        tensors: impl Iterator<Item = &'a SharedTensor>,
    ) -> Result<Linked<'a>, Error> {
        self.maker.check()?;
        let fabrics = &mut self.fabrics[..];
        let streams = self.streams.as_mut().map(|streams| StreamLinks { fabrics, streams });
        let host = match &mut self.host {
            Some(host) => {
                let piece = streams.as_ref().map_or(UNCUT, StreamLinks::piece);
                Some(HostLinks::new(host, tensors, piece)?)
            }
            None => None,
        };
        let links = PairLinks { host, streams };
        Ok(Linked { links, blocks: &mut self.blocks, traffic: &mut self.traffic })
    }

    /// Memory for a schedule, or for messages.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<HostSlice, Error> {
        if let Some(host) = &mut self.host {
            return host.scratch(bytes);
        }
        if bytes > self.scratch.len() {
            self.scratch = self.fabrics[0].expose(bytes)?;
        }
        Ok(self.scratch.slice(..bytes)?.into())
    }

    /// The bytes of this rank's messages so far, in schedules and by
    /// [`exchange`](Self::exchange). Those of the executors without steps do not count.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// This rank, from 0 to [`ranks`](Self::ranks) - 1; aggregators have the numbers beyond.
    ///
    /// This is NCCL's `ncclCommUserRank` and MPI's `MPI_Comm_rank`.
    #[doc(alias = "ncclCommUserRank")]
    #[doc(alias = "MPI_Comm_rank")]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks that have an input or an output: all processes but the aggregators.
    ///
    /// This is NCCL's `ncclCommCount` and MPI's `MPI_Comm_size`.
    #[doc(alias = "ncclCommCount")]
    #[doc(alias = "MPI_Comm_size")]
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.world - self.aggregators
    }

    /// Says that the last processes are aggregators, which work for the ranks in
    /// [`Algorithm::InNetwork`] and are idle in all others; of those just below an aggregator, at
    /// most `radix` are aggregators. The same at all processes.
    ///
    /// # Errors
    /// `InvalidInput` if no rank is left.
    ///
    /// [`Algorithm::InNetwork`]: crate::Algorithm::InNetwork
    pub fn set_aggregators(&mut self, aggregators: usize, radix: usize) -> Result<(), Error> {
        if aggregators >= self.world {
            return Err(Error::invalid(format!("{aggregators} aggregators leave no rank of {} processes", self.world)));
        }
        (self.aggregators, self.radix, self.last) = (aggregators, radix, None);
        if self.is_aggregator() {
            // Its elements are others than those of the ranks.
            self.recorder.forget();
        }
        Ok(())
    }

    /// Whether this process has neither input nor output.
    fn is_aggregator(&self) -> bool {
        self.rank >= self.ranks()
    }

    /// Records an operation that begins, which the ranks compare.
    fn record(&mut self, signature: Signature) -> Result<(), Error> {
        self.recorder.record(if self.is_aggregator() { signature::outline(signature) } else { signature })
    }

    /// Limits the time of each operation from now on. An operation that has not ended by then ends
    /// with `TimedOut` and ends the job, so that the operations of all ranks end, with the reason.
    /// Without a limit an operation waits as long as the other ranks make progress
    /// ([`Tuning::stall`]). Ranks may have different limits. Communicators that are split off later
    /// begin with this limit; those that have been split off keep theirs.
    ///
    /// [`allocate`](Self::allocate) counts as an operation, and so does a
    /// [comparison](Self::compare_operations). [`split`](Self::split) and values of the
    /// [group](Self::group) do not: they have the time of the job's
    /// [`Terms`](crate::bootstrap::Terms). The guide has a [table](crate::guide::programs#times) of
    /// all times.
    pub fn set_limit(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }

    /// A handle by which any thread ends the job: the operations of all ranks then end, with the
    /// reason.
    #[must_use]
    pub fn aborter(&self) -> Aborter {
        self.group.aborter()
    }

    /// Begins an operation: see [`set_limit`](Self::set_limit).
    pub(crate) fn begin(&mut self) {
        if !self.is_step && (self.limit.is_some() || self.has_limit) {
            self.patience.limit(self.limit);
            self.group.limit(self.limit);
            self.has_limit = self.limit.is_some();
        }
    }

    /// Begins an operation that the ranks compare.
    pub(crate) fn begin_recorded(&mut self, operation: Collective, signature: Signature) -> Result<(), Error> {
        self.record(signature).map_err(|error| error.of_operation(Some(operation)))?;
        self.begin();
        Ok(())
    }

    /// Does several operations as one, which has one limit.
    pub(crate) fn as_one<R>(
        &mut self,
        operation: Collective,
        steps: impl FnOnce(&mut Self) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.begin();
        self.is_step = true;
        let done = steps(self);
        self.is_step = false;
        self.ended(Some(operation), done)
    }

    /// Completes the error of an operation, and ends the job if it has not ended in time.
    pub(crate) fn ended<R>(&mut self, operation: Option<Collective>, result: Result<R, Error>) -> Result<R, Error> {
        if self.is_step {
            return result;
        }
        if self.has_limit {
            // The program may write its tensors for as long as it takes.
            self.patience.limit(None);
            self.group.limit(None);
        }
        result.map_err(|error| {
            let error = match error.awaited().filter(|_| error.rank().is_none()) {
                Some(rank) => self.group.of_rank_in_part(rank, error),
                None => error,
            };
            if let (ErrorKind::TimedOut, Some(limit)) = (error.kind(), self.limit) {
                self.aborter().abort_for(&format!("{error} ({limit:?})"), error.cause().clone());
            }
            error.of_operation(operation)
        })
    }

    /// The error of an operation; if another rank does another operation, that is the reason, which
    /// may become known a moment later.
    pub(crate) fn or_mismatch<R>(&self, result: Result<R, Error>) -> Result<R, Error> {
        match result {
            // The others are told of a limit at once.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::TimedOut) => {
                Err(self.group.known_mismatch().unwrap_or(error))
            }
            Err(error) => Err(self.group.mismatch().unwrap_or(error)),
            result => result,
        }
    }

    /// Says whether the ranks compare their operations before each one: ranks whose operations
    /// differ then all get `InvalidInput`, which names two of them, and none has begun; the
    /// communicator can be used further. Without this, such ranks are
    /// [found](Self#operations-that-differ) after the operation has begun. It costs each operation
    /// a reduction of 16 bytes before it. The same at all ranks.
    ///
    /// The collective, the type, the counts, the reduction and the root are compared; algorithms
    /// and messages are not.
    pub fn compare_operations(&mut self, compares: bool) {
        self.compares = compares;
    }

    /// Compares an operation with those of the other ranks, if they do so.
    pub(crate) fn compare(&mut self, operation: impl FnOnce() -> String) -> Result<(), Error> {
        self.maker.check()?;
        if !self.compares {
            return Ok(());
        }
        let own = operation();
        if !self.is_different(&own)? {
            return Ok(());
        }
        // The text of many counts is cut.
        let own = (text::hash(&own), PeerText::from(own));
        let all = self.group.all_gather("the next operation", &own)?;
        match all.iter().position(|other| *other != all[0]) {
            None => Ok(()),
            Some(other) => {
                let (first, other_does) = (&all[0].1, &all[other].1);
                let text = format!("rank 0 does {first}, and rank {other} does {other_does}");
                let operations = [first.to_string(), other_does.to_string()];
                let (number, ranks) = (self.recorder.next_number(), [0, other]);
                Err(Error::invalid(text).with_cause(Cause::Mismatch { number, ranks, operations }))
            }
        }
    }

    /// Whether two ranks are about to do different operations, as hashes of their texts tell: the
    /// largest one is then not the smallest one.
    fn is_different(&mut self, own: &str) -> Result<bool, Error> {
        if self.aggregators > 0 {
            // The texts themselves are compared: these processes have no elements to reduce.
            return Ok(true);
        }
        let (operation, tensor) = match self.comparison.take() {
            Some(comparison) => comparison,
            None => {
                let all_reduce = Request::new(Collective::AllReduce, 2);
                let largest = Request { reduction: Reduction::Max, in_place: true, ..all_reduce };
                (self.prepare::<u64>(largest)?, self.allocate_tensor(2)?)
            }
        };
        let hash = text::hash(own);
        tensor.write(0, &[hash, !hash])?;
        self.begin();
        let done = self.execute_operation(&operation, &tensor, &tensor);
        self.ended(None, done)?;
        let mut largest = [0; 2];
        tensor.read(0, &mut largest)?;
        self.comparison = Some((operation, tensor));
        Ok(largest[0] != !largest[1])
    }

    /// Sets the table by which algorithms are chosen; the built-in one is for what it does not
    /// have. The same at all ranks. Operations that have been prepared before stay as they are.
    pub fn set_table(&mut self, table: AlgorithmTable) {
        (self.table, self.last) = (table, None);
    }

    /// The table by which algorithms are chosen.
    pub(crate) fn table(&self) -> &AlgorithmTable {
        &self.table
    }

    /// The group of this communicator's ranks, for values that are not worth a collective. It is a
    /// part of the job's group, which alone can be concluded.
    pub fn group(&mut self) -> &mut Group {
        &mut self.group
    }

    /// Divides a sum by the number of ranks if `reduction` is the average, which no schedule does:
    /// after [`run`](Self::run).
    ///
    /// # Errors
    /// If the tensor has fewer elements.
    pub fn finish<T: Element>(&self, sum: &Part<'_, T>, reduction: Reduction) -> Result<(), Error> {
        finish(sum, reduction, self.ranks())
    }

    /// The shared memory of two tensors, and the host that has it.
    pub(crate) fn shared<'a, T: Element>(
        &'a self,
        input: &'a Tensor<T>,
        output: &'a Tensor<T>,
    ) -> Result<(&'a Host, &'a SharedTensor, &'a SharedTensor), Error> {
        match (&self.host, input.shared(), output.shared()) {
            (Some(host), Some(input), Some(output)) => Ok((host, input, output)),
            _ => Err(Error::invalid("the tensors are not in the communicator's shared memory")),
        }
    }
}

/// The links to all ranks, and what the execution of a schedule needs besides.
pub(crate) struct Linked<'a> {
    pub(crate) links: PairLinks<'a>,
    blocks: &'a mut Blocks,
    pub(crate) traffic: &'a mut Traffic,
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
fn channels(rails: &[Rail], group: &mut Group, tuning: &Tuning) -> Result<Channels, Error> {
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
    // Each has memory of its own. Ranks may tell anything.
    let is_too_many = |rails: usize| rails.saturating_mul(tuning.queue_pairs) > MOST_CHANNELS;
    if all.iter().any(|(rails, ..)| is_too_many(*rails)) {
        return Err(Error::invalid(format!("more than {MOST_CHANNELS} connections between two ranks")));
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

/// The rail of the software device that listens for other hosts, which connects by endpoints at
/// every rank, and the rail itself if it is not one of these.
fn software(rails: &[Rail]) -> Result<(usize, Option<Rail>), Error> {
    let is_it = |rail: &Rail| {
        let is_device = tcp::device_name() == rail.adapter.context.name();
        is_device && matches!(rail.method, Method::Endpoints)
    };
    if let Some(at) = rails.iter().position(is_it) {
        return Ok((at, None));
    }
    Ok((rails.len(), Some(Rail::new(&Adapter::open(&tcp::device())?, Method::Endpoints)?)))
}

/// The ranks to which this one is connected by verbs.
fn verbs_peers(group: &Group, host: Option<&Host>, mesh: bool) -> Vec<usize> {
    let (rank, world) = (group.rank(), group.ranks());
    let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
    let is_near = |peer: usize| host.is_some_and(|host| host.reaches(peer));
    let is_peer = |peer: &usize| *peer != rank && !is_near(*peer) && (mesh || *peer == left || *peer == right);
    (0..world).filter(is_peer).collect()
}

#[cfg(test)]
mod mismatches;
#[cfg(test)]
mod tests;
