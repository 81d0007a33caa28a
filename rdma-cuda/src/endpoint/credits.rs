//! Credits: how many chunks each side may send.
//!
//! The [`Ring`](super::ring::Ring) carries the numbers. There is no input or output here, so that a
//! test can try all orders of two sides' steps.

/// Receives for a greeting and for credits: at most two such messages wait at a side, because each
/// message with credits returns half of the peer's slots.
pub(super) const CONTROL_RECEIVES: u32 = 2;

/// The credits of one side.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Credits {
    /// The number of this side's slots.
    depth: u32,
    /// The number of the peer's slots; 0 before its greeting.
    peer_depth: u32,
    /// Chunks that the peer has space for.
    available: u32,
    /// Chunks that there is space for and of which the peer does not know.
    owed: u32,
}

impl Credits {
    pub(super) fn new(depth: u32) -> Self {
        Self { depth, peer_depth: 0, available: 0, owed: 0 }
    }

    /// The number of this side's slots.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// The number of chunks that may be sent now.
    pub(super) fn available(&self) -> u32 {
        self.available
    }

    /// Counts a chunk that is sent. There is a credit for it.
    pub(super) fn spend(&mut self) {
        self.available -= 1;
    }

    /// Takes the number of slots that the peer's greeting tells.
    pub(super) fn greeted(&mut self, peer_depth: u32) {
        (self.peer_depth, self.available) = (peer_depth, peer_depth);
    }

    /// Counts a slot whose receive is posted again; returns the credits to send once half of the
    /// slots are empty.
    pub(super) fn give_back(&mut self) -> Option<u32> {
        self.owed += 1;
        let is_due = self.owed >= self.depth.div_ceil(2);
        is_due.then(|| std::mem::take(&mut self.owed))
    }

    /// Takes credits from the peer; false if they are not those of its slots. A peer that could
    /// send other numbers could send them for ever.
    pub(super) fn accept(&mut self, count: u32) -> bool {
        let is_right = (1..=self.peer_depth - self.available).contains(&count);
        self.available += if is_right { count } else { 0 };
        is_right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::{HashSet, VecDeque};

    use crate::endpoint::ring::Message;

    /// One side with its receives, and the messages on the way to it.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Side {
        credits: Credits,
        /// Receives that are posted and empty.
        posted: u32,
        wire: VecDeque<Message>,
        /// Messages in receives whose completions are not polled.
        inbox: VecDeque<Message>,
        /// Chunks that the application has not taken.
        held: u32,
    }

    type Pair = [Side; 2];
    /// A step of a device or a side: false if there is nothing to do, and an error for a broken
    /// promise.
    type Step = fn(&mut Pair, usize) -> Result<bool, &'static str>;

    const CHUNK: Message = Message::Chunk { is_last: true };

    fn pair(depths: [u32; 2], control: u32) -> Pair {
        [0, 1].map(|side| Side {
            credits: Credits::new(depths[side]),
            posted: depths[side] + control,
            wire: [Message::Greeting { depth: depths[1 - side], chunk: 1024 }].into(),
            inbox: VecDeque::new(),
            held: 0,
        })
    }

    fn send(pair: &mut Pair, side: usize) -> Result<bool, &'static str> {
        let may_send = pair[side].credits.available() > 0;
        if may_send {
            pair[side].credits.spend();
            pair[1 - side].wire.push_back(CHUNK);
        }
        Ok(may_send)
    }

    fn arrive(pair: &mut Pair, side: usize) -> Result<bool, &'static str> {
        let this = &mut pair[side];
        let Some(message) = this.wire.pop_front() else { return Ok(false) };
        this.posted = this.posted.checked_sub(1).ok_or("a message finds no receive")?;
        this.inbox.push_back(message);
        Ok(true)
    }

    fn process(pair: &mut Pair, side: usize) -> Result<bool, &'static str> {
        let this = &mut pair[side];
        let Some(message) = this.inbox.pop_front() else { return Ok(false) };
        match message {
            Message::Chunk { .. } => this.held += 1,
            Message::Greeting { depth, .. } => this.credits.greeted(depth),
            Message::Credits(count) if this.credits.accept(count) => {}
            Message::Credits(_) => return Err("an honest peer's credits are refused"),
        }
        this.posted += u32::from(message != CHUNK);
        Ok(true)
    }

    fn recycle(pair: &mut Pair, side: usize) -> Result<bool, &'static str> {
        let this = &mut pair[side];
        let is_held = this.held > 0;
        if is_held {
            (this.held, this.posted) = (this.held - 1, this.posted + 1);
            if let Some(count) = this.credits.give_back() {
                pair[1 - side].wire.push_back(Message::Credits(count));
            }
        }
        Ok(is_held)
    }

    /// Tries all orders of all steps; returns the number of states.
    fn search(start: Pair) -> Result<usize, &'static str> {
        let steps: [Step; 4] = [send, arrive, process, recycle];
        let mut seen = HashSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(pair) = open.pop() {
            let mut is_stuck = true;
            for (side, step) in [0, 1].into_iter().flat_map(|side| steps.map(|step| (side, step))) {
                let mut next = pair.clone();
                if step(&mut next, side)? {
                    is_stuck = false;
                    if seen.insert(next.clone()) {
                        open.push(next);
                    }
                }
            }
            if is_stuck {
                return Err("both sides wait for credits");
            }
        }
        Ok(seen.len())
    }

    #[test]
    fn no_order_of_steps_lacks_a_receive_or_a_credit() {
        for depths in [[1, 1], [1, 2], [1, 3], [2, 2], [2, 3], [2, 5], [3, 3], [4, 4]] {
            let states = search(pair(depths, CONTROL_RECEIVES));
            assert!(states.is_ok_and(|states| states > 50), "{depths:?}: {states:?}");
        }
    }

    #[test]
    fn one_control_receive_does_not_suffice() {
        assert_eq!(search(pair([2, 2], 1)), Err("a message finds no receive"));
    }
}
