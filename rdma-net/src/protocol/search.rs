//! All states of two sides: no message without a receive, no starvation, no endless talk.

use std::collections::HashSet;

use proptest::prelude::*;

use super::pair::{Broken, Pair};

/// The steps of an application, which may happen or not.
const CHOICES: [fn(&mut Pair, usize) -> bool; 8] = [
    |pair, side| pair.send(side, b"x", 0),
    Pair::release,
    Pair::notify,
    |pair, side| pair.offer(side, 2),
    Pair::read,
    Pair::grow,
    |pair, side| {
        let keys = |pair: &Pair| pair.sides[side].protocol.alive.key();
        let before = keys(pair);
        let now = pair.now;
        pair.sides[side].protocol.alive.ask(now);
        keys(pair) != before
    },
    |pair, side| {
        let protocol = &mut pair.sides[side].protocol;
        let is_first = protocol.code.is_none();
        protocol.abort(7);
        is_first
    },
];

/// A step of a device or a processor.
type Step = fn(&mut Pair, usize) -> Result<bool, Broken>;

/// The outcome of a search.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// All states, or as many as the limit allows, keep the promises.
    Nothing {
        states: usize,
    },
    Broken(Broken),
    /// A side waits for a credit although nothing is held.
    Starved,
}

/// The states that can follow, and how many of them need no application.
fn successors(pair: &Pair) -> Result<(Vec<Pair>, usize), Broken> {
    let mut next = Vec::new();
    for side in [0, 1] {
        let steps: [Step; 4] =
            [|pair, side| Ok(pair.transmit(side)), |pair, side| Ok(pair.answer(side)), Pair::accept, Pair::process];
        for step in steps {
            let mut pair = pair.clone();
            if step(&mut pair, side)? {
                next.push(pair);
            }
        }
    }
    let inevitable = next.len();
    for side in [0, 1] {
        for choice in CHOICES {
            let mut pair = pair.clone();
            if choice(&mut pair, side) {
                next.push(pair);
            }
        }
    }
    Ok((next, inevitable))
}

/// Whether a side waits for a credit that will not come.
fn is_starved(pair: &Pair) -> bool {
    let sides = &pair.sides;
    let is_open = sides.iter().all(|side| side.protocol.code.is_none() && side.held == 0);
    is_open && sides.iter().any(|side| side.protocol.credit.available() == 0)
}

fn search(start: Pair, limit: usize) -> Found {
    let mut seen = HashSet::from([start.key()]);
    let mut open = vec![start];
    while let Some(pair) = open.pop() {
        let (next, inevitable) = match successors(&pair) {
            Ok(found) => found,
            Err(broken) => return Found::Broken(broken),
        };
        if inevitable == 0 && is_starved(&pair) {
            return Found::Starved;
        }
        for mut pair in next {
            pair.sides.iter_mut().for_each(|side| side.payload.clear());
            if seen.len() < limit && seen.insert(pair.key()) {
                open.push(pair);
            }
        }
    }
    Found::Nothing { states: seen.len() }
}

/// States of one search of the normal test.
const STATES: usize = 20_000;

#[test]
fn no_state_lacks_a_receive_or_starves() {
    for window in [1, 2] {
        let found = search(Pair::honest(window), STATES);
        assert_eq!(found, Found::Nothing { states: STATES }, "window {window}");
    }
}

#[test]
#[ignore = "takes minutes: all states"]
fn no_state_of_all_lacks_a_receive_or_starves() {
    for window in [1, 2] {
        let found = search(Pair::honest(window), usize::MAX);
        assert!(matches!(found, Found::Nothing { .. }), "window {window}: {found:?}");
        println!("window {window}: {found:?}");
    }
}

#[test]
fn a_window_that_grows_keeps_the_promises() {
    let found = search(Pair::growing(2), STATES);
    assert_eq!(found, Found::Nothing { states: STATES });
}

#[test]
fn three_control_receives_do_not_suffice() {
    assert_eq!(search(Pair::new(1, 16, 3), STATES), Found::Broken(Broken::NoReceive));
}

#[test]
fn messages_and_notifications_without_end_take_turns() {
    for window in [1, 2, 3, 8] {
        let mut pair = Pair::honest(window);
        // Both begin at once, and have all credits that come.
        let (mut messages, mut notifications) = (0_u32, 0);
        for _ in 0..100 {
            loop {
                let protocol = &pair.sides[0].protocol;
                let mut share = protocol.notification_share(protocol.notification_room());
                let before = (messages, notifications);
                while share > 0 && pair.notify(0) {
                    share -= 1;
                    notifications += 1;
                }
                messages += u32::from(pair.send(0, b"x", 0));
                if before == (messages, notifications) {
                    break;
                }
            }
            pair.settle().unwrap();
            while pair.release(1) {}
            pair.settle().unwrap();
        }
        let (fewer, more) = (messages.min(notifications), messages.max(notifications));
        assert!(fewer >= 40 && more <= 4 * fewer, "{window}: {messages} beside {notifications}");
    }
}

#[derive(Debug, Clone)]
enum Action {
    Message { side: usize, len: usize },
    Choice { side: usize, choice: usize },
    Transmit(usize),
    Accept(usize),
    Process(usize),
}

fn step() -> impl Strategy<Value = Action> {
    let side = || 0..2_usize;
    prop_oneof![
        2 => (side(), 0..2000_usize).prop_map(|(side, len)| Action::Message { side, len }),
        2 => (side(), 1..7_usize).prop_map(|(side, choice)| Action::Choice { side, choice }),
        2 => side().prop_map(Action::Transmit),
        4 => side().prop_map(Action::Accept),
        4 => side().prop_map(Action::Process),
    ]
}

/// An application that sends messages in fragments.
#[derive(Debug, Default)]
struct Sender {
    queued: Vec<u8>,
    /// Lengths of the messages that are not sent to their end.
    messages: std::collections::VecDeque<usize>,
    sent: Vec<u8>,
}

impl Sender {
    fn add(&mut self, len: usize) {
        let from = self.sent.len() + self.queued.len();
        self.queued.extend((from..from + len).map(|at| at.to_le_bytes()[0]));
        self.messages.push_back(len);
    }

    /// Sends fragments of at most 100 bytes while they may go.
    fn run(&mut self, pair: &mut Pair, side: usize) {
        while let Some(rest) = self.messages.front_mut() {
            let len = (*rest).min(100);
            let after = u32::try_from(*rest - len).unwrap();
            if !pair.send(side, &self.queued[..len], after) {
                return;
            }
            *rest -= len;
            self.sent.extend(self.queued.drain(..len));
            if after == 0 {
                self.messages.pop_front();
            }
        }
    }
}

/// Runs the steps, then lets both applications take everything, and compares what arrived.
fn run(window: u32, start: u32, steps: &[Action]) -> Result<(), Broken> {
    let mut pair = if start == 0 { Pair::growing(window) } else { Pair::honest(window) };
    for side in &mut pair.sides {
        side.protocol.credit.start_at(start);
    }
    let mut senders = [Sender::default(), Sender::default()];
    for step in steps {
        match *step {
            Action::Message { side, len } => senders[side].add(len),
            Action::Choice { side, choice } => _ = CHOICES[choice](&mut pair, side),
            Action::Transmit(side) => _ = pair.transmit(side),
            Action::Accept(side) => _ = pair.accept(side)?,
            Action::Process(side) => _ = pair.process(side)?,
        }
        senders.iter_mut().enumerate().for_each(|(side, sender)| sender.run(&mut pair, side));
    }
    let mut is_busy = true;
    while is_busy {
        pair.settle()?;
        is_busy = false;
        for side in [0, 1] {
            while pair.release(side) | pair.read(side) {
                is_busy = true;
            }
            senders[side].run(&mut pair, side);
            let is_waiting = !senders[side].messages.is_empty() || !pair.sides[side].read.is_empty();
            is_busy |= is_waiting || !pair.sides[side].wire.is_empty();
        }
    }
    for side in [0, 1] {
        assert!(pair.sides[1 - side].payload == senders[side].sent, "bytes were lost or doubled");
        pair.sides[side].protocol.close(0);
    }
    pair.settle()?;
    assert!(pair.sides.iter().all(|side| side.protocol.is_closed()));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn long_runs_lose_nothing_and_end(
        window in 1_u32..9,
        start in prop_oneof![Just(0), Just(u32::MAX - 3)],
        steps in prop::collection::vec(step(), 0..300),
    ) {
        prop_assert_eq!(run(window, start, &steps), Ok(()));
    }
}
