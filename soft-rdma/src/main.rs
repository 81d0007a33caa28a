//! `soft-rdma`: the launcher of programs that use libibverbs or librdmacm.
//!
//! The launcher carries the drop-in library, puts it into a folder of the user under the names that
//! programs load, and becomes the program: exit status and signals are the program's.
//!
//! Files: `library` puts the drop-in library into a folder of the user, `copies` stands in for
//! renamed libraries, `check` is `--check`, `sysfs` is `--sysfs` (`tree` describes the files of the
//! devices, `namespace` finds or makes the namespaces, `link` answers `rdma link show`), `hosts` is
//! `--tcp` and `--key`, `failure` ends the launcher.
#![forbid(unsafe_code)]

mod check;
mod copies;
mod failure;
mod hosts;
mod library;
mod sysfs;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use rdma::Variable;
use rdma::soft::faults::{self, FaultPlan, ParseFaultError};
use rdma::soft::tcp::Address;
use rdma_soft_dropin::{IBVERBS, RDMACM};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer as printer;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use failure::{Failure, parse};
use library::Library;

/// The dynamic loader's list of folders.
const PATH: &str = "LD_LIBRARY_PATH";

/// The dynamic loader's list of libraries to load before all others.
const PRELOAD: &str = "LD_PRELOAD";

/// The variable with what a program without a log of its own prints.
const LOG: &str = "RDMA_SOFT_LOG";

/// The variable with the level of the log, or with levels by module.
const RUST_LOG: &str = "RUST_LOG";

/// The variable with the number of devices.
const COUNT: &str = "RDMA_SOFT_DEVICES";

/// The variable with the names of the devices.
const NAMES: &str = "RDMA_SOFT_NAMES";

/// The levels of the log.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// This program's file.
const SELF: &str = "/proc/self/exe";

/// Runs a program on the software RDMA device: without a NIC, a kernel module or root.
///
/// The program gets a libibverbs.so.1 and a librdmacm.so.1 that have the device soft0; so do the
/// programs that it starts. Programs under this launcher, and those over the Rust crate rdma-verbs,
/// reach each other if one user runs them on one host, in one container: in one network, pid and
/// user namespace; with --tcp also on several hosts, in several containers, and of several users.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples: soft-rdma ibv_devinfo; soft-rdma ib_send_lat & soft-rdma ib_send_lat localhost;\n\
                  soft-rdma --fault 'delay=1ms:p=0.1; loss=all:nth=1000' ib_send_bw localhost;\n\
                  on each of two hosts: soft-rdma --tcp eth0 --key job.key ibv_rc_pingpong -g 0 [10.0.0.1],\n\
                  with the same file job.key: head -c 32 /dev/urandom | base64 >job.key; chmod 600 job.key\n\n\
                  Exit status and signals are the program's; 1 if it cannot be started, 2 for invalid arguments."
)]
struct Options {
    /// Say what does not work here, and why, instead of running the program
    #[arg(long)]
    check: bool,
    /// Number of devices: soft0, soft1 ...
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    devices: Option<u8>,
    /// Names of the devices, separated by commas, in place of soft0, soft1 ...: for programs that
    /// insist on a name, such as mlx5_0
    #[arg(long, value_name = "NAMES", value_parser = names)]
    device_name: Option<String>,
    /// The link layer that the program sees: infiniband for programs that address by LID
    #[arg(long, value_name = "LAYER")]
    link_layer: Option<LinkLayer>,
    /// Reach programs on other hosts over TCP: the address of this host at which they reach this
    /// one, as an address, a network interface (eth0), or auto; with a port or without (4791). The
    /// programs of a job have one key and one port [env: RDMA_SOFT_TCP]
    #[arg(long, value_name = "ADDRESS|INTERFACE")]
    tcp: Option<Address>,
    /// The file with the key of --tcp: at least 32 random bytes that nobody but its owner may read
    /// [env: RDMA_SOFT_KEY]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Faults that the program's requests meet; `help` explains what can be given
    #[arg(long, value_name = "PLAN")]
    fault: Option<FaultOption>,
    /// Show the devices in /sys/class/infiniband and /dev/infiniband, where UCX, Open MPI,
    /// Mooncake and pyverbs look for them. Not root: all programs of a job need this option, and
    /// sudo does not work in them
    #[arg(long)]
    sysfs: bool,
    /// Load the library before all others, for packages that carry a libibverbs under another
    /// name, as Python wheels do
    #[arg(long)]
    preload: bool,
    /// Do not print why a link to another program was refused or has failed
    #[arg(long, conflicts_with = "log")]
    quiet: bool,
    /// Print the log on standard error, down to this level; so does the program [env: RUST_LOG]
    #[arg(long, value_name = "LEVEL", value_parser = LEVELS, hide_short_help = true)]
    log: Option<String>,
    /// Print the files of `--sysfs`, for the launcher
    #[arg(long, hide = true)]
    print_sysfs: bool,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        value_name = "PROGRAM",
        required_unless_present_any = ["check", "fault", "print_sysfs"]
    )]
    program: Vec<OsString>,
}

/// The link layer of the devices: the values of `RDMA_SOFT_LINK_LAYER`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LinkLayer {
    /// RoCE v2, with a GID for each IPv4 address of the host
    Ethernet,
    /// LIDs, and one GID
    Infiniband,
}

/// The value of `--fault`.
#[derive(Clone, Debug)]
enum FaultOption {
    Help,
    Plan(FaultPlan),
}

impl FromStr for FaultOption {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, ParseFaultError> {
        if text == "help" { Ok(Self::Help) } else { text.parse().map(Self::Plan) }
    }
}

fn main() -> ExitCode {
    if sysfs::link::is_called() {
        return sysfs::link::run().map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS);
    }
    let library = Library { bytes: rdma_soft_dropin_embed::library!(), names: [IBVERBS, RDMACM] };
    match parse().and_then(|options| options.map_or(Ok(()), |options| run(&options, &library))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Becomes the program, or checks what would not work.
fn run(options: &Options, library: &Library) -> Result<(), Failure> {
    print_log(options.log.as_deref())?;
    if let Some(FaultOption::Help) = options.fault {
        writeln!(std::io::stdout(), "{}", faults::HELP)?;
        return Ok(());
    }
    if options.print_sysfs {
        return sysfs::print();
    }
    options.check_names()?;
    let folder = library.place()?;
    let mut path = folder.clone().into_os_string();
    if let Some(others) = std::env::var_os(PATH).filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    if options.check {
        return check::run(options, &path, library);
    }
    let Some((program, arguments)) = options.program.split_first() else {
        return Err(Failure::usage("no program is given"));
    };
    // The program would hear `EINVAL`.
    let are_given = hosts::are_given(options);
    if are_given {
        hosts::check(options)?;
    }
    // The options take the place of these variables, which the check would judge.
    if !are_given || std::env::var_os("RDMA_SOFT_TCP").is_none() {
        rdma_soft::check_environment().map_err(invalid)?;
    }
    if options.sysfs {
        sysfs::enter(options.prepare(&mut Command::new(SELF)).arg("--print-sysfs"), &library::lock())?;
    }
    let mut command = Command::new(program);
    options.prepare(&mut command).args(arguments).env(PATH, path);
    if options.sysfs {
        // The program may never call `rdma`.
        match sysfs::link::path(&folder) {
            Ok(path) => _ = command.envs(path.map(|path| ("PATH", path))),
            Err(error) => Failure::from(error).context("`rdma link` shows no software device").warn(),
        }
    }
    if options.preload {
        // A name, because the list ends a path at a space.
        let others = std::env::var_os(PRELOAD).unwrap_or_default();
        let mut libraries = OsString::from(library.names[0]);
        libraries.push(":");
        libraries.push(others);
        command.env(PRELOAD, libraries);
    }
    if let Some(FaultOption::Plan(plan)) = &options.fault {
        command.env(faults::VARIABLE, plan.to_string());
    }
    let error = command.exec();
    let program = Path::new(program).display();
    Err(Failure::new(format!("{program}: {error}; give the path of a program, or the name of one in PATH")))
}

impl Options {
    /// What the program prints of the device's log, for [`LOG`]; `None` if the environment says.
    fn log(&self) -> Option<String> {
        let level = self.log.clone().or_else(|| std::env::var(RUST_LOG).ok().filter(|value| is_level(value)));
        match level {
            _ if self.quiet => Some("off".into()),
            Some(level) => Some(level),
            None => std::env::var_os(LOG).is_none_or(|value| value.is_empty()).then(|| "links".into()),
        }
    }

    /// The names that `--device-name` lists.
    fn device_names(&self) -> Option<Vec<String>> {
        Some(self.device_name.as_ref()?.split(',').map(str::to_owned).collect())
    }

    /// Whether there is a name for each device: options and the environment both have a say.
    fn check_names(&self) -> Result<(), Failure> {
        let set = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        match (&self.device_name, self.devices) {
            (Some(names), devices) => rdma_soft::check_device_names(names, devices)
                .map_err(|_| Failure::usage("--device-name and --devices: give a name for each device")),
            (None, Some(devices)) => {
                set(NAMES).map_or(Ok(()), |names| rdma_soft::check_device_names(&names, Some(devices))).map_err(invalid)
            }
            (None, None) => Ok(()),
        }
    }

    /// Gives a program the variables that choose its devices and its log.
    fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.log().map(|level| (LOG, level)));
        command.envs(self.devices.map(|count| (COUNT, count.to_string())));
        if let Some(names) = &self.device_name {
            command.env(NAMES, names).env(COUNT, names.split(',').count().to_string());
        }
        hosts::prepare(self, command);
        command.envs(self.link_layer.map(|layer| ("RDMA_SOFT_LINK_LAYER", format!("{layer:?}").to_lowercase())))
    }
}

/// Checks the value of `--device-name`.
fn names(text: &str) -> Result<String, String> {
    match rdma_soft::check_device_names(text, None) {
        Ok(()) => Ok(text.to_owned()),
        Err(rule) => Err(format!("it may be {}", rule.values)),
    }
}

/// A variable with a value that the device does not take.
fn invalid(variable: &'static Variable) -> Failure {
    Failure::usage(rdma::ErrorKind::InvalidVariable(variable).to_string())
}

/// Whether a value of `RUST_LOG` is a level, and no list of modules.
fn is_level(value: &str) -> bool {
    value == "off" || LEVELS.contains(&value)
}

/// Prints the launcher's own log events of a level, or those that [`RUST_LOG`] asks for.
fn print_log(level: Option<&str>) -> Result<(), Failure> {
    let variable = std::env::var(RUST_LOG).ok().filter(|value| !value.is_empty());
    let Some(asked_for) = level.or(variable.as_deref()) else { return Ok(()) };
    let filter: Targets = asked_for.parse().map_err(|error| {
        Failure::usage(format!("{RUST_LOG} is {asked_for:?} in the environment: {error}; correct it, or unset it"))
    })?;
    tracing_subscriber::registry().with(printer().with_writer(std::io::stderr).with_filter(filter)).init();
    Ok(())
}
