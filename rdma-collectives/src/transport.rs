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
        /// Shared memory between ranks of one host that can connect there, else verbs.
        Auto = "auto",
        /// Shared memory.
        Shm = "shm",
        /// RDMA by the verbs.
        Verbs = "verbs",
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
}

impl Transports {
    /// The name of the transport of all pairs, or `mixed`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &self.sharing[..] {
            [] => "verbs",
            [ranks] if ranks.len() == self.world => "shm",
            _ => "mixed",
        }
    }

    /// The transport that limits the speed: shared memory only if all ranks share it.
    #[must_use]
    pub fn main(&self) -> Transport {
        if self.name() == "shm" { Transport::Shm } else { Transport::Verbs }
    }
}

impl fmt::Display for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "shm" => f.write_str("shared memory")?,
            "verbs" => f.write_str("verbs")?,
            _ => {
                let sharing: Vec<String> = self.sharing.iter().map(|ranks| among(ranks)).collect();
                write!(f, "shared memory among ranks {}; verbs between others", sharing.join(", among "))?;
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
    if wanted == Transport::Verbs || world == 1 {
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
    Ok((host, Transports { world, sharing, why_not }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_told_by_host() {
        let transports = |sharing: &[&[usize]], why_not: Option<&str>| {
            let sharing = sharing.iter().map(|ranks| ranks.to_vec()).collect();
            Transports { world: 5, sharing, why_not: why_not.map(str::to_owned) }
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
}
