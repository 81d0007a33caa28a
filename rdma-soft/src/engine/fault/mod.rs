//! Faults on demand: picks the requests that fail, by a plan, and remembers what is still to happen
//! to them.
//!
//! A posted request is judged when it is posted, a request that arrives when its first frame
//! arrives: the choices depend on the plan and on the order of requests, and not on time. The
//! services let the fault happen where the real one would: the rest of the engine then does what it
//! does after a real fault. Without a plan, each of these places is one test of a pointer.

mod parse;
mod plan;

use std::collections::HashMap;

pub use self::parse::{HELP, ParseFaultError};
pub use self::plan::FaultPlan;
pub(crate) use self::plan::{Attempts, Fault, Operations, Subject};

use self::plan::{Pick, Rule};
use super::frame::{self, Frame, Kind};
use super::qp::Qp;
use super::tables::Tables;
use super::timer::Owner;
use super::types::{Errand, Op, QpId, QpState, SendFlags, SendRequest};

/// How often a plan has picked requests since it was set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultReport {
    /// The rules of the plan, in its order.
    pub rules: Vec<RuleReport>,
}

impl FaultReport {
    /// The number of faults, of all rules.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.rules.iter().map(|rule| rule.injected).sum()
    }
}

/// How often a rule has picked requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleReport {
    /// The text of the rule.
    pub rule: String,
    /// The number of requests that the rule is for.
    pub matched: u64,
    /// The number of requests that the rule picked. If an earlier rule picked the same request, the
    /// earlier rule's fault happens.
    pub injected: u64,
}

/// A fault that begins, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Injected {
    /// The name of the fault.
    pub(crate) name: &'static str,
    /// The queue pair; 0 for a fault that no request has met.
    pub(crate) qpn: u32,
    /// Whether the request has arrived here.
    pub(crate) inbound: bool,
    /// Whether the process must end now.
    pub(crate) dies: bool,
}

/// A generator of random numbers: splitmix64.
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    /// Makes the generator of a rule. Every rule has one, so that rules do not disturb each other.
    fn of_rule(seed: u64, index: usize) -> Self {
        let mut random = Self(seed);
        random.0 ^= Self(index as u64).next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns true with a probability.
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit")]
    fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    /// Returns a number of a range, both ends included.
    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }
}

/// A rule and its counts.
#[derive(Debug)]
struct Active {
    rule: Rule,
    random: Random,
    matched: u64,
    injected: u64,
}

impl Active {
    /// Counts a request if the rule is for it, and decides whether the rule picks it.
    fn picks(&mut self, subject: &Subject) -> bool {
        if !self.rule.matches(subject) {
            return false;
        }
        self.matched += 1;
        if self.matched <= self.rule.after {
            return false;
        }
        let number = self.matched - self.rule.after;
        let picked = match self.rule.pick {
            Pick::Each => true,
            Pick::Nth(nth) => number == nth,
            Pick::Every(step) => number % step == 0,
            Pick::Chance(chance) => self.random.chance(chance),
            Pick::At(_) => false,
        };
        let picked = picked && self.rule.limit.is_none_or(|limit| self.injected < limit);
        self.injected += u64::from(picked);
        picked
    }

    /// Returns the fault, with the random parts chosen.
    fn fault(&mut self) -> Fault {
        match self.rule.fault {
            Fault::Delay(from, to) => {
                let nanos = self.random.between(from, to);
                Fault::Delay(nanos, nanos)
            }
            fault => fault,
        }
    }
}

/// A request that has arrived in part or will arrive again, and its fault.
#[derive(Debug)]
struct Arrival {
    number: u32,
    fault: Option<Fault>,
}

/// A plan in use.
#[derive(Debug)]
pub(super) struct Faults {
    rules: Vec<Active>,
    /// Posted requests, by queue pair and position in its send queue.
    posted: HashMap<(u32, u64), Fault>,
    /// The last request that has arrived at each queue pair.
    arrived: HashMap<u32, Arrival>,
    /// The queue pairs whose next request is delayed now.
    delayed: Vec<u32>,
}

impl Faults {
    fn new(plan: &FaultPlan) -> Self {
        let active = |(index, rule): (usize, &Rule)| Active {
            rule: *rule,
            random: Random::of_rule(plan.seed, index),
            matched: 0,
            injected: 0,
        };
        Self {
            rules: plan.rules.iter().enumerate().map(active).collect(),
            posted: HashMap::new(),
            arrived: HashMap::new(),
            delayed: Vec::new(),
        }
    }

    /// Whether peers must not execute requests on this process's memory by themselves.
    fn bars_direct_requests(&self) -> bool {
        self.rules.iter().any(|active| active.rule.inbound)
    }

    fn report(&self) -> FaultReport {
        let report = |active: &Active| RuleReport {
            rule: active.rule.to_string(),
            matched: active.matched,
            injected: active.injected,
        };
        FaultReport { rules: self.rules.iter().map(report).collect() }
    }

    /// Returns the fault of the first rule that picks a request. Every rule counts the request.
    fn judge(&mut self, subject: &Subject) -> Option<Fault> {
        let mut found = None;
        for active in &mut self.rules {
            if active.picks(subject) {
                let fault = active.fault();
                found.get_or_insert(fault);
            }
        }
        found
    }
}

impl Tables {
    /// Replaces the plan. Requests that wait because of the old plan go on.
    pub(super) fn set_faults(&mut self, plan: Option<&FaultPlan>) {
        for index in self.timed_rules() {
            self.timers.cancel(Owner::Fault(index));
        }
        let old = core::mem::replace(&mut self.faults, plan.map(|plan| Box::new(Faults::new(plan))));
        for qp in old.iter().flat_map(|old| &old.delayed) {
            self.timers.start(Owner::Delay(QpId(*qp)), 0, 0);
        }
        let Self { faults, timers, .. } = self;
        for (index, active) in (0..).zip(faults.iter().flat_map(|faults| &faults.rules)) {
            if let Pick::At(nanos) = active.rule.pick {
                timers.start(Owner::Fault(index), 0, nanos);
            }
        }
    }

    /// Returns the indices of the rules whose time comes by itself.
    fn timed_rules(&self) -> Vec<u32> {
        let rules = self.faults.iter().flat_map(|faults| &faults.rules);
        let is_timed = |active: &Active| matches!(active.rule.pick, Pick::At(_));
        (0..).zip(rules).filter(|(_, active)| is_timed(active)).map(|(index, _)| index).collect()
    }

    /// Returns how often the plan has picked requests.
    pub(super) fn fault_report(&self) -> FaultReport {
        self.faults.as_ref().map(|faults| faults.report()).unwrap_or_default()
    }

    /// Whether the plan is for requests that peers could execute without this engine.
    pub(super) fn faults_bar_direct_requests(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.bars_direct_requests())
    }

    /// Handles the timer of a rule.
    pub(super) fn handle_fault_timer(&mut self, index: u32) {
        let Some(faults) = &mut self.faults else { return };
        if let Some(active) = faults.rules.get_mut(index as usize) {
            active.injected += 1;
            let name = active.rule.fault.name();
            self.errands.push_back(Errand::Fault(Injected { name, qpn: 0, inbound: false, dies: true }));
        }
    }

    /// Judges a request that is about to be posted to `qp`, and marks it if a fault waits for it.
    /// `total` is the length of its message.
    pub(super) fn judge_post(&mut self, qp: &Qp, request: &mut SendRequest, total: u32, operation: Operations) {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        let is_send = matches!(request.op, Op::Send);
        let takes_receive = is_send || (request.op == Op::Write && request.flags.contains(SendFlags::IMM));
        let subject = Subject { qpn: qp.qpn, inbound: false, operation, takes_receive, is_empty: total == 0 };
        let Some(fault) = self.judge(&subject) else { return };
        match fault {
            Fault::Die => {}
            // No region has this key, so the target refuses the request.
            Fault::Access => request.rkey = 0,
            fault => {
                request.flags |= SendFlags::FAULT;
                if let Some(faults) = &mut self.faults {
                    faults.posted.insert((qp.id.0, qp.sq.tail), fault);
                }
            }
        }
    }

    /// Judges a request whose first frame has arrived at `qp`; a request that arrives again keeps
    /// its judgement. Uses up one attempt of a fault that spoils several.
    pub(super) fn judge_arrival(&mut self, qp: &Qp, frame: &Frame) -> Option<Fault> {
        let faults = self.faults.as_mut()?;
        let is_new = faults.arrived.get(&qp.id.0).is_none_or(|arrival| arrival.number != frame.number);
        if is_new {
            let fault = self.judge(&arriving(qp, frame)).filter(|fault| *fault != Fault::Die);
            self.faults.as_mut()?.arrived.insert(qp.id.0, Arrival { number: frame.number, fault });
        }
        let arrival = self.faults.as_mut()?.arrived.get_mut(&qp.id.0)?;
        let fault = arrival.fault?;
        arrival.fault = after_attempt(fault);
        Some(fault)
    }

    /// Judges a datagram that has arrived at `qp`: true if it is lost.
    pub(super) fn loses_datagram(&mut self, qp: &Qp, frame: &Frame) -> bool {
        matches!(self.judge(&arriving(qp, frame)), Some(Fault::Loss(_)))
    }

    fn judge(&mut self, subject: &Subject) -> Option<Fault> {
        let fault = self.faults.as_mut()?.judge(subject)?;
        let (name, dies) = (fault.name(), fault == Fault::Die);
        let injected = Injected { name, qpn: subject.qpn, inbound: subject.inbound, dies };
        self.errands.push_back(Errand::Fault(injected));
        Some(fault)
    }

    /// Returns the fault that waits for a posted request, and uses up one attempt of a fault that
    /// spoils several. A delay waits until its timer fires, a local error until the request is the
    /// oldest.
    pub(super) fn take_fault(&mut self, qp: QpId, position: u64) -> Option<Fault> {
        let faults = self.faults.as_mut()?;
        let fault = *faults.posted.get(&(qp.0, position))?;
        match after_attempt(fault) {
            Some(left) => faults.posted.insert((qp.0, position), left),
            None if matches!(fault, Fault::Delay(..) | Fault::Protection) => None,
            None => faults.posted.remove(&(qp.0, position)),
        };
        Some(fault)
    }

    /// Whether a fault waits for a posted request.
    pub(super) fn has_fault(&self, qp: QpId, position: u64) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.posted.contains_key(&(qp.0, position)))
    }

    /// Starts the delay of a queue pair's next request, unless it runs.
    pub(super) fn delay(&mut self, qp: QpId, nanos: u64) {
        let Some(faults) = &mut self.faults else { return };
        if !faults.delayed.contains(&qp.0) {
            faults.delayed.push(qp.0);
            self.timers.start(Owner::Delay(qp), 0, nanos);
        }
    }

    /// Ends a delay: the request at `position` may start.
    pub(super) fn end_delay(&mut self, qp: QpId, position: u64) {
        if let Some(faults) = &mut self.faults {
            faults.delayed.retain(|delayed| *delayed != qp.0);
            if matches!(faults.posted.get(&(qp.0, position)), Some(Fault::Delay(..))) {
                faults.posted.remove(&(qp.0, position));
            }
        }
    }

    /// Forgets the requests of a queue pair that is reset.
    pub(super) fn forget_faults(&mut self, qp: QpId) {
        self.timers.cancel(Owner::Delay(qp));
        if let Some(faults) = &mut self.faults {
            faults.posted.retain(|(id, _), _| *id != qp.0);
            faults.delayed.retain(|id| *id != qp.0);
            faults.arrived.remove(&qp.0);
        }
    }
}

/// Returns what is left of a fault after one attempt of its request.
fn after_attempt(fault: Fault) -> Option<Fault> {
    let left = |attempts| match attempts {
        Attempts::All => Some(Attempts::All),
        Attempts::Some(attempts) => (attempts > 1).then(|| Attempts::Some(attempts - 1)),
    };
    match fault {
        Fault::Loss(attempts) => left(attempts).map(Fault::Loss),
        Fault::Rnr(attempts) => left(attempts).map(Fault::Rnr),
        _ => None,
    }
}

/// Describes a request that has arrived at a queue pair.
fn arriving(qp: &Qp, frame: &Frame) -> Subject {
    let operation = match frame.kind {
        Kind::Send => Operations::SEND,
        Kind::Read => Operations::READ,
        Kind::CompareSwap | Kind::FetchAdd => Operations::ATOMIC,
        Kind::Datagram => Operations::DATAGRAM,
        _ => Operations::WRITE,
    };
    let takes_receive = frame.kind == Kind::Send || frame.flags & frame::IMM != 0;
    Subject { qpn: qp.qpn, inbound: true, operation, takes_receive, is_empty: frame.total == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(operation: Operations) -> Subject {
        Subject { qpn: 7, inbound: false, operation, takes_receive: true, is_empty: false }
    }

    /// The numbers of the sends, of `count`, that a plan picks.
    fn picked(plan: &str, count: u64) -> Vec<u64> {
        let mut faults = Faults::new(&plan.parse().unwrap());
        (1..=count).filter(|_| faults.judge(&subject(Operations::SEND)).is_some()).collect()
    }

    #[test]
    fn options_pick_requests_by_number() {
        assert_eq!(picked("loss", 3), [1, 2, 3]);
        assert_eq!(picked("loss:nth=2", 5), [2]);
        assert_eq!(picked("loss:every=2", 5), [2, 4]);
        assert_eq!(picked("loss:after=2:every=2", 8), [4, 6, 8]);
        assert_eq!(picked("loss:after=1:limit=2", 8), [2, 3]);
        assert_eq!(picked("loss:qp=7:nth=1; loss:qp=8", 3), [1]);
        assert_eq!(picked("access; loss:recv; loss:write", 3), [0; 0]);
    }

    #[test]
    fn a_seed_repeats_the_choices_and_another_changes_them() {
        let plan = |seed: u64| picked(&format!("seed={seed}; loss:p=0.25"), 1000);
        assert_eq!(plan(3), plan(3));
        assert_ne!(plan(3), plan(4));
        assert!((150..350).contains(&plan(3).len()), "{}", plan(3).len());
        assert_eq!(picked("loss:p=1", 5).len(), 5);
    }

    #[test]
    fn a_rule_chooses_the_same_whatever_stands_behind_it() {
        let alone = picked("loss:p=0.1", 300);
        let mut both = Faults::new(&"loss:p=0.1; rnr:p=0.5".parse().unwrap());
        let losses = |_: &u64| matches!(both.judge(&subject(Operations::SEND)), Some(Fault::Loss(_)));
        assert_eq!((1..=300).filter(losses).collect::<Vec<u64>>(), alone);
        let report = both.report();
        assert_eq!(report.rules[0].injected, alone.len() as u64);
        assert_eq!((report.rules[1].matched, report.rules[1].rule.as_str()), (300, "rnr:p=0.5"));
    }

    #[test]
    fn random_delays_lie_in_their_range() {
        let mut faults = Faults::new(&"delay=5us..7us".parse().unwrap());
        for _ in 0..100 {
            match faults.judge(&subject(Operations::SEND)) {
                Some(Fault::Delay(nanos, same)) => assert!(nanos == same && (5000..=7000).contains(&nanos)),
                other => panic!("{other:?}"),
            }
        }
    }
}
