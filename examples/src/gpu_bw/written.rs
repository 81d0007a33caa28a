//! Messages that are written to the other side's memory: of its GPU, or of its host.

use rdma::op;
use rdma::transport::Rc;
use rdma::{ExposedRegion, ExposedSlice, Placement, QueuePair, RemoteAccess, RemoteSlice, RnrTimer};
use rdma_cuda::{GpuBuffer, GpuRegion, Landed, Policy, Preference, ReadBack, Ready, RegionError, Stream};

use super::{Bench, End, failure, upload};
use crate::Failure;
use crate::pingpong::contents;
use crate::wait::Completions;
use rdma_collectives::bootstrap::Group;
use rdma_collectives::connect::{self, Connected, How, Method, Receives, Unconnected};
use rdma_collectives::text::PeerText;

/// The queue pair of one side.
struct Queue {
    completions: Completions,
    connected: Connected,
    depth: usize,
}

impl Queue {
    fn connect(bench: &Bench<'_>, group: &mut Group) -> Result<Self, Failure> {
        let Bench { chosen, pd, depth, .. } = bench;
        // The place of a request is free when the completion after its own is fetched.
        let places = 2 * depth + 2;
        let completions = Completions::new(&chosen.adapter.context, places + 1, false, group.watch(), group.timeout())?;
        let qp = QueuePair::builder(pd).cq(completions.queue()).max_send_wr(places).max_recv_wr(1).build()?;
        let receives = Receives { rooms: Vec::new(), token: 0 };
        let unconnected = vec![Unconnected { peer: 1 - group.rank(), qp, receives }];
        let access = RemoteAccess::READ | RemoteAccess::WRITE;
        let how = How { method: Method::Endpoints, access, mtu: None, min_rnr_timer: RnrTimer::DEFAULT };
        let connected = connect::connect(&chosen.adapter, group, unconnected, &how)?.pop();
        let connected = connected.ok_or_else(|| Failure::new("the two processes have not connected"))?;
        Ok(Self { completions, connected, depth: *depth as usize })
    }

    /// Writes a slice `count` times, and waits for the completions.
    fn write<M: Placement>(
        &mut self,
        source: &ExposedSlice<M>,
        target: RemoteSlice,
        count: usize,
    ) -> Result<(), Failure> {
        let qp: &mut QueuePair<Rc> = &mut self.connected.qp;
        let (mut posted, mut completed) = (0, 0);
        while completed < count {
            if posted < count && posted - completed < self.depth {
                qp.post_send(op::write(source.clone(), target))?;
                posted += 1;
                continue;
            }
            let done = self.completions.wait(|completion| {
                completion.status().map_err(|error| Failure::new(format!("a write failed: {error}")))
            })?;
            done.ok_or_else(|| Failure::new("a write has not completed in time"))?;
            completed += 1;
        }
        Ok(())
    }
}

/// Gives the client the server's memory; collective.
fn exchange(group: &mut Group, own: Option<RemoteSlice>) -> Result<RemoteSlice, Failure> {
    let bytes = own.map_or_else(Vec::new, |own| own.to_bytes().to_vec());
    let server = group.all_gather("the memory", &bytes)?.swap_remove(0);
    Ok(RemoteSlice::from_bytes(&server)?)
}

/// A side with memory of its GPU.
struct OnGpu<'a> {
    bench: &'a Bench<'a>,
    queue: Queue,
    stream: Stream,
    buffer: GpuBuffer<u8>,
    region: GpuRegion,
    target: RemoteSlice,
}

/// Connects two GPUs; collective. The inner error says why there is no direct path.
pub(super) fn between_gpus<'a>(
    bench: &'a Bench<'a>,
    group: &mut Group,
) -> Result<Result<Box<dyn End + 'a>, String>, Failure> {
    let buffer = group.agree("the memory of the GPUs", GpuBuffer::new(bench.gpu, bench.most).map_err(failure))?;
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let required = Preference { policy: Policy::RequireDirect, ..Preference::default() };
    let region = GpuRegion::register(&bench.pd, buffer.memory(), access, required);
    let reason = region.as_ref().err().map(|error| PeerText::from(error.to_string()));
    let reasons = group.all_gather("the paths", &reason)?;
    let region = match (region, reasons.into_iter().flatten().next()) {
        (Ok(region), None) => region,
        (Err(error), None) => return Ok(Err(error.to_string())),
        (_, Some(reason)) => return Ok(Err(reason.to_string())),
    };
    let queue = Queue::connect(bench, group)?;
    let own = region.remote(&buffer.slice()).map_err(failure)?;
    let target = exchange(group, Some(own))?;
    let stream = Stream::new(bench.gpu).map_err(failure)?;
    Ok(Ok(Box::new(OnGpu { bench, queue, stream, buffer, region, target })))
}

impl End for OnGpu<'_> {
    fn path(&self) -> String {
        self.region.path().to_string()
    }

    fn fill(&mut self, size: usize, number: u64) -> Result<(), Failure> {
        upload(&self.stream, &self.buffer, size, number)
    }

    fn send(&mut self, size: usize, count: usize) -> Result<(), Failure> {
        // `fill` returned when the bytes had arrived.
        let ready = Ready::assume(self.buffer.slice().range(..size).map_err(failure)?);
        let source = self.region.source(&ready).map_err(failure)?;
        self.queue.write(&source, self.target.slice(..size)?, count)
    }

    fn receive(&mut self, _: usize, _: usize) -> Result<(), Failure> {
        Ok(())
    }

    fn is_intact(&mut self, size: usize, number: u64) -> Result<bool, Failure> {
        let landed = Landed::new(self.buffer.slice().range(..size).map_err(failure)?);
        let visible = landed.visible_by(|slice| -> Result<(), RegionError> {
            ReadBack::new(&self.bench.pd, self.bench.chosen.adapter.port)?.read(&self.region, slice)
        });
        let mut bytes = vec![0; size];
        self.stream.download(visible.map_err(failure)?.get(), &mut bytes).map_err(failure)?;
        Ok(contents::is_intact(&bytes, number))
    }
}

/// A side with host memory.
struct OnHost {
    queue: Queue,
    region: ExposedRegion,
    target: RemoteSlice,
}

/// Connects two host memories; collective.
pub(super) fn between_hosts(bench: &Bench<'_>, group: &mut Group) -> Result<impl End + use<>, Failure> {
    let region = bench.pd.allocate_exposed(bench.most, RemoteAccess::READ | RemoteAccess::WRITE);
    let region = group.agree("the host memory", region.map_err(Failure::from))?;
    let queue = Queue::connect(bench, group)?;
    let own = region.remote(..)?;
    let target = exchange(group, Some(own))?;
    Ok(OnHost { queue, region, target })
}

impl End for OnHost {
    fn path(&self) -> String {
        "host memory".to_owned()
    }

    fn fill(&mut self, size: usize, number: u64) -> Result<(), Failure> {
        let mut bytes = vec![0; size];
        contents::fill(&mut bytes, number);
        Ok(self.region.copy_in(0, &bytes)?)
    }

    fn send(&mut self, size: usize, count: usize) -> Result<(), Failure> {
        let source = self.region.slice(..size)?;
        self.queue.write(&source, self.target.slice(..size)?, count)
    }

    fn receive(&mut self, _: usize, _: usize) -> Result<(), Failure> {
        Ok(())
    }

    fn is_intact(&mut self, size: usize, number: u64) -> Result<bool, Failure> {
        let mut bytes = vec![0; size];
        self.region.copy_out(0, &mut bytes)?;
        Ok(contents::is_intact(&bytes, number))
    }
}
