//! Staged messages beside the copies of which they consist.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use rdma::{ConnectOptions, InitOptions};
use rdma_benches::stats::{self, Spread};
use rdma_benches::table::{self, Table};
use rdma_benches::{device, quiet};
use rdma_cuda::{
    Gpu, GpuBuffer, GpuEndpoint, GpuEndpointOptions, GpuSlice, Pending, PinnedBuffer, Policy, Preference, Ready, Stream,
};

use crate::{COPY_RATE, Outcome, lost};

/// Bytes of a staged message, and of a copy.
pub(crate) const MESSAGE: usize = 64 << 20;
const CHUNK: usize = 512 << 10;

/// Compares staged messages with the copies between GPU and host alone.
pub(crate) fn compare(gpu: &Gpu, size: usize, rounds: usize) -> Outcome {
    let (mut down, mut up, mut staged) = (Vec::new(), Vec::new(), Vec::new());
    let mut ends = Ends::new(gpu, size, None, Policy::Staged)?;
    ends.exchange()?;
    for _ in 0..rounds {
        quiet::wait(Duration::from_secs(2));
        down.push(rate(size, copies(gpu, size, CHUNK, Stream::download_pinned, || ())?));
        up.push(rate(size, copies(gpu, size, CHUNK, Stream::upload_pinned, || ())?));
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
pub(crate) fn rate(size: usize, time: Duration) -> f64 {
    size as f64 / time.as_secs_f64() / 1e6
}

/// A copy of a chunk between GPU and pinned memory.
pub(crate) type Copy = fn(&Stream, &GpuSlice<u8>, PinnedBuffer<u8>) -> rdma_cuda::Result<Pending<PinnedBuffer<u8>>>;

/// The time of copies between GPU and pinned memory, chunk by chunk, from when `start` returns.
pub(crate) fn copies(gpu: &Gpu, size: usize, chunk: usize, copy: Copy, start: impl FnOnce()) -> Outcome<Duration> {
    let stream = Stream::new(gpu)?;
    let chunk = chunk.min(size);
    let (buffer, mut spare) = (GpuBuffer::<u8>::new(gpu, chunk)?, Vec::new());
    for _ in 0..2 {
        spare.push(PinnedBuffer::<u8>::new(gpu, chunk)?);
    }
    start();
    let (start, mut running) = (Instant::now(), VecDeque::new());
    for _ in 0..size / chunk {
        let pinned = match spare.pop() {
            Some(pinned) => pinned,
            None => running.pop_front().map(Pending::wait).ok_or_else(lost)??,
        };
        running.push_back(copy(&stream, &buffer.slice(), pinned)?);
    }
    stream.synchronize()?;
    Ok(start.elapsed())
}

/// Two sides that exchange staged messages in this process.
pub(crate) struct Ends {
    ends: [GpuEndpoint; 2],
    buffers: [GpuBuffer<u8>; 2],
}

impl Ends {
    /// Connects two sides with buffers of `size` bytes, whose chunks have a size of their own or
    /// the usual one.
    pub(crate) fn new(gpu: &Gpu, size: usize, chunk: Option<usize>, policy: Policy) -> Outcome<Self> {
        let opened = device::open()?;
        let pd = opened.context.alloc_pd()?;
        let init = InitOptions::new().port(opened.port);
        let preference = Preference { policy, ..Preference::default() };
        let options = GpuEndpointOptions::new().preference(preference);
        let options = chunk.map_or(options, |chunk| options.chunk(chunk));
        let prepare = || GpuEndpoint::prepare(gpu, &pd, &init, options);
        let (one, other) = (prepare()?, prepare()?);
        let (to_one, to_other) = (one.endpoint(), other.endpoint());
        let options = ConnectOptions::new();
        let ends = [one.connect(&to_other, &options)?, other.connect(&to_one, &options)?];
        Ok(Self { ends, buffers: [GpuBuffer::new(gpu, size)?, GpuBuffer::new(gpu, size)?] })
    }

    /// Sends a message from the first side to the second.
    pub(crate) fn exchange(&mut self) -> Outcome {
        let ([sender, receiver], [source, target]) = (&mut self.ends, &self.buffers);
        thread::scope(|scope| {
            let receiving = scope.spawn(|| receiver.recv(&target.slice()).map(drop));
            sender.send(&Ready::assume(source.slice()))?;
            receiving.join().map_err(|_| lost())??;
            Ok(())
        })
    }
}
