//! Shows the RDMA devices of this machine, hardware and the software device, as `ibv_devinfo -v`
//! does.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use rdma::{Device, HardwareAbsence};
use rdma_examples::device::{DeviceList, Wanted};
use rdma_examples::devinfo::{self, Report};
use rdma_examples::{Failure, cli};
use serde_json::json;

/// Shows the RDMA devices of this machine.
#[derive(Parser)]
#[command(version, args_override_self = true, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {
    /// Show only this device, or one port of it: soft0, mlx5_0, mlx5_0:1, any, hardware; or the
    /// devices of a list: mlx5_0,mlx5_1, ^mlx5_1, =mlx5_1
    #[arg(short, long, value_name = "NAME")]
    #[arg(help_heading = cli::WHAT)]
    device: Option<String>,
    /// Show only names
    #[arg(short, long)]
    #[arg(help_heading = cli::WHAT)]
    list: bool,
    /// Show only the most important values
    #[arg(short, long)]
    #[arg(help_heading = cli::WHAT)]
    brief: bool,
    /// Say why there is no hardware, whether soft0 reaches other hosts, and what would help
    #[arg(long)]
    #[arg(help_heading = cli::WHAT)]
    why: bool,
    /// Print JSON
    #[arg(short = 'J', long)]
    #[arg(help_heading = cli::OUTPUT)]
    json: bool,
}

fn main() -> ExitCode {
    rdma_examples::run("devinfo", run)
}

fn run(args: Args) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if args.why {
        return why(&mut out, args.json);
    }
    let mut devices = Device::list()?;
    let mut only_port = None;
    if let Some(text) = &args.device {
        match text.parse().map_err(|e| Failure::usage(format!("--device: {e}")))? {
            Wanted::Any => {}
            Wanted::Hardware => devices.retain(|device| !device.is_software()),
            Wanted::Listed(list) => {
                only_port = list.single().and_then(|(_, port)| port);
                devices = listed(devices, &list)?;
            }
        }
    }
    if devices.is_empty() {
        return Err(Failure::new("there is no device; devinfo --why says why"));
    }
    if args.list {
        for device in &devices {
            writeln!(out, "{}", device.name())?;
        }
        return Ok(());
    }
    let reports = devices.iter().map(|device| Report::of(device, only_port)).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        let all: Vec<_> = reports.iter().map(Report::to_json).collect();
        writeln!(out, "{:#}", json!({ "devices": all, "path": devinfo::path_to_json() }))?;
        return Ok(());
    }
    for report in &reports {
        report.print(&mut out, !args.brief)?;
    }
    devinfo::print_path(&mut out, !args.brief)?;
    if devices.iter().all(Device::is_software) {
        writeln!(out, "No hardware; devinfo --why says why.")?;
    }
    Ok(())
}

/// The devices of a list; of a single name, only the device with just this name if there is one.
fn listed(mut devices: Vec<Device>, list: &DeviceList) -> Result<Vec<Device>, Failure> {
    let names: Vec<String> = devices.iter().map(Device::name).collect();
    let whole = list.single().filter(|(name, _)| names.iter().any(|known| known == name));
    devices.retain(|device| whole.map_or_else(|| list.allows_some(&device.name()), |(name, _)| device.name() == name));
    if devices.is_empty() {
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(Failure::new(format!("there is no device {list}; there is {known}")));
    }
    Ok(devices)
}

/// A text whose parts each stand once: the reason of the system may begin with the path that was
/// named before it.
fn once(text: &str) -> String {
    let parts: Vec<&str> = text.split(": ").collect();
    let is_new = |at: usize| at == 0 || !parts[at - 1].ends_with(parts[at]);
    let parts: Vec<&str> = (0..parts.len()).filter(|&at| is_new(at)).map(|at| parts[at]).collect();
    parts.join(": ")
}

fn why(out: &mut dyn Write, as_json: bool) -> Result<(), Failure> {
    let absence = HardwareAbsence::diagnose();
    let findings = absence.as_ref().map_or(&[][..], HardwareAbsence::findings);
    let (other_hosts, tcp) = devinfo::other_hosts();
    if as_json {
        let findings: Vec<_> =
            findings.iter().map(|f| json!({ "finding": f.to_string(), "remedy": f.remedy() })).collect();
        writeln!(out, "{:#}", json!({ "hardware": absence.is_none(), "findings": findings, "tcp": tcp }))?;
        return Ok(());
    }
    match &absence {
        None => writeln!(out, "There is hardware; devinfo shows it.")?,
        // The findings follow, each with its remedy.
        Some(_) => writeln!(out, "No RDMA hardware:")?,
    }
    for finding in findings {
        writeln!(out, "  {}\n    {}", once(&finding.to_string()), finding.remedy())?;
    }
    writeln!(out, "{other_hosts}")?;
    Ok(())
}
