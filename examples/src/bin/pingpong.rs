//! Measures latency and bandwidth between two processes by message size; prints perftest's tables.
//!
//! Without arguments the program starts both processes. `--server` waits for a client on another
//! terminal or host; the server's address as argument makes a client.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use rdma_collectives::bootstrap::Roles;
use rdma_examples::pingpong::options::{LocalOptions, Options, Sides};
use rdma_examples::pingpong::report_options::ReportOptions;
use rdma_examples::pingpong::{self, compat};
use rdma_examples::{Failure, cli, placement};

/// Latency and bandwidth between two processes, by message size.
///
/// Options that perftest has mean what they mean there, and the tables are perftest's. The other
/// side is a pingpong too: perftest's programs exchange their settings in another way. With
/// --compat, the other side can be rdma-core's ibv_rc_pingpong, ibv_uc_pingpong or
/// ibv_srq_pingpong.
#[derive(Clone, Parser)]
#[command(mut_arg("ack_timeout", |arg| arg.short('u')), mut_arg("service_level", |arg| arg.short('S')))]
#[command(version, args_override_self = true, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {
    #[command(flatten)]
    sides: Sides,
    #[command(flatten)]
    local: LocalOptions,
    #[command(flatten)]
    report: ReportOptions,
    #[command(flatten)]
    options: Options,
    /// Be a peer of rdma-core's ibv_rc_pingpong; see --compat --help
    ///
    /// Or of ibv_uc_pingpong or ibv_srq_pingpong. This mode has options of its own.
    #[arg(long)]
    #[arg(help_heading = cli::WHAT)]
    compat: bool,
}

fn main() -> ExitCode {
    match std::env::args_os().any(|arg| arg == "--compat") {
        true => rdma_examples::run("pingpong", |args| compat::run(&args)),
        false => rdma_examples::run("pingpong", run),
    }
}

fn run(args: Args) -> Result<(), Failure> {
    args.options.validate()?;
    args.report.check(&args.options, args.local.json)?;
    let Some(place) = args.sides.place()? else { return Ok(()) };
    let terms = placement::terms("pingpong", &args.options, Roles::ServerAndClient, args.sides.timeout);
    placement::run(place, &terms, |group| pingpong::run(&args.local, &args.report, &args.options, group))
}
