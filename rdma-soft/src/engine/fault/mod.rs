//! Faults on demand: picks the requests that fail, by a plan, and remembers what is still to happen
//! to them.
//!
//! A posted request is judged when it is posted, a request that arrives when its first frame
//! arrives: the choices depend on the plan and on the order of requests, and not on time. The
//! services let the fault happen where the real one would: the rest of the engine then does what it
//! does after a real fault. Without a plan, each of these places is one test of a pointer:
//! 4 instructions of the 699 of post and poll of a write.
//!
//! A request whose access is to be refused gets the key 0, which no region has, so the peer's own
//! check refuses it. While a plan has rules for arriving requests, the directory admits no peer, so
//! that one-sided operations arrive as frames.
//!
//! # Files
//!
//! ```text
//!   plan.rs, parse.rs  the rules; their text
//!   apply.rs           what the services ask of the plan
//! ```

mod apply;
mod parse;
mod plan;

use std::collections::HashMap;

pub(super) use self::apply::Unanswered;
pub use self::parse::{HELP, ParseFaultError};
pub use self::plan::FaultPlan;
pub(crate) use self::plan::{Fault, Operations};

use self::plan::{Pick, Rule, Subject};

/// The environment variable that holds the plan of a process.
pub const VARIABLE: &str = "RDMA_SOFT_FAULT";

/// Counts of the requests that a plan has picked since it was set.
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

/// Counts of the requests that a rule has picked.
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
            Fault::Late(from, to) => {
                let nanos = self.random.between(from, to);
                Fault::Late(nanos, nanos)
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
    /// The queue pairs whose oldest request completes late.
    late: Vec<u32>,
    port_is_down: bool,
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
            late: Vec::new(),
            port_is_down: false,
        }
    }

    /// Whether peers must not execute requests on this process's memory by themselves.
    fn bars_direct_requests(&self) -> bool {
        self.rules.iter().any(|active| active.rule.inbound || matches!(active.rule.fault, Fault::PortDown(_)))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(operation: Operations) -> Subject {
        Subject { qpn: 7, inbound: false, operation, takes_receive: true, is_empty: false, is_reliable: true }
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
