//! Timers, one for each owner, and the two timeout tables of the specification.

use super::types::{PeerId, QpId, Time};

/// Longest time until requests fail whose peer has ended: 200 ms. The retries of a queue pair with
/// customary attributes take 540 ms.
pub(super) const DEATH_NANOS: u64 = 200_000_000;

/// The owner of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A queue pair.
    Qp(QpId),
    /// A process that datagrams wait for, or to which none are sent for a while.
    Peer(PeerId),
    /// The member list with this serial number, of a multicast group: the list expires.
    Group(u32),
    /// The next request of a queue pair, which a fault delays.
    Delay(QpId),
    /// The oldest request of a queue pair, which a fault completes late.
    Late(QpId),
    /// The rule with this index of the plan of faults.
    Fault(u32),
    /// The port, which a fault has taken down.
    PortUp,
    /// The device, which a fault makes fail.
    Fatal,
}

/// RNR waiting times in units of 10 us, by their 5-bit encoding (vol. 1, 9.7.5.2.8).
const RNR_TENS_OF_MICROS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072,
    4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// Returns how long a requester waits after an RNR NAK with this code, in nanoseconds.
pub(super) fn rnr_nanos(code: u8) -> u64 {
    u64::from(RNR_TENS_OF_MICROS[usize::from(code & 31)]) * 10_000
}

/// Returns how long a requester waits for an answer, in nanoseconds: 4.096 us * 2^code.
///
/// Code 0 means "without limit" on a device, which can lose packets without noticing. The engine
/// knows when a request was dropped, so an endless wait has no use: code 0 waits as long as the
/// customary 14.
pub(super) const fn ack_nanos(code: u8) -> u64 {
    let code = match code & 31 {
        0 => 14,
        code => code,
    };
    4096 << code
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    owner: Owner,
    generation: u32,
    delay: u64,
    due: Option<Time>,
}

/// All running timers. Few queue pairs wait at a time, so this is a list.
#[derive(Debug, Default)]
pub(super) struct Timers {
    list: Vec<Timer>,
    fresh: bool,
    earliest: Option<Time>,
}

impl Timers {
    /// Starts an owner's timer at the next [`advance`](Self::advance), in place of any earlier one.
    /// An owner that cancels or restarts its timer changes its generation.
    pub(super) fn start(&mut self, owner: Owner, generation: u32, delay: u64) {
        self.list.retain(|timer| timer.owner != owner);
        self.list.push(Timer { owner, generation, delay, due: None });
        self.fresh = true;
    }

    /// Removes an owner's timer.
    pub(super) fn cancel(&mut self, owner: Owner) {
        if !self.list.is_empty() {
            self.list.retain(|timer| timer.owner != owner);
            if self.list.is_empty() {
                *self = Self { list: core::mem::take(&mut self.list), ..Self::default() };
            }
        }
    }

    /// Returns the next point in time at which a timer fires, or 0 if a timer waits for `advance`.
    pub(super) const fn next(&self) -> Option<Time> {
        if self.fresh { Some(Time(0)) } else { self.earliest }
    }

    /// Gives new timers their due times.
    pub(super) fn advance(&mut self, now: Time) {
        self.fresh = false;
        for timer in &mut self.list {
            timer.due.get_or_insert(now.after(timer.delay));
        }
        self.earliest = self.list.iter().filter_map(|timer| timer.due).min();
    }

    /// Takes a timer that is due; returns its owner and generation.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<(Owner, u32)> {
        let at = self.list.iter().position(|timer| timer.due.is_some_and(|due| due <= now))?;
        let timer = self.list.swap_remove(at);
        self.earliest = self.list.iter().filter_map(|timer| timer.due).min();
        Some((timer.owner, timer.generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner::Qp(QpId(7));

    #[test]
    fn the_tables_are_the_specifications() {
        assert_eq!(rnr_nanos(0), 655_360_000);
        assert_eq!(rnr_nanos(1), 10_000);
        assert_eq!(rnr_nanos(12), 640_000);
        assert_eq!(rnr_nanos(31), 491_520_000);
        assert_eq!(ack_nanos(14), 67_108_864);
        assert_eq!(ack_nanos(0), ack_nanos(14));
        assert_eq!(ack_nanos(31), 4096 << 31);
    }

    #[test]
    fn a_timer_runs_from_the_first_time_it_is_told() {
        let mut timers = Timers::default();
        assert_eq!(timers.next(), None);
        timers.start(OWNER, 1, 100);
        assert_eq!(timers.next(), Some(Time(0)));
        timers.advance(Time(1000));
        assert_eq!(timers.next(), Some(Time(1100)));
        assert_eq!(timers.pop_due(Time(1099)), None);
        assert_eq!(timers.pop_due(Time(1100)), Some((OWNER, 1)));
        assert_eq!(timers.next(), None);
        timers.start(OWNER, 2, 100);
        timers.cancel(OWNER);
        assert_eq!(timers.next(), None);
    }
}
