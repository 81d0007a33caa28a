//! The transport of each pair of ranks.

use std::fmt;

use crate::Error;
use crate::bootstrap::Group;
use crate::named::named;
use crate::shm::Host;
use crate::wait::Patience;

named! {
    /// The way in which ranks reach each other's memory.
    pub enum Transport {
        /// Shared memory between ranks of one host that can connect there; else verbs, by hardware
        /// or by the software device, which reaches other hosts over TCP if it listens there.
        Auto = "auto",
        /// Shared memory.
        Shm = "shm",
        /// RDMA by the verbs, also inside a host.
        Verbs = "verbs",
        /// The software device's links over TCP, also inside a host and where there is hardware.
        /// Ranks whose processes listen at one address share memory inside the device.
        Tcp = "tcp",
    }
}

/// The transports between the ranks of a job.
#[derive(Clone, Debug, Default)]
pub struct Transports {
    world: usize,
    /// The ranks that share memory, host by host.
    sharing: Vec<Vec<usize>>,
    /// The reason why two ranks of one host do not share memory, if there are such ranks.
    why_not: Option<String>,
    /// The pairs of ranks that share no memory, and those of them that are connected over TCP.
    pairs: usize,
    tcp: usize,
    /// Why some are.
    why_tcp: Option<String>,
}

impl Transports {
    /// The name of the transport of all pairs, or `mixed`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &self.sharing[..] {
            [] if self.tcp == 0 => "verbs",
            [] if self.tcp == self.pairs => "tcp",
            [] => "mixed",
            [ranks] if ranks.len() == self.world => "shm",
            _ => "mixed",
        }
    }

    /// The transport that limits the speed: shared memory only if all ranks share it, and TCP if
    /// any two ranks are connected by it.
    #[must_use]
    pub fn main(&self) -> Transport {
        match self.name() {
            "shm" => Transport::Shm,
            _ if self.tcp > 0 => Transport::Tcp,
            _ => Transport::Verbs,
        }
    }

    /// The number of pairs of ranks that are connected over TCP.
    #[must_use]
    pub fn pairs_over_tcp(&self) -> usize {
        self.tcp
    }

    /// Takes the number of pairs that share no memory, and of those over TCP, with the reason.
    pub(crate) fn set_pairs(&mut self, pairs: usize, tcp: usize, why: Option<&str>) {
        (self.pairs, self.tcp, self.why_tcp) = (pairs, tcp, why.map(str::to_owned));
    }

    /// How the ranks that share no memory are connected.
    fn others(&self) -> String {
        let Self { pairs, tcp, why_tcp, .. } = self;
        let why = why_tcp.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        match *tcp {
            0 => "verbs".to_owned(),
            tcp if tcp == *pairs => format!("TCP{why}"),
            _ => format!("verbs, {tcp} of {pairs} pairs over TCP{why}"),
        }
    }
}

impl fmt::Display for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "shm" => f.write_str("shared memory")?,
            _ if self.sharing.is_empty() => f.write_str(&self.others())?,
            _ => {
                let sharing: Vec<String> = self.sharing.iter().map(|ranks| among(ranks)).collect();
                let text = sharing.join(", among ");
                match self.tcp {
                    0 => write!(f, "shared memory among ranks {text}; verbs between others")?,
                    _ => write!(f, "shared memory among ranks {text}; between others {}", self.others())?,
                }
            }
        }
        self.why_not.as_ref().map_or(Ok(()), |why| write!(f, " ({why})"))
    }
}

/// Ranks in increasing order, as text: `0-3`, or `0,2,5`.
fn among(ranks: &[usize]) -> String {
    match ranks {
        [first, .., last] if last.checked_sub(*first) == Some(ranks.len() - 1) => format!("{first}-{last}"),
        _ => ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    }
}

/// Connects the ranks that share memory, as `wanted`; collective. Returns this rank's host, unless
/// no ranks at all share memory, and the transports of all ranks.
pub(crate) fn connect(
    group: &mut Group,
    wanted: Transport,
    patience: Patience,
) -> Result<(Option<Host>, Transports), Error> {
    let world = group.ranks();
    if matches!(wanted, Transport::Verbs | Transport::Tcp) || world == 1 {
        return Ok((None, Transports { world, ..Transports::default() }));
    }
    let (mut host, why_not) = Host::connect(group, patience)?;
    let own: Vec<usize> = (0..world).filter(|&rank| rank == group.rank() || host.reaches(rank)).collect();
    let mut sharing = group.all_gather("the transports", &own)?;
    sharing.retain(|ranks| ranks.len() > 1);
    sharing.sort();
    sharing.dedup();
    if wanted == Transport::Shm && sharing.first().is_none_or(|ranks| ranks.len() < world) {
        let why = why_not.unwrap_or_else(|| "the ranks are on several hosts".to_owned());
        return Err(Error::new(format!("no shared memory ({why}); the transport auto does without where it has to")));
    }
    host.set_whole(matches!(&sharing[..], [all] if all.len() == world));
    let host = Some(host).filter(|_| !sharing.is_empty());
    Ok((host, Transports { world, sharing, why_not, ..Transports::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_told_by_host() {
        let transports = |sharing: &[&[usize]], why_not: Option<&str>| {
            let sharing = sharing.iter().map(|ranks| ranks.to_vec()).collect();
            Transports { world: 5, sharing, why_not: why_not.map(str::to_owned), ..Transports::default() }
        };
        for (transports, name, text) in [
            (transports(&[&[0, 1, 2, 3, 4]], None), "shm", "shared memory"),
            (transports(&[], None), "verbs", "verbs"),
            (transports(&[], Some("why")), "verbs", "verbs (why)"),
            (
                transports(&[&[0, 2], &[1, 3, 4]], None),
                "mixed",
                "shared memory among ranks 0,2, among 1,3,4; verbs between others",
            ),
            // What another rank tells may make no sense.
            (transports(&[&[3, 1]], None), "mixed", "shared memory among ranks 3,1; verbs between others"),
            (transports(&[&[1, 2, 3]], None), "mixed", "shared memory among ranks 1-3; verbs between others"),
        ] {
            assert_eq!((transports.name(), transports.to_string().as_str()), (name, text));
        }
    }

    #[test]
    fn pairs_over_tcp_are_counted_with_the_reason() {
        let transports = |sharing: Vec<Vec<usize>>, pairs, tcp| {
            let mut transports = Transports { world: 4, sharing, ..Transports::default() };
            transports.set_pairs(pairs, tcp, Some("rank 3 has no hardware"));
            transports
        };
        for (sharing, pairs, tcp, name, text) in [
            (vec![], 6, 6, "tcp", "TCP: rank 3 has no hardware"),
            (vec![], 6, 3, "mixed", "verbs, 3 of 6 pairs over TCP: rank 3 has no hardware"),
            (
                vec![vec![0, 1], vec![2, 3]],
                4,
                4,
                "mixed",
                "shared memory among ranks 0-1, among 2-3; between others TCP: rank 3 has no hardware",
            ),
        ] {
            let transports = transports(sharing, pairs, tcp);
            assert_eq!((transports.name(), transports.to_string().as_str()), (name, text));
            assert_eq!((transports.main(), transports.pairs_over_tcp()), (Transport::Tcp, tcp));
        }
    }
}
