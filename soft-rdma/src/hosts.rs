//! `--tcp` and `--key`: programs on other hosts.

use std::net::{SocketAddr, TcpListener};
use std::path::absolute;
use std::process::Command;

use rdma::soft::tcp::{self, Address, Key, Status};

use super::Options;
use crate::failure::Failure;

/// The variables with the address, with the file of the key, and with a descriptor of it.
const TCP: &str = "RDMA_SOFT_TCP";
const KEY: &str = "RDMA_SOFT_KEY";
const KEY_FD: &str = "RDMA_SOFT_KEY_FD";

/// Whether the options choose an address or a key. What they leave out is the environment's.
pub(super) fn are_given(options: &Options) -> bool {
    options.tcp.is_some() || options.key.is_some()
}

/// The address, of the options or the environment.
fn address(options: &Options) -> Result<Address, Failure> {
    let address = options.tcp.clone().map_or_else(Address::from_environment, |address| Ok(Some(address)));
    let missing = || Failure::usage(format!("--key without --tcp: give the address, or set {TCP}"));
    address.map_err(|error| Failure::usage(error.to_string()))?.ok_or_else(missing)
}

fn resolved(address: &Address) -> Result<SocketAddr, Failure> {
    address.resolve().map_err(|error| Failure::usage(error.to_string()))
}

/// The key, of the options or the environment.
fn key(options: &Options) -> Result<Key, Failure> {
    let key = match &options.key {
        Some(path) => Key::read(path).map(Some),
        None => Key::from_environment(),
    };
    key.map_err(|error| Failure::usage(error.to_string()))?
        .ok_or_else(|| Failure::usage(format!("--tcp needs a key: give --key FILE, or set {KEY}")))
}

/// Checks the address and the key before the program starts, which would hear `EINVAL`.
pub(super) fn check(options: &Options) -> Result<(), Failure> {
    let at = resolved(&address(options)?)?;
    // At any port: processes of this user share theirs.
    if let Err(error) = TcpListener::bind((at.ip(), 0)) {
        return Err(Failure::usage(format!("this host cannot listen at {}: {error}", at.ip())));
    }
    // The descriptor may be a pipe, whose bytes are for the program.
    let is_descriptor = options.key.is_none() && std::env::var_os(KEY_FD).is_some_and(|number| !number.is_empty());
    if is_descriptor { Ok(()) } else { key(options).map(drop) }
}

/// Gives a program the variables with the address and the key.
pub(super) fn prepare(options: &Options, command: &mut Command) {
    command.envs(options.tcp.as_ref().map(|address| (TCP, address.to_string())));
    if let Some(path) = &options.key {
        // The program may work in another folder.
        command.env(KEY, absolute(path).unwrap_or_else(|_| path.clone())).env_remove(KEY_FD);
    }
}

/// Listens as the program would, and says how other hosts are reached, or what is in the way.
pub(super) fn outcome(options: &Options) -> (bool, String) {
    let listens = if are_given(options) {
        address(options).and_then(|address| {
            tcp::listen(address, key(options)?).map(|_| tcp::status()).map_err(|error| Failure::new(error.to_string()))
        })
    } else {
        tcp::listen_from_environment().map_err(|error| Failure::new(error.to_string()))
    };
    match listens {
        Ok(Some(Status { address, key, fingerprint, .. })) => {
            let text = format!(
                "reached over TCP at {address} by those with the key of {key} (fingerprint {fingerprint}); a firewall on \
                 the way cannot be seen from here"
            );
            (true, text)
        }
        Ok(None) => (true, format!("not reached: --tcp ADDRESS --key FILE, or {TCP} and {KEY}, join several hosts")),
        Err(failure) => (false, failure.to_string()),
    }
}
