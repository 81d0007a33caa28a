//! Other hosts, and the small numbers by which the engine knows them.
//!
//! A number is in use as long as an address handle, a queue pair or a link holds a [`HostUse`] of
//! it. Afterwards it keeps its address until all numbers are taken: only then does the number that
//! has been unused for longest go to another address, and not within [`REST`], so that no datagram
//! that still waits goes to a wrong host.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::Host;
use crate::os::lock::Lock;

/// Limit of the hosts with a number, beside this one.
pub(crate) const MAX_HOSTS: usize = 1024;
/// The longest time for which datagrams of a queue pair wait for links, with much to spare.
const REST: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    users: usize,
    /// The end of the last use.
    since: Instant,
}

#[derive(Debug, Default)]
struct Table {
    /// The entry of number `index + 1`.
    entries: Vec<Entry>,
    numbers: HashMap<IpAddr, usize>,
}

/// The hosts that have numbers. No other lock is taken while this one is held.
#[derive(Debug, Default)]
pub(crate) struct Hosts(Lock<Table>);

/// A use of a host's number.
#[derive(Debug)]
pub(crate) struct HostUse {
    hosts: Arc<Hosts>,
    index: usize,
}

impl Hosts {
    /// The number of the host with an address; `None` if all numbers are in use.
    pub(crate) fn hold(self: &Arc<Self>, address: IpAddr) -> Option<HostUse> {
        self.hold_at(address, Instant::now())
    }

    fn hold_at(self: &Arc<Self>, address: IpAddr, now: Instant) -> Option<HostUse> {
        let mut table = self.0.lock();
        let index = match table.numbers.get(&address) {
            Some(index) => *index,
            None => table.add(address, now)?,
        };
        table.entries[index].users += 1;
        Some(HostUse { hosts: Arc::clone(self), index })
    }

    /// The addresses of the hosts that are in use, in the order of their numbers.
    pub(crate) fn in_use(&self) -> Vec<IpAddr> {
        let table = self.0.lock();
        table.entries.iter().filter(|entry| entry.users > 0).map(|entry| entry.address).collect()
    }

    /// A use of a number that the engine names, and the host's address; `None` if nobody else uses
    /// the number.
    pub(crate) fn of(self: &Arc<Self>, host: Host) -> Option<(HostUse, IpAddr)> {
        let mut table = self.0.lock();
        let index = usize::from(host.0).checked_sub(1)?;
        let entry = table.entries.get_mut(index)?;
        entry.users += 1;
        Some((HostUse { hosts: Arc::clone(self), index }, entry.address))
    }
}

impl Table {
    fn add(&mut self, address: IpAddr, now: Instant) -> Option<usize> {
        let fresh = Entry { address, users: 0, since: now };
        let index = if self.entries.len() < MAX_HOSTS {
            self.entries.push(fresh);
            self.entries.len() - 1
        } else {
            let rested = |entry: &Entry| entry.users == 0 && now.saturating_duration_since(entry.since) >= REST;
            let unused = self.entries.iter().enumerate().filter(|(_, entry)| rested(entry));
            let (index, _) = unused.min_by_key(|(_, entry)| entry.since)?;
            let old = core::mem::replace(&mut self.entries[index], fresh);
            self.numbers.remove(&old.address);
            index
        };
        self.numbers.insert(address, index);
        Some(index)
    }
}

impl HostUse {
    /// The host's number.
    pub(crate) fn id(&self) -> Host {
        // There are at most MAX_HOSTS entries.
        Host(u16::try_from(self.index + 1).unwrap_or(u16::MAX))
    }
}

impl Drop for HostUse {
    fn drop(&mut self) {
        let mut table = self.hosts.0.lock();
        let entry = &mut table.entries[self.index];
        entry.users -= 1;
        entry.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number))
    }

    #[test]
    fn an_address_has_one_number_that_is_never_this_hosts() {
        let hosts = Arc::new(Hosts::default());
        let one = hosts.hold(address(1)).unwrap();
        let other = hosts.hold(address(2)).unwrap();
        assert!(one.id() != Host::LOCAL && one.id() != other.id());
        assert_eq!(hosts.hold(address(1)).unwrap().id(), one.id());
        let (again, found) = hosts.of(one.id()).unwrap();
        assert_eq!((again.id(), found), (one.id(), address(1)));
        assert!(hosts.of(Host::LOCAL).is_none() && hosts.of(Host(3)).is_none());
    }

    #[test]
    fn numbers_run_out_and_are_used_again_after_a_rest() {
        let hosts = Arc::new(Hosts::default());
        let mut uses: Vec<_> =
            (0..MAX_HOSTS).map(|at| hosts.hold(address(u32::try_from(at).unwrap())).unwrap()).collect();
        assert!(hosts.hold(address(5000)).is_none());
        let freed = uses.remove(7).id();
        assert!(hosts.hold(address(5000)).is_none(), "datagrams to it may still wait");
        let later = Instant::now() + REST;
        let reused = hosts.hold_at(address(5000), later).unwrap();
        assert_eq!(reused.id(), freed);
        assert!(hosts.hold_at(address(7), later).is_none(), "its number has gone to another host");
        assert_eq!(hosts.hold(address(8)).unwrap().id(), uses[7].id());
    }
}
