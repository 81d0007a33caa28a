//! GPU memory, on the stand-in for CUDA's driver: a post of a GPU slice beside that of a host
//! buffer, the registration of 1 GiB beside its own calls, and staging beside its copies. On a
//! machine with a GPU also the rates of that GPU: copies, staging, reductions, exports.
//!
//! `cargo bench -p rdma-benches --bench gpu -- [rounds=N]`

mod rates;
mod staging;

use std::error::Error;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{Whence, lseek};
use rdma::op;
use rdma::transport::Rc;
use rdma::{Buffer, ExposedSlice, MemoryOwner, Poller, QueuePair, RemoteAccess};
use rdma_benches::device::{self, End, Prepared};
use rdma_benches::stats::{self, Spread};
use rdma_benches::table::{self, Table};
use rdma_benches::{callgrind, mode, null, pair, quiet, ways};
use rdma_cuda::{DeviceMemory, DmaBuf, Driver, Gpu, GpuBuffer, GpuRegion, Preference, Ready};

/// Bytes in a message whose post is measured.
const LEN: usize = 64;
/// Bytes that are registered.
const REGISTERED: usize = 1 << 30;
/// The rate of the stand-in's copies in MB/s, slow enough that two processors keep up.
const COPY_RATE: &str = "1000";

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    // SAFETY: set_var requires that no other thread reads the environment: this is the first
    // statement of the program's only thread.
    unsafe { std::env::set_var("STAND_IN_COPY_RATE", COPY_RATE) };
    if let Some(name) = mode::option("--count") {
        let mut post = Post::named(&name)?;
        // Once, what only the first posts do.
        post.run(100)?;
        return callgrind::counted(|| post.run(ways::counted_iterations()));
    }
    let smoke = mode::is_smoke();
    let rounds = mode::number("rounds", if smoke { 1 } else { 5 })?;
    let real = Driver::load().ok().and_then(|driver| driver.gpu(0).ok());
    if let Some(gpu) = real {
        println!("{:?}: {gpu}", gpu.driver());
        rates::run(&gpu, smoke, rounds)?;
    }
    posts(smoke)?;
    registration(if smoke { 1 << 20 } else { REGISTERED }, rounds)?;
    staging::compare(&gpu()?, if smoke { 1 << 20 } else { staging::MESSAGE }, rounds)
}

/// The first GPU of the stand-in.
fn gpu() -> Outcome<Gpu> {
    // SAFETY: load_from requires an implementation of the driver API, which the stand-in is. No
    // object of another driver exists.
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
        // SAFETY: install requires a live context that no other thread uses: it was opened above
        // for this case alone.
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
        qp.post_send(op::send(buffer))?;
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
        qp.post_send(op::send(slice))?;
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
        let counted = if smoke { Err(io::ErrorKind::NotFound.into()) } else { callgrind::per_iteration(name) };
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
        // SAFETY: register_mapped requires the owner's memory at `place` until the owner is
        // dropped: the owner has the mapping.
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
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(memory: Arc<dyn DeviceMemory>, dma_buf: &DmaBuf) -> io::Result<Self> {
        // The stand-in's descriptor has the start of the exported range as its position.
        let position = lseek(dma_buf, 0, Whence::SeekCur)?;
        let length = NonZeroUsize::new(memory.size()).ok_or_else(lost)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: mmap requires that a mapping replaces nothing: it is not a fixed one.
        let start = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, dma_buf, position) }?;
        Ok(Self { memory, start: start.cast() })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: munmap requires a mapping that nobody uses: the region has ended.
        let _unmapped = unsafe { munmap(self.start.cast(), self.memory.size()) };
    }
}

// SAFETY: MemoryOwner requires memory that stays in place until `from_parts` or for ever, and of
// which no reference exists: the contract of DeviceMemory, whose owner the parts hold.
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
