//! GPU memory, on the stand-in for CUDA's driver: a post of a GPU slice beside that of a host
//! buffer, the registration of 1 GiB beside its own calls, and staging beside its copies.
//!
//! `cargo bench -p rdma-benches --bench gpu -- [rounds=N]`

use std::error::Error;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{Whence, lseek};
use rdma::op::Send;
use rdma::{Buffer, ConnectOptions, ExposedSlice, InitOptions, MemoryOwner, Poller, QueuePair, Rc, RemoteAccess};
use rdma_benches::device::{self, End, Prepared};
use rdma_benches::stats::{self, Spread};
use rdma_benches::table::{self, Table};
use rdma_benches::{callgrind, mode, null, pair, quiet};
use rdma_cuda::{
    DeviceMemory, DmaBuf, Driver, Gpu, GpuBuffer, GpuEndpoint, GpuEndpointOptions, GpuRegion, PinnedBuffer, Policy,
    Preference, Ready, Stream,
};

/// Bytes in a message whose post is measured.
const LEN: usize = 64;
/// Iterations under callgrind, and twice that.
const COUNTED: u32 = 20_000;
/// Bytes that are registered.
const REGISTERED: usize = 1 << 30;
/// Bytes of a staged message, and of a copy.
const MESSAGE: usize = 64 << 20;
const CHUNK: usize = 512 << 10;
/// The rate of the stand-in's copies in MB/s, slow enough that two processors keep up.
const COPY_RATE: &str = "1000";

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    // SAFETY: set_var wants that no other thread reads the environment: this is the first statement
    // of the program's only thread.
    unsafe { std::env::set_var("STAND_IN_COPY_RATE", COPY_RATE) };
    if let Some(name) = mode::option("--count") {
        let iterations = mode::option("--iterations").and_then(|n| n.parse().ok()).unwrap_or(1);
        return Post::named(&name)?.run(iterations);
    }
    let smoke = mode::is_smoke();
    let rounds = mode::number("rounds", if smoke { 1 } else { 5 })?;
    posts(smoke)?;
    registration(if smoke { 1 << 20 } else { REGISTERED }, rounds)?;
    staging(if smoke { 1 << 20 } else { MESSAGE }, rounds)
}

fn gpu() -> Outcome<Gpu> {
    // SAFETY: load_from wants an implementation of the driver API, which the stand-in is. No object
    // of another driver exists.
    let driver = unsafe { Driver::load_from(&rdma_cuda_stand_in::path()) }?;
    Ok(driver.gpu(0)?)
}

/// Memory for a post, ready to run over a provider that does nothing.
struct Post {
    memory: Posted,
    poller: Poller,
    end: End,
    _region: GpuRegion,
}

enum Posted {
    Host(Option<Buffer>),
    Gpu(Option<ExposedSlice<rdma::Gpu>>),
}

impl Post {
    const HOST: &str = "host buffer";
    const GPU: &str = "GPU slice";

    fn named(name: &str) -> Outcome<Self> {
        let opened = device::open()?;
        let (one, other) = (Prepared::new(&opened)?, Prepared::new(&opened)?);
        let to_other = other.qp.endpoint();
        let end = one.connect(&to_other)?;
        let buffer = GpuBuffer::<u8>::new(&gpu()?, LEN)?;
        let region = GpuRegion::register(&end.pd, buffer.memory(), RemoteAccess::empty(), Preference::default())?;
        let memory = match name {
            Self::HOST => Posted::Host(Some(end.pd.allocate(LEN)?)),
            _ => Posted::Gpu(Some(region.source(&Ready::assume(buffer.slice()))?)),
        };
        // SAFETY: install wants a live context that no other thread uses: it was opened above for
        // this case alone.
        unsafe { null::install(opened.context.as_raw()) };
        Ok(Self { memory, poller: end.cq.poller(), end, _region: region })
    }

    fn run(&mut self, iterations: u64) -> Outcome {
        let Self { memory, poller, end, .. } = self;
        match memory {
            Posted::Host(buffer) => post_host(&mut end.qp, poller, buffer, iterations)?,
            Posted::Gpu(slice) => post_gpu(&mut end.qp, poller, slice, iterations)?,
        }
        Ok(())
    }
}

#[inline(never)]
fn post_host(
    qp: &mut QueuePair<Rc>,
    poller: &mut Poller,
    place: &mut Option<Buffer>,
    iterations: u64,
) -> io::Result<()> {
    let mut buffer = place.take().ok_or_else(lost)?;
    for _ in 0..iterations {
        qp.post_send(Send::new(buffer))?;
        let mut completion = poller.poll()?.ok_or_else(lost)?;
        completion.status().map_err(io::Error::other)?;
        buffer = completion.take_buffer().ok_or_else(lost)?;
    }
    *place = Some(buffer);
    Ok(())
}

#[inline(never)]
fn post_gpu(
    qp: &mut QueuePair<Rc>,
    poller: &mut Poller,
    place: &mut Option<ExposedSlice<rdma::Gpu>>,
    iterations: u64,
) -> io::Result<()> {
    let mut slice = place.take().ok_or_else(lost)?;
    for _ in 0..iterations {
        qp.post_send(Send::new(slice))?;
        let mut completion = poller.poll()?.ok_or_else(lost)?;
        completion.status().map_err(io::Error::other)?;
        slice = completion.take_gpu_slice().ok_or_else(lost)?;
    }
    *place = Some(slice);
    Ok(())
}

#[cold]
fn lost() -> io::Error {
    io::Error::other("the memory did not come back")
}

/// Compares the posts of a host buffer and of a GPU slice.
fn posts(smoke: bool) -> Outcome {
    let mut table =
        Table::new("Post and poll of one signaled 64-byte send, null provider", &["memory", "ns", "instructions"]);
    let mut instructions = Vec::new();
    for name in [Post::HOST, Post::GPU] {
        let mut post = Post::named(name)?;
        let (mut blocks, iterations) = ([0.0; 9], if smoke { 10 } else { 20_000 });
        for block in &mut blocks {
            let start = Instant::now();
            post.run(iterations)?;
            *block = pair::per_iteration(start.elapsed(), iterations);
        }
        let counted = if smoke { Err(io::ErrorKind::NotFound.into()) } else { callgrind::per_iteration(name, COUNTED) };
        let counted = match counted {
            Ok(counted) => Some(counted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        instructions.extend(counted);
        let ns = table::number(stats::median(&blocks));
        table.row([name.to_owned(), ns, counted.map_or_else(String::new, table::number)]);
    }
    println!("{table}");
    if let [host, gpu] = instructions[..] {
        let more = gpu - host;
        table::bar("GPU slice over host buffer", "at most 10 instructions more", &table::number(more), more <= 10.0);
    }
    Ok(())
}

/// Compares a registration by [`GpuRegion`] with the calls of which it consists.
///
/// The calls are the export of a dma-buf and the registration of a mapping of it, which touches all
/// pages, as a NIC's driver does. [`GpuRegion`] registers on the software device, where these calls
/// take no time: the rest is what it adds.
fn registration(size: usize, rounds: usize) -> Outcome {
    let (gpu, opened) = (gpu()?, device::open()?);
    let pd = opened.context.alloc_pd()?;
    let memory = GpuBuffer::<u8>::new(&gpu, size)?.memory();
    let (mut calls, mut added) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        quiet::wait(Duration::from_secs(2));
        let start = Instant::now();
        let dma_buf = DmaBuf::export(&*memory)?;
        let mapped = Mapped::new(Arc::clone(&memory), &dma_buf)?;
        let place = mapped.start;
        // SAFETY: register_mapped wants the owner's memory at `place` until the owner is dropped:
        // the owner has the mapping.
        let region =
            unsafe { pd.register_mapped(mapped, place, RemoteAccess::WRITE) }.map_err(|failed| failed.error)?;
        calls.push(start.elapsed().as_secs_f64() * 1e3);
        drop(region);
        let start = Instant::now();
        let region = GpuRegion::register(&pd, Arc::clone(&memory), RemoteAccess::WRITE, Preference::default())?;
        added.push(start.elapsed().as_secs_f64() * 1e3);
        drop(region);
    }
    let mut table = Table::new(format!("Registration of {}", table::bytes(size)), &["part", "ms, median (min-max)"]);
    table.row(["export and registration".to_owned(), table::spread(Spread::of(&calls))]);
    table.row(["added by GpuRegion".to_owned(), table::spread(Spread::of(&added))]);
    println!("{table}");
    let share = 100.0 * stats::median(&added) / stats::median(&calls);
    table::bar("registration of 1 GiB", "adds at most 20 %", &format!("{} %", table::number(share)), share <= 20.0);
    Ok(())
}

/// Memory of a GPU with a mapping of its dma-buf.
struct Mapped {
    memory: Arc<dyn DeviceMemory>,
    start: NonNull<u8>,
}

// SAFETY: the value gives no access to the mapping but its address.
unsafe impl std::marker::Send for Mapped {}

impl Mapped {
    fn new(memory: Arc<dyn DeviceMemory>, dma_buf: &DmaBuf) -> io::Result<Self> {
        // The stand-in's descriptor has the start of the exported range as its position.
        let position = lseek(dma_buf, 0, Whence::SeekCur)?;
        let length = NonZeroUsize::new(memory.size()).ok_or_else(lost)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: mmap wants that a mapping replaces nothing: it is not a fixed one.
        let start = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, dma_buf, position) }?;
        Ok(Self { memory, start: start.cast() })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: munmap wants a mapping that nobody uses: the region has ended.
        let _unmapped = unsafe { munmap(self.start.cast(), self.memory.size()) };
    }
}

// SAFETY: MemoryOwner wants memory that stays in place until `from_parts` or for ever, and of which
// no reference exists: the contract of DeviceMemory, whose owner the parts hold.
unsafe impl MemoryOwner for Mapped {
    type Placement = rdma::Gpu;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        let address = usize::try_from(self.memory.address()).unwrap_or(0);
        let pointer = NonNull::new(std::ptr::without_provenance_mut(address)).unwrap_or(NonNull::dangling());
        (pointer, self.memory.size(), self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }
}

/// Compares staged messages with the copies between GPU and host alone.
fn staging(size: usize, rounds: usize) -> Outcome {
    let gpu = gpu()?;
    let (mut down, mut up, mut staged) = (Vec::new(), Vec::new(), Vec::new());
    let mut ends = Ends::new(&gpu, size)?;
    ends.exchange()?;
    for _ in 0..rounds {
        quiet::wait(Duration::from_secs(2));
        down.push(rate(size, copies(&gpu, size, Stream::download_pinned)?));
        up.push(rate(size, copies(&gpu, size, Stream::upload_pinned)?));
        let start = Instant::now();
        ends.exchange()?;
        staged.push(rate(size, start.elapsed()));
    }
    let title = format!("Staging of {}, copies of {COPY_RATE} MB/s", table::bytes(size));
    let mut table = Table::new(title, &["part", "MB/s, median (min-max)"]);
    for (name, rates) in [("GPU to host", &down), ("host to GPU", &up), ("staged message", &staged)] {
        table.row([name.to_owned(), table::spread(Spread::of(rates))]);
    }
    println!("{table}");
    let slower = stats::median(&down).min(stats::median(&up));
    let share = stats::median(&staged) / slower;
    table::bar("staged message over the slower copy", "at least 0.8", &table::number(share), share >= 0.8);
    Ok(())
}

/// Megabytes per second.
fn rate(size: usize, time: Duration) -> f64 {
    size as f64 / time.as_secs_f64() / 1e6
}

/// The time of copies between GPU and pinned memory, chunk by chunk.
fn copies(
    gpu: &Gpu,
    size: usize,
    copy: impl Fn(
        &Stream,
        &rdma_cuda::GpuSlice<u8>,
        PinnedBuffer<u8>,
    ) -> rdma_cuda::Result<rdma_cuda::Pending<PinnedBuffer<u8>>>,
) -> Outcome<Duration> {
    let stream = Stream::new(gpu)?;
    let chunk = CHUNK.min(size);
    let (buffer, mut spare) = (GpuBuffer::<u8>::new(gpu, chunk)?, Vec::new());
    for _ in 0..2 {
        spare.push(PinnedBuffer::<u8>::new(gpu, chunk)?);
    }
    let (start, mut running) = (Instant::now(), std::collections::VecDeque::new());
    for _ in 0..size / chunk {
        let pinned = match spare.pop() {
            Some(pinned) => pinned,
            None => running.pop_front().map(rdma_cuda::Pending::wait).ok_or_else(lost)??,
        };
        running.push_back(copy(&stream, &buffer.slice(), pinned)?);
    }
    stream.synchronize()?;
    Ok(start.elapsed())
}

/// Two ends that exchange staged messages in this process.
struct Ends {
    ends: [GpuEndpoint; 2],
    buffers: [GpuBuffer<u8>; 2],
}

impl Ends {
    fn new(gpu: &Gpu, size: usize) -> Outcome<Self> {
        let opened = device::open()?;
        let pd = opened.context.alloc_pd()?;
        let init = InitOptions::new().port(opened.port);
        let preference = Preference { policy: Policy::Staged, ..Preference::default() };
        let options = GpuEndpointOptions::new().preference(preference);
        let prepare = || GpuEndpoint::prepare(gpu, &pd, &init, options);
        let (one, other) = (prepare()?, prepare()?);
        let (to_one, to_other) = (one.endpoint(), other.endpoint());
        let options = ConnectOptions::new();
        let ends = [one.connect(&to_other, &options)?, other.connect(&to_one, &options)?];
        Ok(Self { ends, buffers: [GpuBuffer::new(gpu, size)?, GpuBuffer::new(gpu, size)?] })
    }

    /// Sends a message from the first end to the second.
    fn exchange(&mut self) -> Outcome {
        let ([sender, receiver], [source, target]) = (&mut self.ends, &self.buffers);
        thread::scope(|scope| {
            let receiving = scope.spawn(|| receiver.recv(&target.slice()).map(drop));
            sender.send(&Ready::assume(source.slice()))?;
            receiving.join().map_err(|_| lost())??;
            Ok(())
        })
    }
}
