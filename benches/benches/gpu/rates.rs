//! The rates of a real GPU. They have no bars: the link to the GPU decides.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use rdma::RemoteAccess;
use rdma_benches::device;
use rdma_benches::stats::Spread;
use rdma_benches::table::{self, Table};
use rdma_cuda::{DmaBuf, Gpu, GpuBuffer, GpuRegion, GpuSlice, Operation, Policy, Preference, Reducer, Scalar, Stream};

use crate::staging::{self, Copy, Ends, rate};
use crate::{Outcome, REGISTERED, lost};

/// Bytes that each copy moves.
const TOTAL: usize = 256 << 20;
/// Bytes of an operand of a reduction: more than the caches hold.
const OPERAND: usize = 256 << 20;

pub(crate) fn run(gpu: &Gpu, smoke: bool, rounds: usize) -> Outcome {
    let total = if smoke { 8 << 20 } else { TOTAL };
    copies(gpu, total, rounds)?;
    pageable(gpu, rounds)?;
    staged(gpu, total, rounds)?;
    reductions(gpu, if smoke { 1 << 20 } else { OPERAND }, rounds)?;
    exports(gpu, if smoke { 1 << 20 } else { REGISTERED }, rounds)
}

/// Runs a measurement once to warm up, and then in rounds.
fn measure(rounds: usize, mut run: impl FnMut() -> Outcome<f64>) -> Outcome<Spread> {
    run()?;
    let values = (0..rounds).map(|_| run()).collect::<Outcome<Vec<_>>>()?;
    Spread::of(&values).ok_or_else(|| lost().into())
}

/// Copies to and from pinned memory, one way and both ways at once, by the size of a chunk.
fn copies(gpu: &Gpu, total: usize, rounds: usize) -> Outcome {
    let heads = ["chunk", "GPU to host", "host to GPU", "both at once, sum"];
    let mut table = Table::new("Copies between GPU and pinned memory, MB/s, median (min-max)", &heads);
    let one = |copy: Copy, chunk| move || Ok(rate(total, staging::copies(gpu, total, chunk, copy, || ())?));
    for chunk in [64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20] {
        let down = measure(rounds, one(Stream::download_pinned, chunk))?;
        let up = measure(rounds, one(Stream::upload_pinned, chunk))?;
        let both = measure(rounds, || {
            let begin = Barrier::new(2);
            let way = |copy: Copy| {
                let time = staging::copies(gpu, total, chunk, copy, || _ = begin.wait());
                time.map(|time| rate(total, time)).map_err(|error| error.to_string())
            };
            thread::scope(|scope| {
                let other = scope.spawn(|| way(Stream::upload_pinned));
                let down = way(Stream::download_pinned)?;
                Ok(down + other.join().map_err(|_| lost())??)
            })
        })?;
        table.row([table::bytes(chunk), table::spread(Some(down)), table::spread(Some(up)), table::spread(Some(both))]);
    }
    println!("{table}");
    Ok(())
}

/// Copies to and from memory that is not pinned, as the software device's copies are.
fn pageable(gpu: &Gpu, rounds: usize) -> Outcome {
    let stream = Stream::new(gpu)?;
    let mut table = Table::new(
        "Copies of memory that is not pinned, MB/s, median (min-max)",
        &["size", "GPU to host", "host to GPU"],
    );
    for size in [4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20] {
        let (slice, mut bytes) = (GpuBuffer::<u8>::new(gpu, size)?.slice(), vec![1; size]);
        let rate_of = |copy: &mut dyn FnMut() -> rdma_cuda::Result<()>| {
            measure(rounds, || {
                let start = Instant::now();
                (0..16).try_for_each(|_| copy())?;
                Ok(rate(16 * size, start.elapsed()))
            })
        };
        let down = rate_of(&mut || stream.download(&slice, &mut bytes))?;
        let up = rate_of(&mut || stream.upload(&slice, &bytes))?;
        table.row([table::bytes(size), table::spread(Some(down)), table::spread(Some(up))]);
    }
    println!("{table}");
    Ok(())
}

/// Staged messages over the software device, whose own copies are the processor's, by the size of a
/// chunk.
fn staged(gpu: &Gpu, total: usize, rounds: usize) -> Outcome {
    let title = format!("Staged messages of {}, software device, MB/s, median (min-max)", table::bytes(total));
    let mut table = Table::new(title, &["chunk", "rate"]);
    for chunk in [128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20] {
        let mut ends = Ends::new(gpu, total, Some(chunk), Policy::Staged)?;
        let spread = measure(rounds, || {
            let start = Instant::now();
            ends.exchange()?;
            Ok(rate(total, start.elapsed()))
        })?;
        table.row([table::bytes(chunk), table::spread(Some(spread))]);
    }
    println!("{table}");
    let heads = ["messages", "staged, us", "direct, us"];
    let mut table = Table::new("Messages within a process, software device, each with a new thread", &heads);
    for size in [8, 4 << 10, 64 << 10] {
        let time = |policy| {
            let mut ends = Ends::new(gpu, size, None, policy)?;
            measure(rounds, || {
                let start = Instant::now();
                (0..100).try_for_each(|_| ends.exchange())?;
                Ok(start.elapsed().as_secs_f64() * 1e4)
            })
        };
        let (staged, direct) = (time(Policy::Staged)?, time(Policy::RequireDirect)?);
        table.row([table::bytes(size), table::spread(Some(staged)), table::spread(Some(direct))]);
    }
    println!("{table}");
    Ok(())
}

/// Reductions beside a copy inside the GPU, by the bytes that are read and written.
fn reductions(gpu: &Gpu, size: usize, rounds: usize) -> Outcome {
    let (stream, start) = (Stream::new(gpu)?, Instant::now());
    let reducer = Reducer::new(gpu)?;
    println!("kernels loaded in {} ms", table::number(start.elapsed().as_secs_f64() * 1e3));
    let buffers = (0..8).map(|_| GpuBuffer::<u8>::new(gpu, size)).collect::<rdma_cuda::Result<Vec<_>>>()?;
    let operands: Vec<GpuSlice<u8>> = buffers.iter().map(GpuBuffer::slice).collect();
    for operand in &operands {
        stream.fill(operand, 1)?;
    }
    let into = GpuBuffer::<u8>::new(gpu, size)?.slice();
    // Several at once, so that the time is that of the GPU.
    const TIMES: usize = 10;
    let time = |moved: usize, work: &dyn Fn() -> rdma_cuda::Result<()>| -> Outcome<Spread> {
        measure(rounds, || {
            stream.synchronize()?;
            let start = Instant::now();
            (0..TIMES).try_for_each(|_| work())?;
            stream.synchronize()?;
            Ok(rate(TIMES * moved * size, start.elapsed()) / 1e3)
        })
    };
    let title = format!("Reductions of {}, GB/s read and written, median (min-max)", table::bytes(size));
    let mut table = Table::new(title, &["work", "rate", "of the copy"]);
    let copy = time(2, &|| stream.copy(&into, &operands[0]))?;
    table.row(["copy".to_owned(), table::spread(Some(copy)), String::new()]);
    for (scalar, operation, count) in [
        (Scalar::F32, Operation::Sum, 2),
        (Scalar::F32, Operation::Sum, 4),
        (Scalar::F32, Operation::Sum, 8),
        (Scalar::F32, Operation::Max, 2),
        (Scalar::F64, Operation::Sum, 2),
        (Scalar::Bf16, Operation::Sum, 2),
        (Scalar::Bf16, Operation::Sum, 8),
        (Scalar::F16, Operation::Sum, 2),
        (Scalar::F16, Operation::Max, 2),
        (Scalar::I8, Operation::Sum, 2),
        (Scalar::I64, Operation::Sum, 2),
    ] {
        let rate = time(count + 1, &|| reducer.reduce(&stream, scalar, operation, &into, &operands[..count]))?;
        let share = table::number(rate.median / copy.median);
        table.row([format!("{operation:?} of {count} {scalar:?}"), table::spread(Some(rate)), share]);
    }
    println!("{table}");
    Ok(())
}

/// Exports, and registrations on the software device, which has the driver copy.
fn exports(gpu: &Gpu, size: usize, rounds: usize) -> Outcome {
    let memory = GpuBuffer::<u8>::new(gpu, size)?.memory();
    let pd = device::open()?.context.alloc_pd()?;
    let mut table = Table::new(format!("Calls for {}, us, median (min-max)", table::bytes(size)), &["call", "time"]);
    let micros = |start: Instant| start.elapsed().as_secs_f64() * 1e6;
    if DmaBuf::is_supported(gpu) {
        let spread = measure(rounds, || {
            let start = Instant::now();
            drop(DmaBuf::export(&*memory)?);
            Ok(micros(start))
        })?;
        table.row(["export as a dma-buf".to_owned(), table::spread(Some(spread))]);
    }
    let spread = measure(rounds, || {
        let start = Instant::now();
        drop(GpuRegion::register(&pd, memory.clone(), RemoteAccess::WRITE, Preference::default())?);
        Ok(micros(start))
    })?;
    table.row(["registration on the software device".to_owned(), table::spread(Some(spread))]);
    println!("{table}");
    let allocated = measure(rounds, || {
        let start = Instant::now();
        drop(GpuBuffer::<u8>::new(gpu, 1 << 20)?);
        Ok(micros(start))
    })?;
    println!("allocation and release of 1 MiB: {} us", table::number(allocated.median));
    Ok(())
}
