//! `cargo xtask vm`: the device tests and the programs on a kernel's own RDMA devices, in a virtual machine.
//!
//! The guest is a Debian kernel with the host's files, read-only, and Debian's RDMA user space over them, so what cargo has just
//! built runs there from where it lies.

mod guest;
mod kernel;
mod plan;
mod report;
mod tools;

use std::{fs, time::Duration};

use crate::apt;
use guest::{Accelerator, Guest};
use kernel::Kernel;
use report::Report;

/// With no option: everything, on rxe and Linux 6.1.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The kernel's series.
    #[arg(long, value_enum, default_value = "6.1")]
    kernel: Kernel,
    /// The kernel's driver.
    #[arg(long, value_enum, default_value = "rxe")]
    device: Device,
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
    #[arg(long, default_value_t = 900, value_name = "SECONDS")]
    limit: u64,
    /// Leave the programs out.
    #[arg(long)]
    no_programs: bool,
    /// Run what the list of known faults names, too.
    #[arg(long)]
    known_faults: bool,
    /// Run this shell command in the guest, with the device made, instead of the tests.
    #[arg(long, value_name = "COMMAND")]
    shell: Option<String>,
    /// Run only what has one of these in its name.
    #[arg(last = true, value_name = "FILTER")]
    filters: Vec<String>,
}

/// A driver of the kernel that needs no hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Device {
    /// RoCE version 2.
    Rxe,
    /// iWARP.
    Siw,
}

impl Device {
    fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    tools::check(options.device == Device::Siw)?;
    let root = crate::root();
    let (series, device) = (options.kernel.series(), options.device.name());
    let mut items = Vec::new();
    let mut excluded = Vec::new();
    if options.shell.is_none() {
        items = plan::tests(&root)?;
        if !options.no_programs {
            items.extend(plan::programs(&root)?);
        }
        if !options.known_faults {
            excluded = plan::exclude(&mut items, &root.join(format!("tests/vm/exclude-{series}-{device}.txt")))?;
        }
        let filters = &options.filters;
        items.retain(|item| filters.is_empty() || filters.iter().any(|filter| item.name.contains(filter)));
        if items.is_empty() {
            return Err("no test has such a name".into());
        }
    }

    let image = kernel::image(&root, options.kernel, options.device == Device::Siw)?;
    let cache = root.join("target/vm");
    let out = cache.join(format!("run-{series}-{device}"));
    if out.exists() {
        fs::remove_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    apt::make(&out)?;
    fs::copy(root.join("tests/vm/guest.sh"), out.join("guest.sh")).map_err(|error| format!("guest.sh: {error}"))?;
    apt::write(out.join("plan"), &plan::lines(&items))?;
    let mut guest = Guest {
        image: &image,
        out: &out,
        accelerator: options.accelerator,
        processors: options.processors,
        memory: options.memory,
        limit: Duration::from_secs(options.limit),
    };
    guest.choose(&cache)?;

    let prepare = format!(
        "cd '{}'; ulimit -l unlimited; . /out/guest.sh\n\
         export RDMA_TEST_DEVICE={device}0 RDMA_DEVICE={device}0\n\
         device {device} || exit 1\n",
        root.display()
    );
    if let Some(command) = &options.shell {
        let status = out.join("status");
        guest.run(&format!("{prepare}( {command}\n)\necho $? >/out/status\n"))?;
        return match fs::read_to_string(status).as_deref().map(str::trim) {
            Ok("0") => Ok(()),
            Ok(status) => Err(format!("the command's status is {status}")),
            Err(_) => Err("the device could not be made".into()),
        };
    }
    let ended = guest.run(&format!("{prepare}run\n"));
    let mut report = Report::read(&out, items.len());
    report.excluded = excluded;
    let complaints: Vec<_> = ["BUG:", "Oops", "WARNING:"]
        .into_iter()
        .flat_map(|word| {
            guest.console().lines().filter(|line| line.contains(word)).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    for line in &complaints {
        println!("kernel: {}", line.trim());
    }
    report.conclude(device, series, ended)
}
