//! `cargo xtask vm`: the device tests and the programs on a kernel's own RDMA devices, in a virtual machine.
//!
//! The guest is a Debian kernel with the host's files, read-only, and Debian's RDMA user space over them, so what cargo has just
//! built runs there from where it lies.

mod guest;
mod kernel;
mod plan;
mod report;
mod tools;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::apt;
use guest::{Accelerator, Guest};
use kernel::Kernel;
use plan::{Built, Known};
use report::{Report, Table};

/// With no option: everything, on rxe and Linux 6.1.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The kernel's series. May be given more than once.
    #[arg(long, value_enum, default_value = "6.1")]
    kernel: Vec<Kernel>,
    /// The driver. May be given more than once.
    #[arg(long, value_enum, default_value = "rxe")]
    device: Vec<DeviceChoice>,
    /// What executes the guest.
    #[arg(long, value_enum, default_value = "auto")]
    accelerator: Accelerator,
    /// The guest's processors: with one, programs that poll starve the other side.
    #[arg(long, default_value_t = 2, value_name = "N")]
    processors: u8,
    /// The guest's memory in MiB.
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    memory: u32,
    /// Seconds until the guest is stopped.
    #[arg(long, default_value_t = 1200, value_name = "SECONDS")]
    limit: u64,
    /// Leave the programs and the scripts out.
    #[arg(long)]
    no_programs: bool,
    /// Build nothing: run what the last build has left.
    #[arg(long)]
    no_build: bool,
    /// Run what the lists of known faults name, too.
    #[arg(long)]
    known_faults: bool,
    /// Run this shell command in the guest, with the device made, instead of the tests.
    #[arg(long, value_name = "COMMAND")]
    shell: Option<String>,
    /// Run only what has one of these in its name.
    #[arg(last = true, value_name = "FILTER")]
    filters: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DeviceChoice {
    /// RoCE version 2.
    Rxe,
    /// iWARP.
    Siw,
    /// The software device of this workspace, on this machine and not in a guest.
    Soft,
    /// Each of them.
    All,
}

/// A device that needs no hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Rxe,
    Siw,
    Soft,
}

impl Device {
    fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
            Self::Soft => "soft",
        }
    }
}

/// One device on one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    device: Device,
    /// None: this machine's.
    kernel: Option<Kernel>,
}

impl Run {
    fn kernel_name(self) -> &'static str {
        self.kernel.map_or("host", Kernel::series)
    }
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let runs = runs(&options.device, &options.kernel);
    let in_guest = runs.iter().any(|run| run.kernel.is_some());
    tools::check(in_guest, runs.iter().any(|run| run.device == Device::Siw))?;
    let root = crate::root();
    let cache = root.join("target/vm");
    if let Some(command) = &options.shell {
        let &[run] = &runs[..] else { return Err("--shell takes one device and one kernel".into()) };
        return shell(options, &root, &cache, run, command);
    }
    // The network is slow, and compilers are.
    let built = thread::scope(|scope| {
        scope.spawn(|| runs.iter().for_each(|&run| fetch(options, &root, &cache, run)));
        Built::new(&root, !options.no_programs, !options.no_build)
    })?;
    let mut table = Table::default();
    // The guests of one kernel run at the same time.
    for group in runs.chunk_by(|a, b| a.kernel == b.kernel) {
        for &run in group {
            println!("\n=== {} on {}", run.device.name(), run.kernel_name());
        }
        let reports = thread::scope(|scope| {
            let one = |&run: &Run| {
                let (root, cache, built) = (&root, &cache, &built);
                scope.spawn(move || {
                    let begin = Instant::now();
                    let mut report = one(options, root, cache, built, run);
                    report.seconds = begin.elapsed().as_secs();
                    report
                })
            };
            let running: Vec<_> = group.iter().map(one).collect();
            running.into_iter().map(|report| report.join().expect("a run does not panic")).collect::<Vec<_>>()
        });
        for (run, report) in group.iter().zip(reports) {
            report.print_failures();
            table.push(run.device.name(), run.kernel_name(), report);
        }
    }
    print!("\n{table}");
    table.verdict()
}

/// Gets what a guest needs, before several need it at the same time. What goes wrong shows again when it is to be run.
fn fetch(options: &Options, root: &Path, cache: &Path, run: Run) {
    if let Some(kernel) = run.kernel {
        drop(guest(options, root, cache, run, kernel, &cache.join("run-trial")));
    }
}

/// What to run: each driver on each kernel, the software device once.
fn runs(devices: &[DeviceChoice], kernels: &[Kernel]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut add = |run| {
        if !runs.contains(&run) {
            runs.push(run);
        }
    };
    let is_asked = |choice| devices.contains(&choice) || devices.contains(&DeviceChoice::All);
    if is_asked(DeviceChoice::Soft) {
        add(Run { device: Device::Soft, kernel: None });
    }
    for &kernel in kernels {
        for (choice, device) in [(DeviceChoice::Rxe, Device::Rxe), (DeviceChoice::Siw, Device::Siw)] {
            // Where all are asked for, what there cannot be is left out.
            let is_there = device != Device::Siw || kernel.has_siw() || devices.contains(&choice);
            if is_asked(choice) && is_there {
                add(Run { device, kernel: Some(kernel) });
            }
        }
    }
    runs
}

/// Runs everything on one device. What keeps it from being run is a failure in the report.
fn one(options: &Options, root: &Path, cache: &Path, built: &Built, run: Run) -> Report {
    let mut report = Report::default();
    if let Err(error) = fill(options, root, cache, built, run, &mut report) {
        report.failed.push(error);
    }
    report
}

fn fill(
    options: &Options,
    root: &Path,
    cache: &Path,
    built: &Built,
    run: Run,
    report: &mut Report,
) -> Result<(), String> {
    let mut items = built.items(run.device.name())?;
    let known = Known::read(&root.join("tests/vm"), run.device.name(), run.kernel_name())?;
    if !options.known_faults {
        report.excluded = known.exclude(&mut items)?;
    }
    let is_asked = |name: &str| options.filters.is_empty() || options.filters.iter().any(|part| name.contains(part));
    items.retain(|item| is_asked(&item.name));
    report.excluded.retain(|(name, _)| is_asked(name));
    if items.is_empty() {
        return Err("no test has such a name".into());
    }
    let out = out(root, cache, run)?;
    apt::write(out.join("plan"), &plan::lines(&items))?;
    let Some(kernel) = run.kernel else {
        let ended = on_this_machine(root, &out, built);
        report.read(&out, items.len());
        return ended;
    };
    let guest = guest(options, root, cache, run, kernel, &out)?;
    let begin = Instant::now();
    let programs = built.programs().display();
    let ended = guest.run(&format!(
        "{}export PATH='{programs}':$PATH\nkeep '{programs}'/* target/vm/tests/*\nrun\n",
        prepare(root, run)
    ));
    report.guest_seconds = begin.elapsed().as_secs();
    report.read(&out, items.len());
    report.complaints(&guest.messages(), &known);
    ended
}

fn shell(options: &Options, root: &Path, cache: &Path, run: Run, command: &str) -> Result<(), String> {
    let kernel = run.kernel.ok_or("--shell is for a guest")?;
    let out = out(root, cache, run)?;
    let guest = guest(options, root, cache, run, kernel, &out)?;
    guest.run(&format!("{}( {command}\n)\necho $? >/out/status\n", prepare(root, run)))?;
    for line in report::complaints(&guest.messages()) {
        println!("kernel: {line}");
    }
    match fs::read_to_string(out.join("status")).as_deref().map(str::trim) {
        Ok("0") => Ok(()),
        Ok(status) => Err(format!("the command's status is {status}")),
        Err(_) => Err("the device could not be made".into()),
    }
}

/// An empty folder for what a run says, with the guest's script in it.
fn out(root: &Path, cache: &Path, run: Run) -> Result<PathBuf, String> {
    let out = cache.join(format!("run-{}-{}", run.kernel_name(), run.device.name()));
    if out.exists() {
        fs::remove_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    apt::make(&out)?;
    fs::copy(root.join("tests/vm/guest.sh"), out.join("guest.sh")).map_err(|error| format!("guest.sh: {error}"))?;
    Ok(out)
}

fn guest(options: &Options, root: &Path, cache: &Path, run: Run, kernel: Kernel, out: &Path) -> Result<Guest, String> {
    let mut guest = Guest {
        image: kernel::image(root, kernel, run.device == Device::Siw)?,
        out: out.to_owned(),
        accelerator: options.accelerator,
        processors: options.processors,
        guests: runs(&options.device, &options.kernel).iter().filter(|other| other.kernel == run.kernel).count(),
        memory: options.memory,
        limit: Duration::from_secs(options.limit),
    };
    guest.choose(cache)?;
    Ok(guest)
}

/// What the guest's shell does before anything else.
fn prepare(root: &Path, run: Run) -> String {
    let (root, device) = (root.display(), run.device.name());
    format!(
        "cd '{root}'; ulimit -l unlimited; . /out/guest.sh\n\
         export RDMA_TEST_DEVICE={device}0 RDMA_DEVICE={device}0\n\
         device {device} || exit 1\n"
    )
}

/// The same plan on the software device, without a guest.
fn on_this_machine(root: &Path, out: &Path, built: &Built) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([built.programs().to_owned()].into_iter().chain(std::env::split_paths(&path)));
    let status = Command::new("bash")
        .args(["-c", ". \"$OUT\"/guest.sh; run"])
        .current_dir(root)
        .env("OUT", out)
        .env("PATH", path.map_err(|error| error.to_string())?)
        .envs([("RDMA_TEST_DEVICE", "soft0"), ("RDMA_DEVICE", "soft0")])
        .status()
        .map_err(|error| format!("cannot run bash: {error}"))?;
    if status.success() { Ok(()) } else { Err("the tests' shell failed".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(devices: &[DeviceChoice], kernels: &[Kernel]) -> Vec<(&'static str, &'static str)> {
        runs(devices, kernels).into_iter().map(|run| (run.device.name(), run.kernel_name())).collect()
    }

    #[test]
    fn each_driver_runs_on_each_kernel_and_the_software_device_once() {
        use DeviceChoice::{All, Rxe, Siw};
        let both = [Kernel::V6_1, Kernel::V7_2];
        assert_eq!(named(&[All], &both), [("soft", "host"), ("rxe", "6.1"), ("siw", "6.1"), ("rxe", "7.2")]);
        assert_eq!(named(&[Rxe, Rxe], &both[..1]), [("rxe", "6.1")]);
        // What was asked for by name is not left out in silence.
        assert_eq!(named(&[Siw], &both[1..]), [("siw", "7.2")]);
    }
}
