//! Two sides and their devices, for tests: a device accepts a message into a posted receive whether
//! or not its processor runs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rdma::RemoteSlice;

use super::{Agreed, HEADER_LEN, Protocol, RESERVE, Received, Violation};

/// The kind that stands for a notification, which has no header.
const NOTIFICATION: u8 = 255;

/// Two connected sides.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) sides: [Side; 2],
    pub(super) now: Instant,
}

/// One side with its receives.
#[derive(Debug, Clone)]
pub(super) struct Side {
    pub(super) protocol: Protocol,
    /// Receives that are posted and empty.
    pub(super) posted: u32,
    /// Messages on the way to the peer.
    pub(super) wire: VecDeque<Vec<u8>>,
    /// Messages in receives, not yet processed.
    pub(super) inbox: VecDeque<Vec<u8>>,
    /// Data messages that the application holds while no spare buffer is left.
    pub(super) held: u32,
    /// Data receives of the window that the peer does not know of.
    pub(super) ungranted: u32,
    /// Offers of the peer that the application has not read.
    pub(super) offers: VecDeque<u32>,
    /// Offers of the peer that were read, and wait for their DONE.
    pub(super) read: VecDeque<u32>,
    /// Payload that was received, in order.
    pub(super) payload: Vec<u8>,
}

/// The broken promise of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// A message found no receive.
    NoReceive,
    /// A side refused a message of an honest peer.
    Refused(Violation),
}

pub(super) fn agreed(window: u32) -> Agreed {
    Agreed {
        window,
        initial: window,
        peer_initial: window,
        receive_size: 256,
        max_message: 1 << 20,
        keep_alive: Some(Duration::from_secs(1)),
        offers: true,
        takes_notifications: true,
        peer_takes_notifications: true,
    }
}

impl Pair {
    pub(super) fn new(window: u32, slots: u32, reserve: u32) -> Self {
        let now = Instant::now();
        let side = || Side {
            protocol: Protocol::new(agreed(window), slots, now),
            posted: window + reserve,
            wire: VecDeque::new(),
            inbox: VecDeque::new(),
            held: 0,
            ungranted: 0,
            offers: VecDeque::new(),
            read: VecDeque::new(),
            payload: Vec::new(),
        };
        Self { sides: [side(), side()], now }
    }

    /// Two sides with all receives that the rules ask for.
    pub(super) fn honest(window: u32) -> Self {
        Self::new(window, 16, RESERVE)
    }

    /// Two sides of which the first has one data receive at the start, and more as it likes.
    pub(super) fn growing(window: u32) -> Self {
        let mut pair = Self::honest(window);
        let ends = [(1, window), (window, 1)];
        for (side, (initial, peer_initial)) in pair.sides.iter_mut().zip(ends) {
            let agreed = Agreed { initial, peer_initial, ..agreed(window) };
            side.protocol = Protocol::new(agreed, 16, pair.now);
            side.posted = initial + RESERVE;
            side.ungranted = window - initial;
        }
        pair
    }

    /// Posts a receive that the peer does not know of, if the window has more.
    pub(super) fn grow(&mut self, side: usize) -> bool {
        let side = &mut self.sides[side];
        if side.ungranted == 0 {
            return false;
        }
        side.ungranted -= 1;
        side.posted += 1;
        side.protocol.receive_posted();
        true
    }

    /// Sends a fragment with `payload`, if it may go.
    pub(super) fn send(&mut self, side: usize, payload: &[u8], rest: u32) -> bool {
        let side = &mut self.sides[side];
        let Some(header) = side.protocol.data(payload.len(), rest, 0) else { return false };
        side.wire.push_back([&header[..], payload].concat());
        true
    }

    /// Sends an OFFER, if it may go and fewer than `most` are open.
    pub(super) fn offer(&mut self, side: usize, most: usize) -> bool {
        let side = &mut self.sides[side];
        if side.protocol.sent_offers.len() >= most {
            return false;
        }
        let Some((header, _)) = side.protocol.offer() else { return false };
        let slice = RemoteSlice::new(64, 8, 1).to_bytes();
        side.wire.push_back([&header[..], &slice].concat());
        true
    }

    /// Posts a notification, if it may go.
    pub(super) fn notify(&mut self, side: usize) -> bool {
        let side = &mut self.sides[side];
        if side.protocol.notification_room() == 0 {
            return false;
        }
        side.protocol.notify();
        side.wire.push_back(vec![NOTIFICATION]);
        true
    }

    /// The application of `side` has read the oldest offer.
    pub(super) fn read(&mut self, side: usize) -> bool {
        let side = &mut self.sides[side];
        let offer = side.offers.pop_front();
        side.read.extend(offer);
        offer.is_some()
    }

    /// Sends the DONE of an offer that was read, if it may go.
    pub(super) fn answer(&mut self, side: usize) -> bool {
        let side = &mut self.sides[side];
        let Some(header) = side.read.front().and_then(|&offer| side.protocol.done(offer)) else { return false };
        side.read.pop_front();
        side.wire.push_back([&header[..], &[0; 4]].concat());
        true
    }

    /// Sends the next message that the protocol sends by itself, if there is one.
    pub(super) fn transmit(&mut self, side: usize) -> bool {
        let side = &mut self.sides[side];
        let Some(header) = side.protocol.poll_transmit(self.now) else { return false };
        debug_assert_eq!(header.len(), HEADER_LEN);
        side.protocol.alive.skip_delay(self.now);
        side.wire.push_back(header.to_vec());
        true
    }

    /// The device of `side` takes the next message into a receive, and the sender's send completes.
    pub(super) fn accept(&mut self, side: usize) -> Result<bool, Broken> {
        let Some(message) = self.sides[1 - side].wire.pop_front() else { return Ok(false) };
        if message != [NOTIFICATION] {
            self.sides[1 - side].protocol.send_completed();
        }
        let side = &mut self.sides[side];
        side.posted = side.posted.checked_sub(1).ok_or(Broken::NoReceive)?;
        side.inbox.push_back(message);
        Ok(true)
    }

    /// The processor of `side` processes the next message.
    pub(super) fn process(&mut self, side: usize) -> Result<bool, Broken> {
        let now = self.now;
        let side = &mut self.sides[side];
        let Some(message) = side.inbox.pop_front() else { return Ok(false) };
        if message == [NOTIFICATION] {
            side.protocol.handle_notification(now).map_err(Broken::Refused)?;
            side.held += 1;
            return Ok(true);
        }
        let received = side.protocol.handle_message(&message, now).map_err(Broken::Refused)?;
        if received.is_control() {
            side.posted += 1;
        } else {
            side.held += 1;
        }
        match received {
            Received::Data(fragment) => side.payload.extend_from_slice(&message[fragment.payload]),
            Received::Offer { id, .. } => side.offers.push_back(id),
            _ => {}
        }
        Ok(true)
    }

    /// The application of `side` lets go of a message, which frees a spare buffer.
    pub(super) fn release(&mut self, side: usize) -> bool {
        let side = &mut self.sides[side];
        if side.held == 0 {
            return false;
        }
        side.held -= 1;
        side.posted += 1;
        side.protocol.receive_posted();
        true
    }

    /// Takes all steps that need no application until none is left. Returns the number of steps.
    pub(super) fn settle(&mut self) -> Result<u32, Broken> {
        let mut steps = 0;
        loop {
            let mut moved = false;
            for side in [0, 1] {
                moved |= self.transmit(side) | self.answer(side) | self.accept(side)? | self.process(side)?;
            }
            if !moved {
                return Ok(steps);
            }
            steps += 1;
            assert!(steps < 1000, "two ends without applications never fall silent: {self:?}");
        }
    }

    /// The state with counters relative to each other: equal keys have equal futures.
    pub(super) fn key(&self) -> Vec<u32> {
        let mut key = Vec::with_capacity(64);
        for (side, peer) in [(0, 1), (1, 0)] {
            let Side { protocol, posted, wire, inbox, held, ungranted, offers, read, .. } = &self.sides[side];
            key.extend(protocol.key());
            key.extend([*posted, *held, *ungranted]);
            key.extend([offers, read].map(|ids| u32::try_from(ids.len()).unwrap()));
            let limit_at = |message: &[u8]| u32::from_be_bytes([message[4], message[5], message[6], message[7]]);
            let mut list = |messages: &VecDeque<Vec<u8>>, receiver: usize| {
                key.push(u32::try_from(messages.len()).unwrap());
                for message in messages {
                    if *message == [NOTIFICATION] {
                        key.push(NOTIFICATION.into());
                        continue;
                    }
                    let raise = self.sides[receiver].protocol.credit.raise(limit_at(message));
                    key.push(u32::from(message[0]) | u32::from(message[1]) << 8 | raise << 16);
                }
            };
            list(wire, peer);
            list(inbox, side);
        }
        key
    }
}
