//! TCP for ranks that share neither memory nor hardware: the addresses and the key of the software
//! device's links between hosts, which the ranks of a job settle before they open their devices.
//!
//! A rank listens for other hosts if `RDMA_SOFT_TCP` names an address or an interface. With `auto`,
//! it is the interface by which the rank has reached rank 0. A job that asks for
//! [`Transport::Tcp`] needs no variable: its ranks then listen as with `auto`, and ranks of one
//! host, which have met by loopback or a Unix socket, at a loopback address of each process's own.
//!
//! The key is that of `RDMA_SOFT_KEY`. Rank 0 can make one and hand it out over the connections of
//! the group instead, if the program says that these can be trusted: whoever reads them can connect
//! to each rank. Ranks of one host and one user that have met by Unix sockets get such a key in any
//! case, for which nobody else is asked.

#[cfg(feature = "soft")]
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
#[cfg(feature = "soft")]
use std::sync::OnceLock;

#[cfg(feature = "soft")]
use rdma::soft::tcp::{self, Address, Key};
use rdma::{Device, DeviceSelector};
#[cfg(feature = "soft")]
use serde::{Deserialize, Serialize};

use crate::adapter::Adapter;
use crate::bootstrap::Group;
use crate::error::Error;
use crate::transport::Transport;
use crate::ways;

/// Port of the addresses that no variable gives.
#[cfg(feature = "soft")]
const PORT: u16 = 4791;

/// What a rank needs to listen.
#[cfg(feature = "soft")]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Need {
    /// Whether it is to listen, and does not do so yet.
    is_to_listen: bool,
    /// Whether it has a key.
    has_key: bool,
    /// Whether its program trusts the connections of the group.
    trusts: bool,
    /// Whether it listens with a key that an earlier group has handed out.
    has_handed: bool,
}

/// The key that a group has handed out to this process, which listens with it.
#[cfg(feature = "soft")]
static HANDED_OUT: OnceLock<Key> = OnceLock::new();

/// The software device, whose links over TCP these are: `soft0`, unless it has another name.
#[must_use]
pub fn device_name() -> String {
    let devices = Device::list().unwrap_or_default();
    let name = devices.iter().find(|device| device.is_software()).map(Device::name);
    name.unwrap_or_else(|| "soft0".to_owned())
}

pub(crate) fn device() -> DeviceSelector {
    DeviceSelector::Named { name: device_name(), port: None }
}

/// Lets the ranks that need it listen for each other, as `transport` and the environment say;
/// collective. The call comes before the ranks open their devices, as in
/// [`CommunicatorBuilder::open`](crate::CommunicatorBuilder::open); a process that listens already
/// goes on with its address and its key.
///
/// `is_trusted` says that nobody else can read the connections of the group, so that a key may be
/// handed out over them: by rank 0, or by a rank that listens with a key from an earlier group.
/// That happens if a rank has none, and the group's notices say it. Ranks on several hosts that say
/// it all listen, without `RDMA_SOFT_TCP`, too.
///
/// # Errors
/// If a rank is to listen and has no key, or cannot listen; every rank is told.
#[cfg(feature = "soft")]
pub fn listen(group: &mut Group, transport: Transport, is_trusted: bool) -> Result<(), Error> {
    let environment = Address::from_environment().map_err(refused);
    let environment = group.agree("the addresses of the environment", environment)?;
    let is_asked = transport == Transport::Tcp || (is_trusted && !group.is_on_one_machine());
    let is_to_listen = (environment.is_some() || is_asked) && tcp::status().is_none();
    let key = if is_to_listen { Key::from_environment().map_err(refused) } else { Ok(None) };
    let key = group.agree("the keys of the environment", key)?;
    let has_handed = !is_to_listen && HANDED_OUT.get().is_some();
    let need = Need { is_to_listen, has_key: key.is_some(), trusts: is_trusted, has_handed };
    let needs = group.all_gather("how the ranks listen", &need)?;
    if !needs.iter().any(|need| need.is_to_listen) {
        return Ok(());
    }
    let without = needs.iter().position(|need| need.is_to_listen && !need.has_key);
    let key = match without {
        None => key,
        Some(without) => hand_out(group, &needs, without)?,
    };
    // A rank that has reached rank 0 on its own host has no better address than rank 0.
    let addresses = group.all_gather("the addresses of the ranks", &group.address())?;
    let own = addresses[group.rank()].filter(|ip| !ip.is_loopback());
    let of_rank_0 = addresses[0].filter(|_| group.shares_space(0, group.rank()));
    let address = match environment {
        Some(address) if !address.is_auto() => address,
        None if group.is_on_one_machine() => SocketAddr::new(own_loopback(), PORT).into(),
        auto => {
            let port = auto.as_ref().map_or(PORT, Address::port);
            match own.or(of_rank_0) {
                Some(ip) => SocketAddr::new(ip, port).into(),
                None => "auto".parse::<Address>().map_err(refused)?.with_port(port),
            }
        }
    };
    let listening = match key.filter(|_| is_to_listen) {
        Some(key) => tcp::listen(address, key.clone()).map_err(refused).map(|_| {
            if without.is_some() {
                // An earlier one is that of a listening that failed.
                let _set = HANDED_OUT.set(key);
            }
        }),
        None => Ok(()),
    };
    group.agree("the addresses at which the ranks listen", listening)
}

/// Without the software device, there are no links over TCP.
///
/// # Errors
/// If `transport` asks for them.
#[cfg(not(feature = "soft"))]
pub fn listen(_group: &mut Group, transport: Transport, _is_trusted: bool) -> Result<(), Error> {
    match transport {
        Transport::Tcp => Err(Error::invalid("TCP needs the software device: build with feature soft")),
        _ => Ok(()),
    }
}

/// The way in which the ranks of a group reach each other without shared memory: [`route`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Whether two of the ranks need the software device in place of their own devices.
    pub is_fallback: bool,
    /// Whether messages between two of the ranks go over TCP.
    pub is_tcp: bool,
    /// The reason why two ranks lack hardware: `rank 1 has no hardware`. `None` if all do, and if
    /// all have chosen the software device of one host.
    pub why: Option<String>,
}

/// Finds how the devices of ranks connect them that use verbs alone; collective, after [`listen`].
/// The answer is the same at each rank.
///
/// # Errors
/// If nothing connects two of the ranks; every rank is told.
pub fn route(adapter: &Adapter, group: &mut Group) -> Result<Route, Error> {
    let others: Vec<usize> = (0..group.ranks()).filter(|&rank| rank != group.rank()).collect();
    let ways = ways::choose(adapter, group, &others, Transport::Auto)?;
    Ok(Route { is_fallback: ways.has_fallback, is_tcp: ways.tcp > 0, why: ways.why })
}

/// Hands out a key, if that is trusted: the one with which the lowest rank listens that has been
/// handed one before, else a new one of rank 0; collective.
#[cfg(feature = "soft")]
fn hand_out(group: &mut Group, needs: &[Need], without: usize) -> Result<Option<Key>, Error> {
    let are_private = !group.all_gather("the kinds of connections", &group.is_private())?.contains(&false);
    if let Some(distrusts) = needs.iter().position(|need| !need.trusts).filter(|_| !are_private) {
        let (without, distrusts) = (group.member(without), group.member(distrusts));
        return Err(Error::invalid(format!(
            "rank {without} is to listen for other hosts and has no key: set RDMA_SOFT_KEY at every rank to a file of \
             at least 32 random bytes that only its owner may read; or, if nobody else can read the connections to \
             rank 0, let it hand out a key over them (--job-key or RDMA_JOB_KEY=1 of a program, \
             CommunicatorBuilder::job_key), which rank {distrusts} does not say"
        )));
    }
    if let Some(other) = needs.iter().position(|need| !need.is_to_listen) {
        let text = format!("rank {} does not take a key that rank 0 hands out", group.member(other));
        tracing::debug!("{text}: it listens already, or is not to");
    }
    let has_handed = needs.iter().position(|need| need.has_handed);
    let giver = has_handed.unwrap_or(0);
    let key = match (group.rank() == giver, HANDED_OUT.get().filter(|_| has_handed.is_some())) {
        (false, _) => Ok(None),
        (true, Some(key)) => Ok(Some(key.clone())),
        (true, None) => Key::random().map(Some),
    };
    let key = group.agree("the key of the job", key.map_err(refused))?;
    if key.is_some() && !are_private {
        (group.notices())(&format!(
            "rank {} hands out a key for TCP over the connections of the job: who can read these can connect to its ranks",
            group.member(giver)
        ));
    }
    let keys = group.all_gather("the key of the job", &key.map(|key| key.to_bytes()))?;
    let no_key = || Error::new(format!("rank {giver} hands out no key"));
    let bytes = keys.into_iter().nth(giver).flatten().ok_or_else(no_key)?;
    Key::from_bytes(&bytes).map(Some).map_err(refused)
}

#[cfg(feature = "soft")]
fn refused(error: tcp::Error) -> Error {
    Error::invalid(error.to_string())
}

/// A loopback address that no other process of this pid namespace takes, nor the devices of
/// `RDMA_SOFT_DEVICES`: Linux numbers processes with up to 22 bits.
#[cfg(feature = "soft")]
fn own_loopback() -> IpAddr {
    Ipv4Addr::from_bits(0x7f40_0000 | (std::process::id() & 0x3f_ffff)).into()
}

#[cfg(test)]
#[cfg(feature = "soft")]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_loopback_address() {
        let IpAddr::V4(own) = own_loopback() else { panic!("{}", own_loopback()) };
        assert!(own.is_loopback() && own.octets()[1] >= 64, "{own}");
        assert_eq!(own.to_bits() & 0x3f_ffff, std::process::id());
    }
}
