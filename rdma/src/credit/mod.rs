//! Credits: flow control of messages, without input and output.
//!
//! A message that finds no receive is repeated (RNR), or breaks the connection. A sender with
//! credits never sends such a message: the peer tells it how many receives are posted, and the
//! sender counts what it sends. [`SendWindow`] and [`ReceiveWindow`] are the two sides of one
//! direction. They count, check the peer and say when a grant is due; the program owns the queue
//! pair and the format of its messages. `rdma_net` and `rdma_cuda` stand on them.
//!
//! ```
//! use rdma::credit::{CreditError, ReceiveWindow, SendWindow};
//!
//! # fn main() -> Result<(), CreditError> {
//! // One side has posted 8 receives for messages, and told the other side.
//! let mut receives = ReceiveWindow::new(8, 8);
//! let mut sends = SendWindow::new(8, 8);
//!
//! while sends.spend() {
//!     // Post the send of a message here.
//! }
//! assert_eq!(sends.available(), 0);
//!
//! for number in 1..=8 {
//!     receives.receive()?;
//!     // Process the message and post its receive again here.
//!     assert!(receives.post());
//!     if receives.is_due() {
//!         // Send the count to the other side, which needs no credit for this message.
//!         assert!(number == 4 || number == 8);
//!         let count = receives.grant_count();
//!         sends.accept_count(count)?;
//!     }
//! }
//! assert_eq!(sends.available(), 8);
//! # Ok(()) }
//! ```
//!
//! # Formats
//!
//! A grant is a count of further messages ([`grant_count`](ReceiveWindow::grant_count)), or a limit
//! ([`grant_limit`](ReceiveWindow::grant_limit)): the number of messages since the start, modulo
//! 2^32. A limit replaces earlier ones, so every message can carry it. A count adds up, so it must
//! arrive once. Both need an ordered, reliable connection.
//!
//! # Receives for grants
//!
//! A grant in a message of its own must not wait for a credit, or two sides that wait for credits
//! wait for ever. Each side keeps [`MAX_PENDING_GRANTS`](ReceiveWindow::MAX_PENDING_GRANTS)
//! receives for such messages beside the window, and posts the receive of a grant again before it
//! uses the credits.
//!
//! # Messages that are held
//!
//! [`is_due`](ReceiveWindow::is_due) returns credits for half of the window at a time. That
//! suffices if the receive of each message is posted again in the end, whatever the peer does. A
//! program that holds messages until the peer has sent more must also grant while the
//! [peer is blocked](ReceiveWindow::is_peer_blocked) and credits are [owed](ReceiveWindow::owed).
//! The tests in `search` try all orders of two sides' steps by both rules.

use std::fmt;

#[cfg(test)]
mod search;

/// The credits of the messages that this side sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendWindow {
    /// Receives of the peer, at most.
    window: u32,
    /// Messages sent.
    sent: u32,
    /// Messages that the peer lets this side send.
    limit: u32,
}

impl SendWindow {
    /// Begins with `credits`, of at most `window` that the peer grants at a time.
    #[must_use]
    pub const fn new(window: u32, credits: u32) -> Self {
        Self { window, sent: 0, limit: credits }
    }

    /// Counts from `number` on, not from 0. The peer's [`ReceiveWindow`] must too.
    #[must_use]
    pub const fn starting_at(self, number: u32) -> Self {
        let Self { window, sent, limit } = self;
        Self { window, sent: sent.wrapping_add(number), limit: limit.wrapping_add(number) }
    }

    /// The number of messages that may be sent now.
    #[inline]
    #[must_use]
    pub const fn available(&self) -> u32 {
        self.limit.wrapping_sub(self.sent)
    }

    /// The number of messages that may have been sent since the start, modulo 2^32.
    #[inline]
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Counts a message that is sent; false if there is no credit for it.
    #[inline]
    #[must_use = "a message without a credit must not be sent"]
    pub const fn spend(&mut self) -> bool {
        let has_credit = self.available() > 0;
        if has_credit {
            self.sent = self.sent.wrapping_add(1);
        }
        has_credit
    }

    /// Takes a limit that the peer has sent. It may be the last one again.
    ///
    /// # Errors
    ///
    /// [`CreditError::WrongGrant`] if the limit is less than before, or more than a window ahead of
    /// what was sent.
    #[inline]
    pub const fn accept_limit(&mut self, limit: u32) -> Result<(), CreditError> {
        let ahead = limit.wrapping_sub(self.sent);
        if ahead > self.window || ahead < self.available() {
            return Err(CreditError::WrongGrant);
        }
        self.limit = limit;
        Ok(())
    }

    /// Takes the count of a grant that the peer has sent.
    ///
    /// # Errors
    ///
    /// [`CreditError::WrongGrant`] if the count is 0, or with the credits at hand more than the
    /// window. A peer that could send such grants could send them for ever.
    #[inline]
    pub const fn accept_count(&mut self, count: u32) -> Result<(), CreditError> {
        if count == 0 {
            return Err(CreditError::WrongGrant);
        }
        // A sum past 2^32 is less than the limit, and refused.
        self.accept_limit(self.limit.wrapping_add(count))
    }
}

/// The credits of the messages that this side receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveWindow {
    /// Receives of this side, at most.
    window: u32,
    /// Messages received.
    received: u32,
    /// Messages that the peer was told it may send.
    granted: u32,
    /// Messages that have a receive: those received, and the receives that are posted.
    posted: u32,
}

impl ReceiveWindow {
    /// The most grants in messages of their own that the peer has not processed, if each is sent
    /// when it [is due](Self::is_due) or while the [peer is blocked](Self::is_peer_blocked).
    ///
    /// All but the first of them return half of the window each, and the first one at least one
    /// credit: three would be more than the window.
    pub const MAX_PENDING_GRANTS: u32 = 2;

    /// Begins with `posted` receives, of at most `window`. The peer is told of them, or is told
    /// before it sends.
    #[must_use]
    pub const fn new(window: u32, posted: u32) -> Self {
        Self { window, received: 0, granted: posted, posted }
    }

    /// Counts from `number` on, not from 0. The peer's [`SendWindow`] must too.
    #[must_use]
    pub const fn starting_at(self, number: u32) -> Self {
        let Self { window, received, granted, posted } = self;
        let [received, granted, posted] =
            [received.wrapping_add(number), granted.wrapping_add(number), posted.wrapping_add(number)];
        Self { window, received, granted, posted }
    }

    /// The most receives that are posted at a time.
    #[inline]
    #[must_use]
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Counts a message that has arrived.
    ///
    /// # Errors
    ///
    /// [`CreditError::NoCredit`] if the peer had no credit for it.
    #[inline]
    pub const fn receive(&mut self) -> Result<(), CreditError> {
        if self.is_peer_blocked() {
            return Err(CreditError::NoCredit);
        }
        self.received = self.received.wrapping_add(1);
        Ok(())
    }

    /// Counts a receive that is posted; false if the whole window is posted already, and the peer
    /// is not told of this one.
    #[inline]
    #[must_use = "a receive beyond the window is not counted"]
    pub const fn post(&mut self) -> bool {
        let is_within = self.posted.wrapping_sub(self.received) < self.window;
        if is_within {
            self.posted = self.posted.wrapping_add(1);
        }
        is_within
    }

    /// The number of messages that the peer may send beyond those received.
    #[inline]
    #[must_use]
    pub const fn granted(&self) -> u32 {
        self.granted.wrapping_sub(self.received)
    }

    /// The number of receives that are posted and of which the peer does not know.
    #[inline]
    #[must_use]
    pub const fn owed(&self) -> u32 {
        self.posted.wrapping_sub(self.granted)
    }

    /// Whether the peer has used all credits that it was told of.
    #[inline]
    #[must_use]
    pub const fn is_peer_blocked(&self) -> bool {
        self.granted() == 0
    }

    /// Whether the credits that are owed make up half of the window, so that they are worth a
    /// message of their own.
    #[inline]
    #[must_use]
    pub const fn is_due(&self) -> bool {
        // Half of it, rounded down, would allow a third grant of an odd window.
        self.owed() > 0 && self.owed() >= self.window.div_ceil(2)
    }

    /// Grants the credits that are owed, and returns the limit to send.
    #[inline]
    #[must_use = "the peer must be told"]
    pub const fn grant_limit(&mut self) -> u32 {
        self.granted = self.posted;
        self.posted
    }

    /// Grants the credits that are owed, and returns their number to send.
    #[inline]
    #[must_use = "the peer must be told"]
    pub const fn grant_count(&mut self) -> u32 {
        let count = self.owed();
        self.granted = self.posted;
        count
    }
}

/// The peer breaks the rules of credits.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreditError {
    /// A grant of the peer is less than before, or more than its window.
    WrongGrant,
    /// A message came without a credit.
    NoCredit,
}

impl fmt::Display for CreditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongGrant => "the peer granted credits that it cannot have",
            Self::NoCredit => "the peer sent a message without a credit",
        })
    }
}

debug_is_display!(CreditError);

impl std::error::Error for CreditError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts of which the last ones pass the end of the counters' range.
    const STARTS: [u32; 3] = [0, u32::MAX - 2, u32::MAX];

    #[test]
    fn a_grant_that_the_peer_cannot_have_is_refused() {
        for start in STARTS {
            let mut sends = SendWindow::new(4, 4).starting_at(start);
            assert!(sends.spend() && sends.spend());
            let before = sends.clone();
            for count in [0, 3, u32::MAX >> 2, 1 << 31, u32::MAX - 2, u32::MAX] {
                assert_eq!(sends.accept_count(count), Err(CreditError::WrongGrant), "{count} from {start}");
            }
            for limit in [3, 7, 1 << 31] {
                let limit = start.wrapping_add(limit);
                assert_eq!(sends.accept_limit(limit), Err(CreditError::WrongGrant), "{limit} from {start}");
            }
            assert_eq!(sends, before);
            assert_eq!(sends.accept_limit(sends.limit()), Ok(()));
            assert_eq!(sends.accept_limit(start.wrapping_add(5)), Ok(()));
            assert_eq!(sends.accept_count(1), Ok(()));
            assert_eq!(sends.available(), 4);
        }
    }

    #[test]
    fn nothing_is_sent_without_a_credit() {
        let mut sends = SendWindow::new(2, 1);
        assert!(sends.spend());
        assert!(!sends.spend());
        assert_eq!(sends.accept_limit(2), Ok(()));
        assert!(sends.spend() && !sends.spend());
    }

    #[test]
    fn a_message_without_a_credit_is_refused() {
        for start in STARTS {
            let mut receives = ReceiveWindow::new(2, 2).starting_at(start);
            assert_eq!([receives.receive(), receives.receive()], [Ok(()); 2]);
            assert!(receives.is_peer_blocked());
            // The peer does not know of the receive.
            assert!(receives.post());
            assert_eq!(receives.receive(), Err(CreditError::NoCredit));
            assert_eq!(receives.grant_limit(), start.wrapping_add(3));
            assert_eq!(receives.receive(), Ok(()));
        }
    }

    #[test]
    fn receives_beyond_the_window_are_not_granted() {
        let mut receives = ReceiveWindow::new(3, 1);
        assert!(receives.post() && receives.post());
        assert!(!receives.post());
        assert_eq!((receives.grant_count(), receives.granted(), receives.owed()), (2, 3, 0));
    }

    #[test]
    fn credits_are_returned_by_halves() {
        for (window, half) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (u32::MAX, 1 << 31)] {
            let mut receives = ReceiveWindow::new(window, window);
            receives.received = half;
            receives.posted = receives.posted.wrapping_add(half - 1);
            assert!(!receives.is_due(), "window {window}");
            assert!(receives.post());
            assert!(receives.is_due(), "window {window}");
            assert_eq!(receives.grant_count(), half);
            assert!(!receives.is_due(), "window {window}");
        }
        assert!(!ReceiveWindow::new(0, 0).is_due());
    }
}
