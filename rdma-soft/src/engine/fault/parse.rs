//! The text of a plan: parsing and printing.

use core::fmt;
use core::str::FromStr;

use super::plan::{Attempts, Fault, FaultPlan, Operations, Pick, Rule};

/// The grammar of a plan, for people who write one.
pub const HELP: &str = "\
A plan is a list of rules, separated by `;`. A rule is a fault and its options, separated by `:`.
Requests that a rule picks meet the fault; if several rules pick a request, the first one counts.

  seed=7; delay=100us..2ms:send:p=0.1; rnr=3:recv:every=100; access:write:nth=5; die:after=1000

Faults
  delay=TIME, delay=TIME..TIME  the request, and all behind it, start later
  late=TIME, late=TIME..TIME    the request is executed in time, and completes later: at the latest
                                when a later request brings data, or fails
  loss, loss=N, loss=all        the network loses N attempts of the request (1): the sender sends it
                                again after its timeout, and fails with RETRY_EXC_ERR if no retry is
                                left; a datagram is lost for good
  rnr, rnr=N, rnr=all           the receiver has no receive for N attempts (1): RNR_RETRY_EXC_ERR if
                                no retry is left
  access                        the target refuses the access: REM_ACCESS_ERR
  operation                     the responder cannot execute the request: REM_OP_ERR; with `recv`, the
                                receive fails with LOC_PROT_ERR
  protection                    the sender's memory is not accessible: LOC_PROT_ERR
  response                      the answer makes no sense: BAD_RESP_ERR
  flush                         the queue pair goes to ERR: WR_FLUSH_ERR for this and later requests
  cq-error                      the completion queue overruns: CQ_ERR and QP_FATAL events
  port-down=TIME                the port is down for so long: PORT_ERR and PORT_ACTIVE events, and all
                                requests are lost
  device-fatal                  DEVICE_FATAL event; every queue pair of this process goes to ERR
  die                           this process ends by SIGKILL

Options
  send, write, read, atomic, datagram   only these operations (several may be named)
  recv            requests that arrive here; without, requests that are posted here
  qp=N            only this queue pair of this process
  after=N         the first N requests pass
  nth=N, every=N  only the Nth request; each Nth request
  p=P             each request with probability P
  limit=N         at most N requests
  at=TIME         (port-down, device-fatal, die) so long after the start, whatever is posted

Unreliable connections and datagrams have no late, rnr, operation and response, and a refused access
loses their message.

seed=N repeats the random choices (1 by default). Times have a unit: ns, us, ms or s.";

/// The most rules of a plan.
const MAX_RULES: usize = 64;
/// The longest time, in nanoseconds: an hour.
const MAX_TIME: u64 = 3_600_000_000_000;

/// The units of times, the longest first.
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)];

const OPERATIONS: [(&str, Operations); 5] = [
    ("send", Operations::SEND),
    ("write", Operations::WRITE),
    ("read", Operations::READ),
    ("atomic", Operations::ATOMIC),
    ("datagram", Operations::DATAGRAM),
];

/// Why a text is no plan of faults, with the place of the mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {at}, `{piece}`: {why}")]
pub struct ParseFaultError {
    at: usize,
    piece: String,
    why: String,
}

impl ParseFaultError {
    /// The offset in bytes at which the part that is wrong begins.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }
}

type Parsed<T> = Result<T, ParseFaultError>;

/// A part of the text, without the spaces around it.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    text: &'a str,
    /// The offset of the part in the whole text.
    at: usize,
}

impl<'a> Piece<'a> {
    fn new(text: &'a str, at: usize) -> Self {
        let trimmed = text.trim_start();
        Self { text: trimmed.trim_end(), at: at + (text.len() - trimmed.len()) }
    }

    fn split(self, separator: char) -> impl Iterator<Item = Self> {
        let mut at = self.at;
        self.text.split(separator).map(move |text| {
            let piece = Self::new(text, at);
            at += text.len() + separator.len_utf8();
            piece
        })
    }

    /// Splits `name=value`.
    fn named(self) -> (Self, Option<Self>) {
        match self.text.split_once('=') {
            Some((name, value)) => (Self::new(name, self.at), Some(Self::new(value, self.at + name.len() + 1))),
            None => (self, None),
        }
    }

    fn wrong(self, why: impl Into<String>) -> ParseFaultError {
        ParseFaultError { at: self.at, piece: self.text.to_owned(), why: why.into() }
    }

    /// Parses a number, which may be hexadecimal.
    fn number(self, least: u64) -> Parsed<u64> {
        let parsed = match self.text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => self.text.parse(),
        };
        let number = parsed.ok().filter(|number| *number >= least);
        number.ok_or_else(|| self.wrong(format!("this needs a whole number from {least}")))
    }

    fn time(self) -> Parsed<u64> {
        let digits = self.text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(self.text.len());
        let (number, unit) = self.text.split_at(digits);
        let unit = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, nanos)| *nanos);
        let nanos = number.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        let nanos = nanos.filter(|nanos| *nanos <= MAX_TIME);
        nanos.ok_or_else(|| self.wrong("this needs a time of at most an hour, such as 100us, 20ms or 3s"))
    }

    fn times(self) -> Parsed<(u64, u64)> {
        let Some((from, to)) = self.text.split_once("..") else {
            let time = self.time()?;
            return Ok((time, time));
        };
        let (from, to) = (Piece::new(from, self.at), Piece::new(to, self.at + from.len() + 2));
        let times = (from.time()?, to.time()?);
        if times.0 > times.1 {
            return Err(self.wrong("the longer time comes last"));
        }
        Ok(times)
    }

    fn attempts(self) -> Parsed<Attempts> {
        if self.text == "all" {
            return Ok(Attempts::All);
        }
        self.number(1).map(Attempts::Some).map_err(|_| self.wrong("this needs a number of attempts from 1, or `all`"))
    }
}

/// Parses a plan.
fn plan(text: &str) -> Parsed<FaultPlan> {
    let whole = Piece::new(text, 0);
    let (mut seed, mut rules) = (None, Vec::new());
    for piece in whole.split(';').filter(|piece| !piece.text.is_empty()) {
        match piece.named() {
            (name, Some(value)) if name.text == "seed" => {
                if seed.replace(value.number(0)?).is_some() {
                    return Err(piece.wrong("a plan has one seed"));
                }
            }
            _ if rules.len() == MAX_RULES => return Err(piece.wrong(format!("a plan has at most {MAX_RULES} rules"))),
            _ => rules.push(rule(piece)?),
        }
    }
    if rules.is_empty() {
        return Err(whole.wrong("a plan has at least one rule, such as `loss:p=0.01`"));
    }
    Ok(FaultPlan { seed: seed.unwrap_or(FaultPlan::DEFAULT_SEED), rules })
}

/// Parses a rule.
fn rule(piece: Piece<'_>) -> Parsed<Rule> {
    let mut pieces = piece.split(':');
    let head = pieces.next().unwrap_or(piece);
    let fault = fault(head)?;
    let mut rule = Rule {
        fault,
        inbound: false,
        operations: Operations::empty(),
        qpn: None,
        after: 0,
        pick: Pick::Each,
        limit: None,
    };
    let options: Vec<_> = pieces.collect();
    for option in &options {
        add(&mut rule, *option)?;
    }
    let possible = fault.operations(rule.inbound);
    if possible.is_empty() {
        return Err(head.wrong(format!("{} is for requests that are posted here, not for `recv`", fault.name())));
    }
    for option in &options {
        if operation(*option).is_some_and(|operation| !possible.contains(operation)) {
            return Err(option.wrong(format!("{} applies to {}", fault.name(), Names(possible, ", "))));
        }
    }
    if rule.operations.is_empty() {
        rule.operations = possible;
    }
    if let (Pick::At(_), Some(option)) = (rule.pick, options.get(1)) {
        return Err(option.wrong("a rule with `at` has no other option"));
    }
    Ok(rule)
}

/// Parses the fault at the beginning of a rule.
fn fault(head: Piece<'_>) -> Parsed<Fault> {
    let (name, value) = head.named();
    let known = Fault::ALL.into_iter().find(|fault| fault.name() == name.text).ok_or_else(|| {
        let names: Vec<_> = Fault::ALL.iter().map(|fault| fault.name()).collect();
        name.wrong(format!("there is no such fault; the faults are {}", names.join(", ")))
    })?;
    match (known, value) {
        (Fault::Delay(..) | Fault::Late(..), None) => {
            Err(head.wrong(format!("this needs a time or a range, such as {}=100us..2ms", known.name())))
        }
        (Fault::Late(..), Some(value)) => value.times().map(|(from, to)| Fault::Late(from, to)),
        (Fault::PortDown(_), None) => Err(head.wrong("port-down needs a time, such as port-down=200ms")),
        (Fault::PortDown(_), Some(value)) => value.time().map(Fault::PortDown),
        (Fault::Delay(..), Some(value)) => value.times().map(|(from, to)| Fault::Delay(from, to)),
        (Fault::Loss(_), Some(value)) => value.attempts().map(Fault::Loss),
        (Fault::Rnr(_), Some(value)) => value.attempts().map(Fault::Rnr),
        (_, Some(value)) => Err(value.wrong(format!("{} has no value", known.name()))),
        (known, None) => Ok(known),
    }
}

/// Returns the operation that an option names.
fn operation(option: Piece<'_>) -> Option<Operations> {
    OPERATIONS.iter().find(|(name, _)| *name == option.text).map(|(_, operation)| *operation)
}

/// Adds an option to a rule.
fn add(rule: &mut Rule, option: Piece<'_>) -> Parsed<()> {
    let pick = |rule: &mut Rule, pick| match core::mem::replace(&mut rule.pick, pick) {
        Pick::Each => Ok(()),
        _ => Err(option.wrong("a rule has one of nth, every, p and at")),
    };
    match option.named() {
        (name, None) => match operation(name) {
            Some(operation) => rule.operations |= operation,
            None if name.text == "recv" => rule.inbound = true,
            None => return Err(option.wrong("there is no such option")),
        },
        (name, Some(value)) => match name.text {
            "qp" => rule.qpn = Some(queue_pair(value)?),
            "after" => rule.after = value.number(0)?,
            "limit" => rule.limit = Some(value.number(1)?),
            "nth" => pick(rule, Pick::Nth(value.number(1)?))?,
            "every" => pick(rule, Pick::Every(value.number(1)?))?,
            "p" => pick(rule, Pick::Chance(probability(value)?))?,
            "at" if rule.fault.is_general() => pick(rule, Pick::At(value.time()?))?,
            "at" => return Err(option.wrong("`at` is for port-down, device-fatal and die")),
            _ => return Err(option.wrong("there is no such option")),
        },
    }
    Ok(())
}

fn queue_pair(value: Piece<'_>) -> Parsed<u32> {
    let number = u32::try_from(value.number(1)?).ok().filter(|qpn| *qpn < 1 << 24);
    number.ok_or_else(|| value.wrong("queue pair numbers have 24 bits"))
}

fn probability(value: Piece<'_>) -> Parsed<f64> {
    let chance = value.text.parse().ok().filter(|chance| 0.0 < *chance && *chance <= 1.0);
    chance.ok_or_else(|| value.wrong("this needs a probability above 0 and at most 1"))
}

impl FromStr for FaultPlan {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, ParseFaultError> {
        plan(text)
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        self.rules.iter().try_for_each(|rule| write!(f, "; {rule}"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fault.name())?;
        match self.fault {
            Fault::PortDown(time) => write!(f, "={}", Time(time))?,
            Fault::Delay(from, to) | Fault::Late(from, to) if from == to => write!(f, "={}", Time(from))?,
            Fault::Delay(from, to) | Fault::Late(from, to) => write!(f, "={}..{}", Time(from), Time(to))?,
            Fault::Loss(attempts) | Fault::Rnr(attempts) => match attempts {
                Attempts::Some(1) => {}
                Attempts::Some(attempts) => write!(f, "={attempts}")?,
                Attempts::All => f.write_str("=all")?,
            },
            _ => {}
        }
        if self.inbound {
            f.write_str(":recv")?;
        }
        if self.operations != self.fault.operations(self.inbound) {
            write!(f, ":{}", Names(self.operations, ":"))?;
        }
        if let Some(qpn) = self.qpn {
            write!(f, ":qp={qpn}")?;
        }
        if self.after != 0 {
            write!(f, ":after={}", self.after)?;
        }
        match self.pick {
            Pick::Each => {}
            Pick::Nth(nth) => write!(f, ":nth={nth}")?,
            Pick::Every(step) => write!(f, ":every={step}")?,
            Pick::Chance(chance) => write!(f, ":p={chance}")?,
            Pick::At(time) => write!(f, ":at={}", Time(time))?,
        }
        self.limit.map_or(Ok(()), |limit| write!(f, ":limit={limit}"))
    }
}

/// The names of operations, with a separator.
struct Names(Operations, &'static str);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = OPERATIONS.iter().filter(|(_, operation)| self.0.contains(*operation));
        for (index, (name, _)) in named.enumerate() {
            f.write_str(if index == 0 { "" } else { self.1 })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// A time in nanoseconds, printed in the longest unit that keeps it whole.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, nanos) = UNITS.into_iter().find(|(_, nanos)| self.0 % nanos == 0).unwrap_or(("ns", 1));
        write!(f, "{}{unit}", self.0 / nanos)
    }
}

#[cfg(test)]
mod tests;
