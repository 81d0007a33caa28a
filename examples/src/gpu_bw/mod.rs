//! Measures the bandwidth between the memories of two GPUs, and between host memories, and reports
//! it as perftest does.

mod options;
mod staged;
mod written;

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Instant;

use rdma::ProtectionDomain;
use rdma_cuda::{Gpu, GpuBuffer, Stream};
use serde_json::{Value, json};

pub use options::{Memory, Options, SideOptions};

use crate::Failure;
use crate::device::{Chosen, announce};
use crate::failure::is_launched;
use crate::pingpong::contents;
use crate::pingpong::report::{self, RULER, Row};
use crate::placement;
use crate::progress::Progress;
use rdma_collectives::bootstrap::Group;

/// Messages before the measured ones.
const WARM_UP: usize = 2;

/// The objects that both sides of a measurement use.
struct Bench<'a> {
    gpu: &'a Gpu,
    chosen: &'a Chosen,
    pd: ProtectionDomain,
    /// The size of the largest message.
    most: usize,
    depth: u32,
}

/// One side of a connection that carries messages. The client sends them.
trait End {
    /// The path of the messages.
    fn path(&self) -> String;

    /// Writes the contents of message `number` to the memory of the messages.
    fn fill(&mut self, size: usize, number: u64) -> Result<(), Failure>;

    /// Sends messages, and returns when the other side has all of them.
    fn send(&mut self, size: usize, count: usize) -> Result<(), Failure>;

    /// The other side's part while messages are sent.
    fn receive(&mut self, size: usize, count: usize) -> Result<(), Failure>;

    /// Whether the memory of the messages has the contents of message `number`.
    fn is_intact(&mut self, size: usize, number: u64) -> Result<bool, Failure>;
}

/// Runs one of the two processes. The client, rank 1, measures and prints.
///
/// # Errors
/// If either side fails, or a message arrives with wrong contents.
pub fn run(gpu: &Gpu, local: &SideOptions, options: &Options, group: &mut Group) -> Result<(), Failure> {
    let chosen = local.side.device().near(gpu).open_pair(local.side.key, group)?;
    let _cores = placement::bind(group, local.side.bind)?;
    let is_client = group.rank() == 1;
    // The two sides of one launcher share a terminal.
    let speaks = is_client || !is_launched();
    if speaks {
        announce(&format!("{}; GPU {gpu}", chosen.using()), local.side.json)?;
    }
    let sizes = options.sizes()?;
    let most = sizes.last().copied().unwrap_or(0);
    let bench = Bench { gpu, chosen: &chosen, pd: chosen.adapter.context.alloc_pd()?, most, depth: options.tx_depth };
    let prints = is_client && !local.side.json;
    let progress = Progress::new(if speaks { sizes.len() * options.memory.len() } else { 0 });
    let mut reports = Vec::new();
    for (at, &memory) in options.memory.iter().enumerate() {
        let mut end = match connect(&bench, memory, group)? {
            Ok(end) => end,
            Err(reason) => {
                if prints {
                    progress.print(|| writeln!(io::stdout(), "{}: not measured: {reason}", name(memory)))?;
                }
                reports.push(json!({ "memory": memory, "not_measured": reason }));
                continue;
            }
        };
        if prints {
            progress.print(|| heading(&bench, memory, &end.path(), options.report_gbits))?;
        }
        let mut rows = Vec::new();
        for (done, &size) in sizes.iter().enumerate() {
            progress.step(name(memory), at * sizes.len() + done);
            let row = measure(&mut *end, group, size, options)?;
            if prints {
                progress.print(|| row.print(&mut io::stdout()))?;
            }
            rows.push(row);
        }
        if prints {
            progress.print(report::foot)?;
        }
        reports.push(json!({ "memory": memory, "path": end.path(), "bandwidth": rows }));
    }
    if is_client && local.side.json {
        print_json(&bench, &reports)?;
    }
    Ok(())
}

/// Writes the contents of message `number` to a GPU's memory.
fn upload(stream: &Stream, buffer: &GpuBuffer<u8>, size: usize, number: u64) -> Result<(), Failure> {
    let mut bytes = vec![0; size];
    contents::fill(&mut bytes, number);
    let slice = buffer.slice().range(..size).map_err(failure)?;
    stream.upload(&slice, &bytes).map_err(failure)
}

fn failure(error: impl Display) -> Failure {
    Failure::new(error.to_string())
}

fn name(memory: Memory) -> &'static str {
    match memory {
        Memory::Direct => "direct",
        Memory::Staged => "staged",
        Memory::Host => "host",
    }
}

/// Connects the two sides; collective. The inner error says why a memory cannot be measured.
fn connect<'a>(
    bench: &'a Bench<'a>,
    memory: Memory,
    group: &mut Group,
) -> Result<Result<Box<dyn End + 'a>, String>, Failure> {
    match memory {
        Memory::Direct => written::between_gpus(bench, group),
        Memory::Staged => Ok(Ok(Box::new(staged::connect(bench, group)?))),
        Memory::Host => Ok(Ok(Box::new(written::between_hosts(bench, group)?))),
    }
}

/// Measures messages of one size; collective. The row has figures at the client only.
fn measure(end: &mut dyn End, group: &mut Group, size: usize, options: &Options) -> Result<Row, Failure> {
    let (count, is_client) = (options.iterations(size), group.rank() == 1);
    if is_client {
        end.fill(size, size as u64)?;
    }
    let mut seconds = 0.0;
    for count in [WARM_UP, count] {
        group.barrier("the other side")?;
        let begun = Instant::now();
        if is_client { end.send(size, count) } else { end.receive(size, count) }?;
        seconds = begun.elapsed().as_secs_f64();
        group.wait_for_work("the messages")?;
    }
    let intact = is_client || end.is_intact(size, size as u64)?;
    let verdict = if intact { Ok(()) } else { Err(Failure::new(format!("a message of {size} bytes arrived wrong"))) };
    group.agree("the contents", verdict)?;
    let rate = count as f64 / seconds.max(1e-9);
    Ok(Row::bandwidth(size, count as u64, rate, rate, options.report_gbits))
}

/// Prints the title, the device, the path and the column heads.
fn heading(bench: &Bench<'_>, memory: Memory, path: &str, gbits: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let title = if memory == Memory::Staged { "Send BW Test" } else { "RDMA_Write BW Test" };
    writeln!(out, "{RULER}\n                    {title} ({})", name(memory))?;
    writeln!(out, " Device          : {}\n TX depth        : {}", bench.chosen.adapter.context.name(), bench.depth)?;
    writeln!(out, " Path            : {path}\n{RULER}")?;
    report::bandwidth_columns(&mut out, gbits)
}

fn print_json(bench: &Bench<'_>, reports: &[Value]) -> Result<(), Failure> {
    let report = json!({
        "program": "gpu_bw", "device": bench.chosen.line, "gpu": bench.gpu.to_string(),
        "driver": bench.gpu.driver().path(), "results": reports,
    });
    Ok(writeln!(io::stdout(), "{report}")?)
}
