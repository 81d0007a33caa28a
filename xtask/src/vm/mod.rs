//! `cargo xtask vm`: runs the device tests and the programs on a kernel's own RDMA devices, in a
//! virtual machine, and on the software device, on this machine.
//!
//! The guest is a Debian kernel with the host's files, read-only, overlaid by Debian's RDMA user
//! space. The binaries that cargo has just built therefore run there from their usual paths.
//!
//! Files: `kernel` makes the guest, `guest` boots it, `plan` plans, `report` counts;
//! `tests/vm/guest.sh` runs the plan there; `hosts` makes hosts of network namespaces.
//!
//! Each test is a process of its own, and tests run one after the other: objects that a test leaves
//! in the kernel are noticed, and a test may set a link down.

mod guest;
mod hosts;
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

use crate::{
    flaky::{self, List},
    system,
};
use clap::ValueEnum;
use guest::{Accelerator, Guest, Wire};
use kernel::Kernel;
use plan::{Built, Item, Known};
use report::{Report, Table};

/// The folder of the second run, in that of the first.
const AGAIN: &str = "again";

/// Without an option: everything, on rxe and Linux 6.1.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The kernel's series. May be given more than once.
    #[arg(long, value_enum, default_value = "6.1")]
    kernel: Vec<Kernel>,
    /// The driver. May be given more than once.
    #[arg(long, value_enum, default_value = "rxe")]
    device: Vec<Device>,
    /// The guest's processor: the host's, or an emulated one.
    #[arg(long, value_enum, default_value = "auto")]
    accelerator: Accelerator,
    /// The number of the guest's processors: with one, programs that poll starve the other side.
    #[arg(long, default_value_t = 2, value_name = "N")]
    processors: u8,
    /// The guest's memory in MiB. A guest alone has a second node beside it.
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    memory: u32,
    /// Seconds until the guest is stopped.
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    limit: u64,
    /// Leave the programs and the scripts out.
    #[arg(long)]
    no_programs: bool,
    /// Build nothing: run the binaries of the last build.
    #[arg(long)]
    no_build: bool,
    /// Run known faults, too.
    #[arg(long)]
    known_faults: bool,
    /// Run this shell command in the guest, with the device made, instead of the tests.
    #[arg(long, value_name = "COMMAND")]
    shell: Option<String>,
    /// Run only tests and programs with one of these in their names.
    #[arg(last = true, value_name = "FILTER")]
    filters: Vec<String>,
}

/// A device that needs no hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Device {
    /// The software device of this workspace, on this machine and not in a guest.
    Soft,
    /// The software device between hosts, which are network namespaces of this machine.
    Hosts,
    /// RoCE version 2.
    Rxe,
    /// iWARP.
    Siw,
    /// RoCE version 2 between two guests: in each, two devices on two wires, and two in one
    /// network. Runs jobs of several hosts only.
    Wire,
    /// Each of the devices.
    All,
}

/// The command line name of an option's value.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// One device on one kernel; the software device runs on this machine's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    device: Device,
    kernel: Option<Kernel>,
}

impl Run {
    fn device_name(self) -> String {
        name_of(self.device)
    }

    /// Whether the plan has the tests and programs of a single host.
    fn is_single(self) -> bool {
        !matches!(self.device, Device::Hosts | Device::Wire)
    }

    fn kernel_name(self) -> String {
        self.kernel.map_or("host".into(), name_of)
    }

    /// Whether the two run at the same time in guests: the single guests of one kernel do.
    fn is_beside(self, other: Self) -> bool {
        self.kernel == other.kernel && (self.device == Device::Wire) == (other.device == Device::Wire)
    }
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let mut runs = runs(&options.device, &options.kernel);
    let has = |device| runs.iter().any(|run: &Run| run.device == device);
    let in_guest = runs.iter().any(|run| run.kernel.is_some());
    tools::check(in_guest, has(Device::Siw), has(Device::Hosts))?;
    if has(Device::Hosts) {
        if let Err(why) = hosts::are_allowed() {
            println!("skipped on hosts: this machine makes no network namespaces: {why}");
            runs.retain(|run| run.device != Device::Hosts);
            if runs.is_empty() {
                return Ok(());
            }
        }
    }
    let root = crate::root();
    let flaky = &List::read(&root)?;
    let session = &Session { options, runs: &runs, cache: &root.join("target/vm"), root: &root, flaky };
    if let Some(command) = &options.shell {
        let &[run] = &runs[..] else { return Err("--shell takes one device and one kernel".into()) };
        if !options.no_build {
            Built::new(&root, true, true)?;
        }
        return session.shell(run, command);
    }
    // The downloads need no processor, and the build needs no network, so they run in parallel.
    let built = &thread::scope(|scope| {
        scope.spawn(|| runs.iter().for_each(|&run| session.fetch(run)));
        Built::new(&root, !options.no_programs, !options.no_build)
    })?;
    Known::check_all(&root.join("tests/vm"), built)?;
    let mut table = Table::default();
    for group in groups(&runs) {
        for &run in group {
            println!("\n=== {} on {}", run.device_name(), run.kernel_name());
        }
        let reports = thread::scope(|scope| {
            let running: Vec<_> = group.iter().map(|&run| scope.spawn(move || session.report(built, run))).collect();
            running.into_iter().map(|report| report.join().expect("a run does not panic")).collect::<Vec<_>>()
        });
        for (&run, mut report) in group.iter().zip(reports) {
            session.run_again(built, run, &mut report);
            table.push(run.device_name(), run.kernel_name(), report);
        }
    }
    print!("\n{table}");
    // Last, where a record that keeps only the end of the output has them.
    table.print_failures();
    table.summary().finish()
}

/// The runs of a command: those on this machine once, and each driver on each kernel.
fn runs(devices: &[Device], kernels: &[Kernel]) -> Vec<Run> {
    let is_asked = |device| devices.contains(&device) || devices.contains(&Device::All);
    // With `all`, a kernel is skipped for a driver that it lacks.
    let exists = |run: &Run| run.kernel.is_none_or(|kernel| run.device != Device::Siw || kernel.has_siw());
    let mut kernels = kernels.to_vec();
    kernels.dedup();
    let here = [Device::Soft, Device::Hosts].map(|device| Run { device, kernel: None });
    let drivers = kernels
        .into_iter()
        .flat_map(|kernel| [Device::Rxe, Device::Siw, Device::Wire].map(|device| Run { device, kernel: Some(kernel) }));
    let asked = here.into_iter().chain(drivers).filter(|run| is_asked(run.device));
    asked.filter(|run| exists(run) || devices.contains(&run.device)).collect()
}

/// The runs that are started together. The software device's tests wait most of their time, so they
/// run beside the first guests.
fn groups(runs: &[Run]) -> impl Iterator<Item = &[Run]> {
    runs.chunk_by(|run, next| run.kernel.is_none() || run.is_beside(*next))
}

/// A command in progress.
#[derive(Clone, Copy, Debug)]
struct Session<'a> {
    options: &'a Options,
    runs: &'a [Run],
    root: &'a Path,
    /// The folder of downloads, images and results.
    cache: &'a Path,
    /// The cases that passed at their second run.
    flaky: &'a List,
}

impl Session<'_> {
    /// Downloads a guest's parts before several guests need them at the same time. Errors are
    /// ignored here: the run reports them.
    fn fetch(self, run: Run) {
        if let Some(kernel) = run.kernel {
            drop(self.guest(run, kernel, &self.cache.join("run-trial")));
        }
    }

    /// Runs the whole plan on one device. An error that prevents the run is a failure in the
    /// report.
    fn report(self, built: &Built, run: Run) -> Report {
        let begin = Instant::now();
        let mut report = Report::default();
        if let Err(error) = self.fill(built, run, &mut report) {
            report.errors.push(error);
        }
        report.seconds = begin.elapsed().as_secs();
        report
    }

    fn fill(self, built: &Built, run: Run, report: &mut Report) -> Result<(), String> {
        let Options { filters, known_faults, no_programs, .. } = self.options;
        let out = self.out(run)?;
        let mut items = built.items(&run.device_name(), run.is_single())?;
        if filters.is_empty() && !no_programs {
            self.flaky.check(&run.device_name(), items.iter().map(|item| &*item.name))?;
        }
        let known = self.known(run)?;
        if !known_faults {
            report.excluded = known.exclude(&mut items)?;
        }
        let is_asked = |name: &str| filters.is_empty() || filters.iter().any(|part| name.contains(part));
        items.retain(|item| is_asked(&item.name));
        report.excluded.retain(|(name, _)| is_asked(name));
        if items.is_empty() {
            return Err("no test has such a name".into());
        }
        self.execute(run, &items, &out, report)
    }

    /// Runs the failed cases of a run once more, without the load of other runs. Keeps the folder
    /// of a run in which a case failed.
    fn run_again(self, built: &Built, run: Run, report: &mut Report) {
        let device = run.device_name();
        let names = report.second_run(&device, self.flaky);
        if !names.is_empty() {
            println!("\n=== {device} on {}, second run of {}", run.kernel_name(), names.join(", "));
            let begin = Instant::now();
            let mut second = Report::default();
            if let Err(error) = self.execute_again(built, run, &names, &mut second) {
                second.errors.push(error);
            }
            second.seconds = begin.elapsed().as_secs();
            report.add_second(second, AGAIN);
        }
        if report.has_failed() {
            let name = format!("{}-{device}", run.kernel_name());
            match flaky::keep(&self.folder(run), &self.cache.join("failed"), &name) {
                Ok(folder) => report.folder = Some(folder),
                Err(error) => report.errors.push(error),
            }
        }
    }

    fn execute_again(self, built: &Built, run: Run, names: &[String], report: &mut Report) -> Result<(), String> {
        let mut items = built.items(&run.device_name(), run.is_single())?;
        items.retain(|item| names.contains(&item.name));
        let out = self.folder(run).join(AGAIN);
        copy_script(self.root, &out)?;
        // The first run's guests have ended, so that this one is alone.
        let alone = Session { runs: &[run], ..self };
        alone.execute(run, &items, &out, report)
    }

    /// Runs a plan with its output in a folder.
    fn execute(self, run: Run, items: &[Item], out: &Path, report: &mut Report) -> Result<(), String> {
        system::write(out.join("plan"), &plan::lines(items))?;
        let Some(kernel) = run.kernel else {
            let ended = self.on_this_machine(run, out);
            report.read(out, items.len());
            return ended;
        };
        let guest = self.guest(run, kernel, out)?;
        let begin = Instant::now();
        let programs = self.programs();
        let (ended, messages) = if run.device == Device::Wire {
            self.on_a_wire(run, guest)
        } else {
            let ended = guest.run(&format!("{}keep '{programs}'/* target/vm/tests/*\nrun\n", self.prepare(run)));
            (ended, guest.messages())
        };
        report.guest_seconds = begin.elapsed().as_secs();
        report.read(out, items.len());
        report.complaints(&messages, &self.known(run)?);
        ended
    }

    fn known(self, run: Run) -> Result<Known, String> {
        Known::read(&self.root.join("tests/vm"), &run.device_name(), &run.kernel_name())
    }

    /// Runs the plan in the first of two guests, while the second executes what the first asks of
    /// it. Returns the messages of both kernels.
    fn on_a_wire(self, run: Run, mut first: Guest) -> (Result<(), String>, String) {
        let prepare = self.prepare(run);
        let (mut second, files) = (first.clone(), first.out.join("second"));
        second.out.clone_from(&files);
        let wire = |(number, cards)| Wire { socket: first.out.join(format!("wire{number}")), listens: true, cards };
        first.wires = [1, 1, 2].into_iter().enumerate().map(wire).collect();
        second.wires = first.wires.iter().map(|wire| Wire { listens: false, ..wire.clone() }).collect();
        let ended = thread::scope(|scope| {
            copy_script(self.root, &files)?;
            let other = scope.spawn(|| {
                first.wait_for_wires()?;
                second.run(&format!("{prepare}wire 2 && serve\n"))
            });
            let ended = first.run(&format!("{prepare}wire 1 && run\n"));
            let stopped = system::write(files.join("end"), "").map(drop);
            ended.and(other.join().expect("a guest's thread does not panic")).and(stopped)
        });
        (ended, first.messages() + &second.messages())
    }

    fn shell(self, run: Run, command: &str) -> Result<(), String> {
        let kernel = run.kernel.ok_or("--shell is for a guest")?;
        let out = self.out(run)?;
        let guest = self.guest(run, kernel, &out)?;
        guest.run(&format!("{}( {command}\n)\necho $? >/out/status\n", self.prepare(run)))?;
        for line in report::complaints(&guest.messages()) {
            println!("kernel: {line}");
        }
        match fs::read_to_string(out.join("status")).as_deref().map(str::trim) {
            Ok("0") => Ok(()),
            Ok(status) => Err(format!("the command's status is {status}")),
            Err(_) => Err("the device could not be made".into()),
        }
    }

    /// The folder of a run's output.
    fn folder(self, run: Run) -> PathBuf {
        self.cache.join(format!("run-{}-{}", run.kernel_name(), run.device_name()))
    }

    /// Creates an empty folder for a run's output, with the guest's script in it.
    fn out(self, run: Run) -> Result<PathBuf, String> {
        let out = self.folder(run);
        system::remove(&out)?;
        copy_script(self.root, &out)?;
        Ok(out)
    }

    fn guest(self, run: Run, kernel: Kernel, out: &Path) -> Result<Guest, String> {
        let mut guest = Guest {
            image: kernel::image(self.root, kernel, run.device == Device::Siw)?,
            out: out.to_owned(),
            accelerator: self.options.accelerator,
            processors: self.options.processors,
            guests: match run.device {
                Device::Wire => 2,
                _ => self.runs.iter().filter(|other| other.is_beside(run)).count(),
            },
            wires: Vec::new(),
            memory: self.options.memory,
            limit: Duration::from_secs(self.options.limit),
        };
        guest.choose(self.cache)?;
        Ok(guest)
    }

    /// The folder of the workspace's programs, which comes first in `PATH`.
    fn programs(self) -> String {
        plan::programs(self.root).display().to_string()
    }

    /// The first commands of the guest's shell.
    fn prepare(self, run: Run) -> String {
        let (root, programs, device) = (self.root.display(), self.programs(), run.device_name());
        let begin = format!("cd '{root}'; ulimit -l unlimited; . /out/guest.sh\nexport PATH='{programs}':$PATH\n");
        if run.device == Device::Wire {
            return begin;
        }
        begin + &format!("export RDMA_TEST_DEVICE={device}0 RDMA_DEVICE={device}0\ndevice {device} || exit 1\n")
    }

    /// Runs a plan on the software device, without a guest.
    fn on_this_machine(self, run: Run, out: &Path) -> Result<(), String> {
        let (mut bash, make) = if run.device == Device::Hosts {
            let folder = out.join("hosts");
            system::make(&folder)?;
            let mut bash = hosts::bash();
            bash.env("HOSTS", folder);
            (bash, ". tests/vm/namespaces.sh && make_hosts \"$HOSTS\" || exit;")
        } else {
            (Command::new("bash"), "")
        };
        bash.args(["-c", &format!("PATH=$PROGRAMS:$PATH; . \"$OUT\"/guest.sh; {make} run")]);
        bash.current_dir(self.root).env("OUT", out).env("PROGRAMS", self.programs());
        let status = bash.envs([("RDMA_TEST_DEVICE", "soft0"), ("RDMA_DEVICE", "soft0")]).status();
        let status = status.map_err(|error| format!("cannot run {:?}: {error}", bash.get_program()))?;
        if status.success() { Ok(()) } else { Err("the tests' shell failed".into()) }
    }
}

/// Puts the guest's script into the folder that is `/out` in the guest, which is made.
fn copy_script(root: &Path, out: &Path) -> Result<(), String> {
    system::make(out)?;
    let script = root.join("tests/vm/guest.sh");
    fs::copy(&script, out.join("guest.sh")).map(drop).map_err(system::at(&script))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn named(devices: &[Device], kernels: &[Kernel]) -> Vec<(String, String)> {
        runs(devices, kernels).into_iter().map(|run| (run.device_name(), run.kernel_name())).collect()
    }

    fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
        pairs.map(|(device, kernel)| (device.into(), kernel.into())).into()
    }

    #[test]
    fn each_driver_runs_on_each_kernel_and_the_software_device_once() {
        use Device::{All, Rxe, Siw};
        let both = [Kernel::V6_1, Kernel::V7_2];
        assert_eq!(
            named(&[All], &both),
            pairs([
                ("soft", "host"),
                ("hosts", "host"),
                ("rxe", "6.1"),
                ("siw", "6.1"),
                ("wire", "6.1"),
                ("rxe", "7.2"),
                ("wire", "7.2")
            ])
        );
        assert_eq!(named(&[Rxe, Rxe], &[Kernel::V6_1; 2]), pairs([("rxe", "6.1")]));
        // A device that was given by name is never skipped silently.
        assert_eq!(named(&[Siw], &both[1..]), pairs([("siw", "7.2")]));
    }

    #[test]
    fn the_software_device_runs_beside_the_first_guests() {
        let runs = runs(&[Device::All], &[Kernel::V6_1, Kernel::V7_2]);
        let groups: Vec<Vec<_>> =
            groups(&runs).map(|group| group.iter().map(|run| run.device_name()).collect()).collect();
        assert_eq!(groups, [vec!["soft", "hosts", "rxe", "siw"], vec!["wire"], vec!["rxe"], vec!["wire"]]);
    }

    #[test]
    fn a_guests_shell_finds_the_workspaces_programs() {
        #[derive(Parser)]
        struct Cli {
            #[command(flatten)]
            options: Options,
        }
        let options = Cli::parse_from(["vm", "--shell", "pingpong"]).options;
        let run = Run { device: Device::Rxe, kernel: Some(Kernel::V6_1) };
        let root = Path::new("/workspace");
        let session = Session { options: &options, runs: &[run], root, cache: root, flaky: &List::default() };
        let commands = session.prepare(run);
        assert!(commands.contains("export PATH='/workspace/target/vm/programs':$PATH\n"), "{commands}");
    }
}
