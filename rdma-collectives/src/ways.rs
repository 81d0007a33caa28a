//! The way between each pair of ranks that share no memory: the devices that were chosen, or the
//! software device's links over TCP.
//!
//! The order is NCCL's: hardware if both ranks have the same kind, else TCP. The software device
//! alone connects ranks of one host.
//!
//! Hardware is compared as far as a port tells (`network`): two networks with nothing between them
//! whose ports look alike count as one.

use std::net::SocketAddr;

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::adapter::Adapter;
use crate::bootstrap::Group;
use crate::network::Port;
use crate::text::PeerText;
use crate::transport::Transport;

/// What a rank offers to the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Offer {
    /// The device and its port.
    device: PeerText,
    /// The port of the hardware; `None`: the software device.
    hardware: Option<Port>,
    /// The user: the software device connects processes of one user on one host.
    uid: u32,
    /// Where the rank listens for other hosts.
    tcp: Option<Listening>,
}

/// The address and the key with which the software device reaches other hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Listening {
    address: SocketAddr,
    /// The key's fingerprint.
    key: PeerText,
}

/// Where this process listens for other hosts, if it does.
#[cfg(feature = "soft")]
fn listening() -> Option<Listening> {
    let rdma::soft::tcp::Status { address, fingerprint, .. } = rdma::soft::tcp::status()?;
    Some(Listening { address, key: fingerprint.into() })
}

/// Without the software device, it does not.
#[cfg(not(feature = "soft"))]
fn listening() -> Option<Listening> {
    None
}

/// The way between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// Whether the ranks take the software device because their own devices do not connect them.
    pub(crate) is_fallback: bool,
    /// Whether messages go over TCP.
    pub(crate) is_tcp: bool,
}

/// The ways from this rank to the others.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// The way to each rank to which there is one.
    pub(crate) to: Vec<Option<Way>>,
    /// Whether any pair of the group takes the software device in place of its own devices.
    pub(crate) has_fallback: bool,
    /// The pairs of the group that are connected, and those of them over TCP.
    pub(crate) pairs: usize,
    pub(crate) tcp: usize,
    /// Why a pair takes the software device, and not hardware; equal at all ranks. `None` if all
    /// take hardware, or software devices that share memory.
    pub(crate) why: Option<String>,
}

impl Ways {
    /// The ranks that are reached by the devices that were chosen, or by the software device in
    /// their place.
    pub(crate) fn peers(&self, is_fallback: bool) -> Vec<usize> {
        let is_so = |way: &Option<Way>| way.is_some_and(|way| way.is_fallback == is_fallback);
        (0..self.to.len()).filter(|&rank| is_so(&self.to[rank])).collect()
    }
}

impl Offer {
    fn of(adapter: &Adapter) -> Result<Self, Error> {
        let hardware = match pretended() {
            None if !adapter.context.is_software() => Some(Port::of(adapter)?),
            pretended => pretended,
        };
        Ok(Self { device: adapter.name().into(), hardware, uid: geteuid().as_raw(), tcp: listening() })
    }
}

#[cfg(test)]
thread_local! {
    /// The link layer of the hardware that this rank, a thread, pretends to have.
    pub(crate) static PRETENDED: std::cell::Cell<Option<u8>> = const { std::cell::Cell::new(None) };
}

/// The hardware that a test makes of the software device.
fn pretended() -> Option<Port> {
    #[cfg(test)]
    return PRETENDED.get().map(Port::pretended);
    #[cfg(not(test))]
    None
}

/// How near two ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Near {
    /// They are on two machines, or in two networks of one.
    Apart,
    /// They are in one network namespace of a machine.
    Network,
    /// And in one pid and one user namespace: processes of one user may read each other's memory,
    /// as the software device requires.
    Space,
}

impl Near {
    fn of(group: &Group, a: usize, b: usize) -> Self {
        match (group.shares_network(a, b), group.shares_space(a, b) && group.has_same_users(a, b)) {
            (true, true) => Self::Space,
            (true, false) => Self::Network,
            (false, _) => Self::Apart,
        }
    }
}

/// The way between two ranks; `wanted` is what the job wants. The same for `a` and `b` as for `b`
/// and `a`.
///
/// # Errors
/// Why there is none, and what to do, as the rest of a sentence about the two ranks.
fn between(a: &Offer, b: &Offer, near: Near, wanted: Transport) -> Result<Way, String> {
    let are_software = a.hardware.is_none() && b.hardware.is_none();
    let hardware = a.hardware.as_ref().zip(b.hardware.as_ref());
    if wanted != Transport::Tcp && hardware.is_some_and(|(a, b)| a.reaches(b).is_ok()) {
        return Ok(Way { is_fallback: false, is_tcp: false });
    }
    let is_fallback = !are_software;
    let is_near = near == Near::Space && a.uid == b.uid;
    match (&a.tcp, &b.tcp) {
        (Some(of_a), Some(of_b)) => {
            // Processes of a host and a user may share an address.
            let is_tcp = !is_near || of_a.address != of_b.address;
            if is_tcp {
                reaches(of_a, of_b, near)?;
            }
            Ok(Way { is_fallback, is_tcp })
        }
        (None, Some(one)) | (Some(one), None) if is_near && wanted != Transport::Tcp && !is_loopback(one) => {
            Ok(Way { is_fallback, is_tcp: false })
        }
        (None, None) if is_near && wanted != Transport::Tcp => Ok(Way { is_fallback, is_tcp: false }),
        (of_a, of_b) => {
            let missing = match (of_a, of_b) {
                (None, None) => "neither does",
                (None, _) => "the first does not",
                _ => "the second does not",
            };
            Err(format!(
                "only TCP connects them, for which both have to listen, and {missing}: set RDMA_SOFT_TCP to an \
                 address, an interface or auto, and RDMA_SOFT_KEY to the file of the job's key, at every rank"
            ))
        }
    }
}

/// Whether a rank listens at a loopback address: a process that does not listen takes that for no
/// address of its host.
fn is_loopback(listening: &Listening) -> bool {
    listening.address.ip().is_loopback()
}

/// Whether two addresses and keys fit each other.
fn reaches(a: &Listening, b: &Listening, near: Near) -> Result<(), String> {
    let (at, to) = (a.address, b.address);
    if at == to {
        return Err(format!("both listen at {at}: give each host an address of its own in RDMA_SOFT_TCP"));
    }
    if a.key != b.key {
        return Err(format!("their keys differ ({} and {}): give all the same RDMA_SOFT_KEY", a.key, b.key));
    }
    if at.port() != to.port() {
        return Err(format!("they listen at {at} and {to}: give all the same port in RDMA_SOFT_TCP"));
    }
    if at.is_ipv4() != to.is_ipv4() {
        return Err(format!("they listen at {at} and {to}: give all IPv4 addresses, or all IPv6, in RDMA_SOFT_TCP"));
    }
    let are_loopback = [a, b].map(is_loopback);
    if are_loopback[0] != are_loopback[1] || (are_loopback[0] && near == Near::Apart) {
        return Err(format!("they listen at {at} and {to}: no other host reaches a loopback address"));
    }
    Ok(())
}

/// Why two ranks do not use hardware.
fn why_no_hardware(a: &Offer, b: &Offer, (rank_a, rank_b): (usize, usize), wanted: Transport) -> String {
    let has_none = |rank| format!("rank {rank} has no hardware");
    match (&a.hardware, &b.hardware) {
        _ if wanted == Transport::Tcp => "as asked".to_owned(),
        (None, _) => has_none(rank_a),
        (_, None) => has_none(rank_b),
        (Some(of_a), Some(of_b)) => {
            let why = of_a.reaches(of_b).err().map_or_else(String::new, |why| format!(" ({why})"));
            format!("{} of rank {rank_a} and {} of rank {rank_b} do not reach each other{why}", a.device, b.device)
        }
    }
}

/// What a rank tells of its ways.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Summary {
    has_fallback: bool,
    /// The numbers of pairs with ranks of higher numbers.
    pairs: usize,
    tcp: usize,
    why: Option<PeerText>,
}

/// Chooses the way to each of the `peers`, with which this rank shares no memory; collective.
///
/// # Errors
/// If there is no way to one of them; every rank is told.
pub(crate) fn choose(adapter: &Adapter, group: &mut Group, peers: &[usize], wanted: Transport) -> Result<Ways, Error> {
    let offer = group.agree("the devices", Offer::of(adapter))?;
    let offers = group.all_gather("the devices of the ranks", &offer)?;
    let rank = group.rank();
    let mut ways = Ways { to: vec![None; offers.len()], ..Ways::default() };
    let mut summary = Summary::default();
    let find = |&peer: &usize| -> Result<(), Error> {
        let (first, second) = (rank.min(peer), rank.max(peer));
        let (a, b) = (&offers[first], &offers[second]);
        let way = between(a, b, Near::of(group, first, second), wanted).map_err(|why| {
            let members = (group.member(first), group.member(second));
            let no_hardware = why_no_hardware(a, b, members, wanted);
            Error::invalid(format!(
                "ranks {} ({}) and {} ({}) share neither memory nor hardware ({no_hardware}); {why}",
                members.0, a.device, members.1, b.device
            ))
        })?;
        ways.to[peer] = Some(way);
        summary.has_fallback |= way.is_fallback;
        if peer > rank {
            summary.pairs += 1;
            summary.tcp += usize::from(way.is_tcp);
        }
        if (way.is_tcp || way.is_fallback) && summary.why.is_none() {
            let members = (group.member(first), group.member(second));
            summary.why = Some(why_no_hardware(a, b, members, wanted).into());
        }
        Ok(())
    };
    let found = peers.iter().try_for_each(find);
    group.agree("the ways between the ranks", found)?;
    for told in group.all_gather("the ways of the ranks", &summary)? {
        ways.has_fallback |= told.has_fallback;
        ways.pairs = ways.pairs.saturating_add(told.pairs);
        ways.tcp = ways.tcp.saturating_add(told.tcp);
        ways.why = ways.why.or(told.why.map(|why| why.to_string()));
    }
    tell(&ways, group, &offers);
    Ok(ways)
}

/// Says which way this rank takes to each other.
fn tell(ways: &Ways, group: &Group, offers: &[Offer]) {
    let own = group.member(group.rank());
    for (rank, way) in ways.to.iter().enumerate() {
        let Some(way) = way else { continue };
        let (peer, device) = (group.member(rank), &offers[rank].device);
        match &offers[rank].tcp {
            Some(listening) if way.is_tcp => {
                tracing::info!(rank = own, peer, "connected over TCP to {}", listening.address);
            }
            _ => tracing::info!(rank = own, peer, "connected to {device}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::network::tests::{INFINIBAND, IWARP, ROCE};

    const DEVICES: Way = Way { is_fallback: false, is_tcp: false };
    const SOFT: Way = Way { is_fallback: true, is_tcp: false };
    const TCP: Way = Way { is_fallback: false, is_tcp: true };
    const FALLBACK: Way = Way { is_fallback: true, is_tcp: true };

    fn offer(hardware: Option<Port>, address: Option<&str>) -> Offer {
        let tcp = address.map(|address| Listening { address: address.parse().unwrap(), key: "aa".into() });
        Offer { device: "d:1".into(), hardware, uid: 1, tcp }
    }

    #[test]
    fn hardware_goes_before_the_software_device_and_that_before_nothing() {
        let (at_1, at_2) = (Some("10.0.0.1:4791"), Some("10.0.0.2:4791"));
        let (apart, network, together) = (Near::Apart, Near::Network, Near::Space);
        use Transport::{Auto, Tcp, Verbs};
        for (a, b, near, wanted, expected) in [
            // Hardware of one kind, whatever else there is.
            (offer(Some(ROCE), None), offer(Some(ROCE), None), apart, Auto, Some(DEVICES)),
            // Hardware of one kind on two networks.
            (offer(Some(INFINIBAND), at_1), offer(Some(INFINIBAND.on(7)), at_2), apart, Auto, Some(FALLBACK)),
            (offer(Some(INFINIBAND), None), offer(Some(INFINIBAND.on(7)), None), apart, Auto, None),
            (offer(Some(INFINIBAND.on(7)), None), offer(Some(INFINIBAND.on(7)), None), apart, Auto, Some(DEVICES)),
            (offer(Some(ROCE), at_1), offer(Some(ROCE), at_2), apart, Auto, Some(DEVICES)),
            (offer(Some(IWARP), at_1), offer(Some(IWARP), at_2), together, Verbs, Some(DEVICES)),
            // Unless TCP is asked for.
            (offer(Some(ROCE), at_1), offer(Some(ROCE), at_2), apart, Tcp, Some(FALLBACK)),
            // Hardware of two kinds, or at one end only.
            (offer(Some(ROCE), at_1), offer(Some(INFINIBAND), at_2), apart, Auto, Some(FALLBACK)),
            (offer(Some(ROCE), at_1), offer(Some(IWARP), at_2), apart, Auto, Some(FALLBACK)),
            (offer(Some(ROCE), at_1), offer(None, at_2), apart, Verbs, Some(FALLBACK)),
            (offer(Some(ROCE), None), offer(None, at_2), apart, Auto, None),
            (offer(Some(ROCE), None), offer(None, None), together, Auto, Some(SOFT)),
            // No hardware.
            (offer(None, at_1), offer(None, at_2), apart, Auto, Some(TCP)),
            (offer(None, at_1), offer(None, None), apart, Auto, None),
            (offer(None, None), offer(None, None), apart, Auto, None),
            (offer(None, None), offer(None, None), together, Auto, Some(DEVICES)),
            (offer(None, None), offer(None, None), together, Verbs, Some(DEVICES)),
            (offer(None, None), offer(None, None), together, Tcp, None),
            // Addresses of one host: each its own, or one for both.
            (offer(None, at_1), offer(None, at_2), together, Auto, Some(TCP)),
            (offer(None, at_1), offer(None, at_1), together, Auto, Some(DEVICES)),
            (offer(None, at_1), offer(None, at_1), together, Tcp, Some(DEVICES)),
            // One rank listens, at an address that the other takes for its host's, or does not.
            (offer(None, at_1), offer(None, None), together, Auto, Some(DEVICES)),
            (offer(None, Some("127.0.0.1:1")), offer(None, None), together, Auto, None),
            // Addresses that do not fit each other.
            (offer(None, at_1), offer(None, Some("10.0.0.2:4792")), apart, Auto, None),
            (offer(None, at_1), offer(None, Some("[fd00::1]:4791")), apart, Auto, None),
            (offer(None, at_1), offer(None, Some("127.0.0.2:4791")), apart, Auto, None),
            (offer(None, Some("127.0.0.1:1")), offer(None, Some("127.0.0.2:1")), together, Tcp, Some(TCP)),
            (offer(None, Some("127.0.0.1:1")), offer(None, Some("127.0.0.2:1")), network, Auto, Some(TCP)),
            (offer(None, Some("127.0.0.1:1")), offer(None, Some("127.0.0.2:1")), apart, Auto, None),
            // One address on two hosts, or in two containers.
            (offer(None, at_1), offer(None, at_1), apart, Auto, None),
            (offer(None, at_1), offer(None, at_1), network, Auto, None),
        ] {
            let text = format!("{a:?} {b:?} {near:?} {wanted:?}");
            let ways = [between(&a, &b, near, wanted), between(&b, &a, near, wanted)];
            assert_eq!(ways.map(Result::ok), [expected; 2], "{text}");
        }
    }

    #[test]
    fn two_users_of_a_host_need_tcp() {
        let other = Offer { uid: 2, ..offer(None, None) };
        let why = between(&offer(None, None), &other, Near::Space, Transport::Auto).unwrap_err();
        assert!(why.contains("RDMA_SOFT_TCP") && why.contains("neither"), "{why}");
        let other = Offer { uid: 2, ..offer(None, Some("127.0.0.2:4791")) };
        assert_eq!(between(&offer(None, Some("127.0.0.1:4791")), &other, Near::Space, Transport::Auto), Ok(TCP));
        let why = between(&offer(None, None), &other, Near::Space, Transport::Auto).unwrap_err();
        assert!(why.contains("the first does not"), "{why}");
    }

    #[test]
    fn keys_are_compared() {
        let (a, mut b) = (offer(None, Some("10.0.0.1:4791")), offer(None, Some("10.0.0.2:4791")));
        b.tcp.as_mut().unwrap().key = "bb".into();
        let why = between(&a, &b, Near::Apart, Transport::Auto).unwrap_err();
        assert!(why.contains("(aa and bb)") && why.contains("RDMA_SOFT_KEY"), "{why}");
    }

    #[test]
    fn the_reason_for_tcp_names_who_has_no_hardware() {
        let (none, roce, ib) = (offer(None, None), offer(Some(ROCE), None), offer(Some(INFINIBAND), None));
        let why = |a, b, wanted| why_no_hardware(a, b, (2, 5), wanted);
        assert_eq!(why(&roce, &none, Transport::Auto), "rank 5 has no hardware");
        assert_eq!(why(&none, &none, Transport::Auto), "rank 2 has no hardware");
        let apart = "d:1 of rank 2 and d:1 of rank 5 do not reach each other";
        assert_eq!(why(&roce, &ib, Transport::Auto), format!("{apart} (they are RoCE and InfiniBand)"));
        assert_eq!(why(&roce, &ib, Transport::Tcp), "as asked");
    }
}
