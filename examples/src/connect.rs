//! The options that say how queue pairs are connected.

use std::net::IpAddr;

use rdma_collectives::bootstrap::Group;
use rdma_collectives::connect::{Method, Wanted};

use crate::Failure;
use crate::address::resolve;
use crate::device::{Chosen, announce};

/// The options that say how to connect; the same in every program.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = crate::cli::TRANSPORT)]
pub struct ConnectionOptions {
    /// Connect by the connection manager (rdma_cm), as iWARP always does
    #[arg(short = 'R', long, visible_alias = "rdma_cm")]
    pub cm: bool,
    /// Our address for the connection manager (default: one that leads to the device)
    ///
    /// Each connection has a port of its own; one behind the address is accepted and not used.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = own_address, hide_short_help = true)]
    pub cm_address: Option<IpAddr>,
}

impl ConnectionOptions {
    /// Whether the options ask for the connection manager.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.cm || self.cm_address.is_some()
    }

    fn wanted(&self) -> Wanted {
        Wanted { manager: self.cm, address: self.cm_address }
    }

    /// Agrees on a method; collective. If any rank's device is iWARP, all ranks take the connection
    /// manager, and rank `speaker` announces it.
    ///
    /// # Errors
    /// If a rank has no address for the connection manager.
    pub fn settle(
        &self,
        chosen: &Chosen,
        group: &mut Group,
        speaker: usize,
        stdout_taken: bool,
    ) -> Result<Method, Failure> {
        let settled = self.wanted().settle(&chosen.adapter, group).map_err(|error| self.named(error.into()))?;
        if settled.is_forced && group.rank() == speaker {
            announce("iWARP connects by the connection manager only: as with --cm", stdout_taken)?;
        }
        Ok(settled.method)
    }

    /// The method for another device of this rank than the one that was [settled](Self::settle).
    ///
    /// # Errors
    /// If the device cannot connect by this method.
    pub fn method_for(&self, chosen: &Chosen, settled: Method) -> Result<Method, Failure> {
        self.wanted().method_for(&chosen.adapter, settled).map_err(|error| self.named(error.into()))
    }

    /// Names the option that a failure may be due to.
    fn named(&self, failure: Failure) -> Failure {
        match self.cm_address {
            Some(ip) => failure.context(format_args!("--cm-address {ip}")),
            None => failure,
        }
    }
}

/// Parses an address of this host, whose port says nothing.
fn own_address(text: &str) -> Result<IpAddr, String> {
    resolve(text, 0).map(|address| address.ip()).map_err(|failure| failure.to_string())
}
