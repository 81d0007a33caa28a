//! Finds a silent peer: PING after an idle time, and a failure if nothing answers.

use std::time::{Duration, Instant};

use super::violation::Violation;

/// Shortest time between two PINGs of a side, and between two PONGs.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The PING and PONG of one side.
#[derive(Debug, Clone)]
pub(super) struct KeepAlive {
    /// Idle time before a PING, and time to answer it.
    period: Option<Duration>,
    heard: Instant,
    ping: Ping,
    cookie: u32,
    /// The cookie of a PING to answer.
    pong: Option<u32>,
    /// Time from which the next PONG may be sent, which bounds the work that PINGs make.
    next_pong: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Ping {
    Idle,
    Wanted { since: Instant },
    Sent { since: Instant },
}

impl KeepAlive {
    pub(super) fn new(period: Option<Duration>, now: Instant) -> Self {
        let period = period.map(|period| period.max(MIN_INTERVAL));
        Self { period, heard: now, ping: Ping::Idle, cookie: 0, pong: None, next_pong: now }
    }

    /// Notes that the peer has sent a message.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Takes a PING of the peer (N6).
    pub(super) fn accept_ping(&mut self, cookie: u32) -> Result<(), Violation> {
        if self.pong.is_some() {
            return Err(Violation::PingUnanswered);
        }
        self.pong = Some(cookie);
        Ok(())
    }

    /// Takes a PONG of the peer.
    pub(super) fn accept_pong(&mut self, cookie: u32) -> Result<(), Violation> {
        if !matches!(self.ping, Ping::Sent { .. }) || cookie != self.cookie {
            return Err(Violation::UnexpectedPong);
        }
        self.ping = Ping::Idle;
        Ok(())
    }

    /// Asks for a PING, unless one is unanswered.
    pub(super) fn ask(&mut self, now: Instant) {
        if self.ping == Ping::Idle {
            self.ping = Ping::Wanted { since: now };
            self.cookie = self.cookie.wrapping_add(1);
        }
    }

    /// The cookie of the PING to send now.
    pub(super) fn take_ping(&mut self) -> Option<u32> {
        let Ping::Wanted { since } = self.ping else { return None };
        self.ping = Ping::Sent { since };
        Some(self.cookie)
    }

    /// The cookie of the PONG to send now.
    pub(super) fn take_pong(&mut self, now: Instant) -> Option<u32> {
        if now < self.next_pong {
            return None;
        }
        let cookie = self.pong.take()?;
        self.next_pong = now + MIN_INTERVAL;
        Some(cookie)
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) or a PONG is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let silence = self.period.map(|period| self.since() + period);
        let pong = self.pong.map(|_| self.next_pong);
        silence.into_iter().chain(pong).min()
    }

    /// The later of the last message of the peer and the last PING that was asked for.
    fn since(&self) -> Instant {
        match self.ping {
            Ping::Idle => self.heard,
            Ping::Wanted { since } | Ping::Sent { since } => self.heard.max(since),
        }
    }

    /// Asks for a PING if the peer was idle too long. Returns whether the peer is silent: it has
    /// sent nothing for a whole period after a PING.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        let Some(period) = self.period else { return false };
        if now < self.since() + period {
            return false;
        }
        let is_silent = match self.ping {
            Ping::Idle => false,
            Ping::Wanted { since } | Ping::Sent { since } => self.heard <= since,
        };
        self.ask(now);
        is_silent
    }

    /// The state without times, for tests that compare states.
    #[cfg(test)]
    pub(super) fn key(&self) -> [u32; 2] {
        let ping = match self.ping {
            Ping::Idle => 0,
            Ping::Wanted { .. } => 1,
            Ping::Sent { .. } => 2,
        };
        [ping, u32::from(self.pong.is_some())]
    }

    /// Lets the next PONG go at once, for tests.
    #[cfg(test)]
    pub(super) fn skip_delay(&mut self, now: Instant) {
        self.next_pong = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(1);

    #[test]
    fn an_idle_peer_gets_a_ping_and_a_silent_one_is_found() {
        let start = Instant::now();
        let mut alive = KeepAlive::new(Some(PERIOD), start);
        assert_eq!(alive.deadline(), Some(start + PERIOD));
        assert!(!alive.handle_timeout(start + PERIOD));
        assert_eq!(alive.take_ping(), Some(1));
        assert!(!alive.handle_timeout(start + PERIOD * 3 / 2));
        assert!(alive.handle_timeout(start + PERIOD * 2));
    }

    #[test]
    fn any_message_keeps_the_peer_alive() {
        let start = Instant::now();
        let mut alive = KeepAlive::new(Some(PERIOD), start);
        for step in 1..10 {
            let now = start + PERIOD * step;
            assert!(!alive.handle_timeout(now));
            alive.hear(now + PERIOD / 2);
        }
    }

    #[test]
    fn pings_are_answered_at_most_every_100_ms() {
        let now = Instant::now();
        let mut alive = KeepAlive::new(None, now);
        assert_eq!(alive.deadline(), None);
        alive.accept_ping(7).unwrap();
        assert_eq!(alive.accept_ping(8), Err(Violation::PingUnanswered));
        assert_eq!(alive.take_pong(now), Some(7));
        alive.accept_ping(8).unwrap();
        assert_eq!(alive.take_pong(now), None);
        assert_eq!(alive.deadline(), Some(now + MIN_INTERVAL));
        assert_eq!(alive.take_pong(now + MIN_INTERVAL), Some(8));
    }

    #[test]
    fn a_pong_must_carry_the_cookie_of_the_ping() {
        let now = Instant::now();
        let mut alive = KeepAlive::new(None, now);
        assert_eq!(alive.accept_pong(0), Err(Violation::UnexpectedPong));
        alive.ask(now);
        let cookie = alive.take_ping().unwrap();
        assert_eq!(alive.accept_pong(cookie + 1), Err(Violation::UnexpectedPong));
        assert_eq!(alive.accept_pong(cookie), Ok(()));
        assert_eq!(alive.accept_pong(cookie), Err(Violation::UnexpectedPong));
    }
}
