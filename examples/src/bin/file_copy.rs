//! Copies files and directories over `rdma_net`, and resumes copies that were interrupted.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rdma::aio::block_on;
use rdma_examples::device::Place;
use rdma_examples::failure::say;
use rdma_examples::file_copy::{self, Receiver};
use rdma_examples::service::{self, ServiceOptions};
use rdma_examples::{Failure, address, cli};
use rdma_net::{ListenOptions, Node};
use serde_json::json;

/// Connections of a receiver: those of its senders, and of senders that end or are being refused.
const MAX_CONNECTIONS: u32 = 2 * file_copy::MAX_SENDERS;
/// Time in which a new sender must greet and name its first file.
const FIRST_ORDER: Duration = Duration::from_secs(10);

/// Copies files and directories over RDMA
#[derive(Parser)]
#[command(version, long_about = None, after_long_help = file_copy::HELP)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Port of the receiver; 0 lets a receiver choose a free one
    #[arg(short, long, global = true, value_name = "PORT", default_value_t = file_copy::PORT)]
    #[arg(help_heading = cli::TRANSPORT)]
    port: u16,
    #[command(flatten)]
    service: ServiceOptions,
}

#[derive(Subcommand)]
enum Command {
    /// Receive files until the process is ended. Files, directories and links get the attributes of
    /// the source, whatever the umask, and their owners if this process is root's.
    ///
    /// What an interrupted or failed copy has written stays in folders .file_copy-unfinished,
    /// beside the places of its files, where the next copy of the same files goes on. If no other
    /// will come, remove these folders.
    Serve {
        /// The address to listen on
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: String,
        /// The directory to write to; files of the same names are replaced
        directory: PathBuf,
        /// Seconds after which a sender that sends nothing is disconnected. It sends something
        /// while it compares a long file with an interrupted copy of it
        #[arg(long, value_name = "N", default_value = "60", value_parser = cli::seconds)]
        #[arg(help_heading = cli::WHAT)]
        idle: Duration,
    },
    /// Send files, and directories with all that is in them. A copy that was interrupted goes on
    /// when it is run again
    #[command(after_long_help = file_copy::HELP)]
    Send {
        /// The receiver's address
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: String,
        /// Files and directories. A symbolic link in a directory is copied as a link; of one that
        /// is named here, what it leads to is copied
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    rdma_examples::run("file_copy", run)
}

fn run(args: Args) -> Result<(), Failure> {
    match &args.command {
        Command::Serve { address, directory, idle } => serve(&args, address, directory, *idle),
        Command::Send { address, paths } => send(&args, address, paths),
    }
}

impl Args {
    /// A node whose driver has a thread of its own: the other threads read and write files.
    fn node(&self, connections: u32, place: Place) -> Result<Node, Failure> {
        let (node, driver) = self.service.node(file_copy::node_options(connections), place)?;
        // If it fails, so do all connections, which do not know the reason.
        let drive = || {
            driver.run_blocking().unwrap_or_else(|error| say(&format!("file_copy: {}", Failure::from(error))));
        };
        let driving = thread::Builder::new().spawn(drive);
        driving.map_err(|error| Failure::not_started("the driver's thread", &error))?;
        Ok(node)
    }
}

fn serve(args: &Args, address: &str, directory: &Path, idle: Duration) -> Result<(), Failure> {
    let address = address::resolve(address, args.port)?;
    let receiver = Receiver::open(directory, idle)?;
    let node = args.node(MAX_CONNECTIONS, Place::At(address))?;
    let limits = ListenOptions::new().first_message(FIRST_ORDER.min(idle));
    let listener = service::listen(&node, address, &limits)?;
    args.service.print_address(listener.local_addr())?;
    receiver.serve(listener)
}

fn send(args: &Args, address: &str, paths: &[PathBuf]) -> Result<(), Failure> {
    let receiver = address::resolve(address, args.port)?;
    let node = args.node(1, Place::Towards(receiver))?;
    let summary = block_on(file_copy::send(&node, receiver, paths));
    let summary = summary
        .map_err(|failure| failure.explained(service::EXPLANATION).context(format_args!("copy to {receiver}")))?;
    for line in summary.lines() {
        say(&format!("file_copy: {line}"));
    }
    args.service.print(&json!(summary), &summary.sentence())?;
    summary.complete()
}
