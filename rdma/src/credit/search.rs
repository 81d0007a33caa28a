//! All orders of two sides' steps: no message without a receive, no side that waits for ever.

use std::collections::{HashSet, VecDeque};
use std::mem;

use super::{CreditError, ReceiveWindow, SendWindow};

/// When a side grants in a message of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// When a grant is due.
    Due,
    /// When a grant is due, and when the peer is blocked.
    DueOrBlocked,
    /// For each receive, which is too often.
    Each,
}

impl Rule {
    fn wants_grant(self, receives: &ReceiveWindow) -> bool {
        let owes = receives.owed() > 0;
        match self {
            Self::Due => receives.is_due(),
            Self::DueOrBlocked => receives.is_due() || receives.is_peer_blocked() && owes,
            Self::Each => owes,
        }
    }
}

/// How the peer learns of credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// By counts, in messages of their own.
    Counts,
    /// By limits, in every message.
    Limits,
}

/// What both sides agree on.
#[derive(Debug, Clone, Copy)]
struct Scheme {
    rule: Rule,
    format: Format,
    windows: [u32; 2],
    /// The number of the first message.
    start: u32,
    /// Receives beyond the window.
    control: u32,
}

#[derive(Debug, Clone, Copy)]
enum Message {
    Data {
        limit: Option<u32>,
    },
    /// The first message: the window of the peer, with as many credits.
    Greeting(u32),
    Count(u32),
    Limit(u32),
}

/// One side with its receives.
#[derive(Debug, Clone)]
struct Side {
    sends: SendWindow,
    receives: ReceiveWindow,
    /// Receives that are posted and empty.
    posted: u32,
    /// Messages on the way to this side.
    wire: VecDeque<Message>,
    /// Messages in receives, not yet processed.
    inbox: VecDeque<Message>,
    /// Messages that the program has not let go of.
    held: u32,
}

#[derive(Debug, Clone)]
struct Pair {
    scheme: Scheme,
    sides: [Side; 2],
}

/// The broken promise of a step.
#[derive(Debug, PartialEq, Eq)]
enum Broken {
    /// A message found no receive.
    NoReceive,
    /// A message or grant of an honest peer was refused.
    Refused(CreditError),
    /// A receive of the window was not counted.
    NotCounted,
    /// A side waits for credits that will not come.
    Starved,
}

impl From<CreditError> for Broken {
    fn from(error: CreditError) -> Self {
        Self::Refused(error)
    }
}

/// A step of a device or a side: false if there is nothing to do.
type Step = fn(&mut Pair, usize) -> Result<bool, Broken>;

/// Steps that happen in the end, whatever the program does, and steps of a program.
const STEPS: [Step; 3] = [Pair::arrive, Pair::process, Pair::grant];
const CHOICES: [Step; 2] = [Pair::send, Pair::recycle];

impl Pair {
    fn new(scheme: Scheme) -> Self {
        let Scheme { windows, start, control, .. } = scheme;
        let sides = [0, 1].map(|side| Side {
            sends: SendWindow::new(0, 0),
            receives: ReceiveWindow::new(windows[side], windows[side]).starting_at(start),
            posted: windows[side] + control,
            wire: [Message::Greeting(windows[1 - side])].into(),
            inbox: VecDeque::new(),
            held: 0,
        });
        Self { scheme, sides }
    }

    fn send(&mut self, side: usize) -> Result<bool, Broken> {
        let this = &mut self.sides[side];
        let may_send = this.sends.spend();
        if may_send {
            let limit = (self.scheme.format == Format::Limits).then(|| this.receives.grant_limit());
            self.sides[1 - side].wire.push_back(Message::Data { limit });
        }
        Ok(may_send)
    }

    /// The device takes the next message into a receive.
    fn arrive(&mut self, side: usize) -> Result<bool, Broken> {
        let this = &mut self.sides[side];
        let Some(message) = this.wire.pop_front() else { return Ok(false) };
        this.posted = this.posted.checked_sub(1).ok_or(Broken::NoReceive)?;
        this.inbox.push_back(message);
        Ok(true)
    }

    fn process(&mut self, side: usize) -> Result<bool, Broken> {
        let start = self.scheme.start;
        let this = &mut self.sides[side];
        let Some(message) = this.inbox.pop_front() else { return Ok(false) };
        match message {
            Message::Data { limit } => {
                limit.map_or(Ok(()), |limit| this.sends.accept_limit(limit))?;
                this.receives.receive()?;
                this.held += 1;
                return Ok(true);
            }
            Message::Greeting(window) => this.sends = SendWindow::new(window, window).starting_at(start),
            Message::Count(count) => this.sends.accept_count(count)?,
            Message::Limit(limit) => this.sends.accept_limit(limit)?,
        }
        this.posted += 1;
        Ok(true)
    }

    fn grant(&mut self, side: usize) -> Result<bool, Broken> {
        let receives = &mut self.sides[side].receives;
        let wants = self.scheme.rule.wants_grant(receives);
        if wants {
            let message = match self.scheme.format {
                Format::Counts => Message::Count(receives.grant_count()),
                Format::Limits => Message::Limit(receives.grant_limit()),
            };
            self.sides[1 - side].wire.push_back(message);
        }
        Ok(wants)
    }

    /// The program lets go of a message, whose receive is posted again.
    fn recycle(&mut self, side: usize) -> Result<bool, Broken> {
        let this = &mut self.sides[side];
        let is_held = this.held > 0;
        if is_held {
            (this.held, this.posted) = (this.held - 1, this.posted + 1);
            if !this.receives.post() {
                return Err(Broken::NotCounted);
            }
        }
        Ok(is_held)
    }

    /// Whether a side has no credit, although no step is left but those of the programs.
    fn is_starved(&self) -> bool {
        [0, 1].into_iter().any(|side| {
            let (window, held) = (self.scheme.windows[1 - side], self.sides[1 - side].held);
            // By the first rule, a program that holds messages may keep the peer waiting.
            let is_allowed = if self.scheme.rule == Rule::Due { held > 0 } else { held == window };
            self.sides[side].sends.available() == 0 && !is_allowed
        })
    }

    /// The state with counters relative to each other: equal keys have equal futures. Sides with
    /// equal windows may change places.
    fn key(&self) -> [Vec<u32>; 2] {
        let [first, second] = self.sides.each_ref().map(Side::key);
        let [window, other] = self.scheme.windows;
        if window == other && second < first { [second, first] } else { [first, second] }
    }
}

impl Side {
    fn key(&self) -> Vec<u32> {
        let Self { sends, receives, posted, wire, inbox, held } = self;
        let mut key = Vec::with_capacity(16);
        key.extend([sends.available(), receives.granted(), receives.owed(), *posted, *held]);
        for messages in [wire, inbox] {
            key.push(u32::try_from(messages.len()).unwrap());
            key.extend(messages.iter().map(|message| match message {
                Message::Data { limit: None } => 0,
                Message::Data { limit: Some(limit) } => 1 | limit.wrapping_sub(sends.limit()) << 8,
                Message::Greeting(_) => 2,
                Message::Count(count) => 3 | count << 8,
                Message::Limit(limit) => 4 | limit.wrapping_sub(sends.limit()) << 8,
            }));
        }
        key
    }
}

/// Tries all orders of all steps; returns the number of states, of which two that differ by the
/// places of equal sides are one.
fn search(scheme: Scheme) -> Result<usize, Broken> {
    let start = Pair::new(scheme);
    let mut seen = HashSet::from([start.key()]);
    let mut open = vec![start];
    while let Some(pair) = open.pop() {
        let mut is_quiet = true;
        let mut next = pair.clone();
        for (number, step) in STEPS.into_iter().chain(CHOICES).enumerate() {
            for side in [0, 1] {
                // A step with nothing to do changes nothing.
                if step(&mut next, side)? {
                    is_quiet &= number >= STEPS.len();
                    let after = mem::replace(&mut next, pair.clone());
                    if seen.insert(after.key()) {
                        open.push(after);
                    }
                }
            }
        }
        if is_quiet && pair.is_starved() {
            return Err(Broken::Starved);
        }
    }
    Ok(seen.len())
}

const SUFFICES: u32 = ReceiveWindow::MAX_PENDING_GRANTS;

/// Searches with all windows and both rules that suffice.
fn search_all(format: Format, windows: &[[u32; 2]]) {
    for &windows in windows {
        for rule in [Rule::Due, Rule::DueOrBlocked] {
            let scheme = Scheme { rule, format, windows, start: u32::MAX - 3, control: SUFFICES };
            let states = search(scheme);
            assert!(states.as_ref().is_ok_and(|&states| states > 30), "{scheme:?}: {states:?}");
        }
    }
}

#[test]
fn counts_lack_no_receive_and_no_credit_in_any_order_of_steps() {
    search_all(Format::Counts, &[[1, 1], [1, 2], [1, 3], [2, 2], [2, 3], [2, 5], [3, 3], [4, 4]]);
}

#[test]
fn limits_lack_no_receive_and_no_credit_in_any_order_of_steps() {
    search_all(Format::Limits, &[[1, 1], [1, 2], [1, 3], [2, 2], [2, 3], [2, 4], [3, 3]]);
}

#[test]
fn one_receive_for_grants_does_not_suffice() {
    for format in [Format::Counts, Format::Limits] {
        let scheme = Scheme { rule: Rule::Due, format, windows: [2, 2], start: 0, control: SUFFICES - 1 };
        assert_eq!(search(scheme), Err(Broken::NoReceive), "{format:?}");
    }
}

#[test]
fn grants_for_each_receive_need_more_receives() {
    for format in [Format::Counts, Format::Limits] {
        let scheme = Scheme { rule: Rule::Each, format, windows: [3, 3], start: 0, control: SUFFICES };
        assert_eq!(search(scheme), Err(Broken::NoReceive), "{format:?}");
    }
}
