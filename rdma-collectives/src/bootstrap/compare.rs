//! Compares the operations of a communicator's ranks, in the background.
//!
//! Each rank reports the new entries of its [`Journal`] to rank 0 of the communicator, twice a
//! second while it does operations, and less often in a job of thousands of ranks. Rank 0 compares
//! the entries of equal numbers. If two differ it tells every rank, whose operations of this
//! communicator then end with an error that names both; other communicators go on.
//!
//! Rank 0 need not take part itself: the thread that sends its heartbeats, and those that read its
//! connections, compare. A rank that is slow or stopped has begun fewer operations than the others,
//! and its journal has nothing to compare beyond them: nobody accuses it.
//!
//! The last report of a communicator goes out when it is dropped, or at the end of the job. Its
//! ledger is kept for a while, for the reports and the news of ranks that drop theirs later, and
//! [`Group::conclude`] returns what no operation has returned.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Group;
use super::frame::{Frame, GroupId, Routed};
use super::journal::{Entry, Journal, MOST_ENTRIES, Mismatch, NO_HASH, News, Recorder, Report, Signature};
use super::router::{NotDue, Router};
use super::watch::Watch;
use crate::Error;
use crate::cause::Cause;

/// Interval between two reports of a rank.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time by which the interval is longer for each rank of the job, all of which may report to one.
const INTERVAL_PER_RANK: Duration = Duration::from_millis(1);

/// Most communicators that have been dropped and whose operations are still compared.
const MOST_CLOSED: usize = 16;

/// Time for a report to arrive, and for the news of what it has shown.
const TRAVEL: Duration = Duration::from_millis(500);

/// The entries that some ranks of a communicator have reported and others have not.
#[derive(Debug)]
struct Comparison {
    /// By number.
    entries: BTreeMap<u64, Slot>,
    /// The signature of an operation without numbers of elements.
    outline: fn(Signature) -> Signature,
    /// The last operation that each rank has reported.
    last: Vec<u64>,
    /// For each rank, the highest number whose entry was equal to another rank's.
    equal: Vec<u64>,
    /// Whether a mismatch has been found: all ranks are told of the same one.
    is_over: bool,
}

/// The first reports of an operation, with their ranks: of a rank that has a hash of all
/// operations, and of one that has none because it is or was an aggregator.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    hashed: Option<(usize, Entry)>,
    other: Option<(usize, Entry)>,
}

impl Comparison {
    fn new(world: usize, outline: fn(Signature) -> Signature) -> Self {
        Self { entries: BTreeMap::new(), outline, last: vec![0; world], equal: vec![0; world], is_over: false }
    }

    /// Whether two ranks have done the same, as far as both tell.
    fn are_equal(&self, one: Entry, other: Entry) -> bool {
        if one.hash != NO_HASH && other.hash != NO_HASH {
            return one == other;
        }
        let [first, second] = [one, other].map(|entry| entry.signature);
        let [short, other] = [first, second].map(self.outline);
        if short == first || other == second { short == other } else { first == second }
    }

    /// Takes a rank's report, and says whether it differs from those of other ranks.
    fn take(&mut self, rank: usize, report: Report) -> Option<Mismatch> {
        if self.is_over {
            return None;
        }
        let (mut found, mut is_named): (Option<Mismatch>, _) = (None, false);
        for entry in report.entries {
            let slot = self.entries.entry(entry.number).or_default();
            let has_hash = entry.hash != NO_HASH;
            let same = if has_hash { &mut slot.hashed } else { &mut slot.other };
            same.get_or_insert((rank, entry));
            let Slot { hashed, other: unhashed } = *slot;
            for (other, theirs) in [hashed, unhashed].into_iter().flatten().filter(|(other, _)| *other != rank) {
                if self.are_equal(theirs, entry) {
                    if has_hash && theirs.hash != NO_HASH && found.is_none() {
                        for at in [other, rank] {
                            self.equal[at] = self.equal[at].max(entry.number);
                        }
                    }
                    continue;
                }
                let pair = [(other, theirs.signature), (rank, entry.signature)];
                let pair = if other < rank { pair } else { [pair[1], pair[0]] };
                let (ranks, signatures) = (pair.map(|(rank, _)| rank), pair.map(|(_, signature)| signature));
                // A rank may be compared with others up to later operations.
                let equal_up_to = self.equal[other].min(self.equal[rank]).min(entry.number.saturating_sub(1));
                let mismatch = Mismatch { number: entry.number, ranks, signatures, equal_up_to };
                // One that names two operations says more than one that knows hashes alone.
                is_named |= theirs.signature != entry.signature;
                found = Some(found.filter(|_| !is_named).unwrap_or(mismatch));
                if is_named {
                    break;
                }
            }
            if is_named {
                break;
            }
        }
        if let Some(last) = self.last.get_mut(rank) {
            *last = report.last.max(*last);
        }
        let done = self.last.iter().copied().min().unwrap_or(0);
        self.entries = self.entries.split_off(&done.saturating_add(1));
        // No rank is so far ahead of the others, unless it waits for none. The others come to its
        // first entries first.
        while self.entries.len() > MOST_ENTRIES * 2 * self.last.len() {
            self.entries.pop_last();
        }
        self.is_over = found.is_some();
        found
    }
}

/// A journal of this rank, and what it needs to be compared with those of the other ranks.
struct Ledger {
    group: GroupId,
    /// The rank in the job of each rank of the communicator.
    members: Vec<usize>,
    journal: Arc<Journal>,
    /// The last operation that has been reported.
    reported: AtomicU64,
    /// At rank 0 of the communicator.
    comparison: Mutex<Comparison>,
    watch: Watch,
    /// Makes the error of a mismatch.
    explain: Box<dyn Fn(&Mismatch) -> Error + Send + Sync>,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("group", &self.group).field("members", &self.members).finish_non_exhaustive()
    }
}

/// The journals of a rank, by communicator.
#[derive(Debug, Default)]
pub(super) struct Ledgers(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    open: HashMap<GroupId, Arc<Ledger>>,
    /// Those of the communicators that were dropped last.
    closed: VecDeque<Arc<Ledger>>,
}

impl Ledgers {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ledgers of the communicators in use.
    fn open(&self) -> Vec<Arc<Ledger>> {
        self.all().open.values().cloned().collect()
    }

    fn of(&self, group: &GroupId) -> Option<Arc<Ledger>> {
        let all = self.all();
        all.open.get(group).or_else(|| all.closed.iter().find(|ledger| ledger.group == *group)).cloned()
    }

    /// A mismatch of which no operation has told.
    pub(super) fn untold(&self) -> Option<Error> {
        let all = self.all();
        all.open.values().chain(&all.closed).find_map(|ledger| ledger.watch.untold())
    }
}

impl Router {
    /// The interval between two reports of a rank.
    pub(super) fn interval(&self) -> Duration {
        INTERVAL + INTERVAL_PER_RANK * u32::try_from(self.world).unwrap_or(u32::MAX)
    }

    /// Reports the new operations of this rank, except where the connection is in use.
    pub(super) fn report(&self) {
        for ledger in self.ledgers.open() {
            self.report_of(&ledger, |root, frame| self.try_send(root, frame));
        }
    }

    /// Reports all operations of this rank: no more follow.
    pub(super) fn report_last(&self) {
        self.ledgers.open().iter().for_each(|ledger| self.report_last_of(ledger));
    }

    fn report_last_of(&self, ledger: &Ledger) {
        self.report_of(ledger, |root, frame| {
            self.send_towards(root, frame);
            true
        });
    }

    /// Ends the journal of a communicator, with a last report.
    pub(super) fn close_ledger(&self, group: &GroupId) {
        // Under one lock: a report that comes meanwhile finds the journal in one of both places.
        let mut all = self.ledgers.all();
        let Some(ledger) = all.open.remove(group) else { return };
        all.closed.push_back(Arc::clone(&ledger));
        if all.closed.len() > MOST_CLOSED {
            all.closed.pop_front();
        }
        drop(all);
        self.report_last_of(&ledger);
    }

    /// Reports the new operations of a communicator. `send` returns whether it has sent.
    fn report_of(&self, ledger: &Ledger, send: impl FnOnce(usize, &Frame) -> bool) {
        let Some(report) = ledger.journal.since(ledger.reported.load(Ordering::Relaxed)) else { return };
        let (last, root) = (report.last, ledger.members[0]);
        if root == self.rank() {
            self.compare(ledger, 0, report);
        } else {
            let (group, content) = (ledger.group.clone(), News::Report(report));
            let routed = Routed { group, from: self.rank(), to: vec![root], content };
            if !send(root, &Frame::Compare(routed)) {
                // The connection is in use: the next report has these entries too.
                return;
            }
        }
        ledger.reported.fetch_max(last, Ordering::Relaxed);
    }

    /// Takes what a rank of the job tells about the operations of a communicator.
    pub(super) fn learn(&self, group: &GroupId, from: usize, news: News) -> Result<(), NotDue> {
        // A communicator that this rank has dropped long ago needs no news.
        let Some(ledger) = self.ledgers.of(group) else { return Ok(()) };
        let rank = ledger.members.iter().position(|&member| member == from).ok_or(NotDue(from))?;
        match news {
            News::Report(report) if ledger.members[0] == self.rank() && report.entries.len() <= MOST_ENTRIES => {
                self.compare(&ledger, rank, report);
            }
            News::Mismatch(mismatch) if rank == 0 => self.fail(&ledger, &mismatch),
            _ => return Err(NotDue(from)),
        }
        Ok(())
    }

    /// Compares a report with those of the other ranks, at rank 0 of the communicator.
    fn compare(&self, ledger: &Ledger, rank: usize, report: Report) {
        let mut comparison = ledger.comparison.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mismatch) = comparison.take(rank, report) else { return };
        // Under the lock: a thread that finds the comparison over may rely on all being told.
        let (group, content) = (ledger.group.clone(), News::Mismatch(mismatch));
        let (from, to) = (self.rank(), ledger.members[1..].to_vec());
        self.send_news(Routed { group, from, to, content });
        self.fail(ledger, &mismatch);
    }

    /// Ends the operations of a communicator at this rank.
    fn fail(&self, ledger: &Ledger, mismatch: &Mismatch) {
        if ledger.watch.fail_part((ledger.explain)(mismatch)) {
            self.wake(&ledger.group);
        }
    }
}

impl Group {
    /// The error for different operations of this group's ranks, if they are known.
    pub(crate) fn known_mismatch(&self) -> Option<Error> {
        self.watch.check_part().err()
    }

    /// The same if they become known soon: after one of them has failed. `None` if the job has
    /// failed for another reason.
    pub(crate) fn mismatch(&self) -> Option<Error> {
        if self.ranks() < 2 {
            return None;
        }
        let deadline = Instant::now() + 2 * self.router.interval() + TRAVEL;
        loop {
            if let Err(mismatch) = self.watch.check_part() {
                return Some(mismatch);
            }
            if self.watch.check().is_err() || Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Begins the journal of the operations of this group's communicator. `describe` makes texts of
    /// two signatures, which differ if the signatures do; `outline` makes the signature that
    /// aggregators have in common with the ranks.
    pub(crate) fn recorder(
        &self,
        describe: fn([Signature; 2]) -> [String; 2],
        outline: fn(Signature) -> Signature,
    ) -> Recorder {
        if self.ranks() < 2 {
            return Recorder::new(None, self.watch());
        }
        let journal = Arc::new(Journal::new());
        let (own, members, roles) = (self.rank, self.members.clone(), self.terms.roles);
        let hosts: Vec<Arc<str>> = self.hosts.iter().map(|host| host.label().into()).collect();
        let explain = move |mismatch: &Mismatch| {
            let name = |rank: usize| match members.get(rank) {
                Some(&member) if member != rank => format!("rank {rank} ({} of the job)", roles.name(member)),
                _ => roles.name(rank),
            };
            let Mismatch { number, ranks, signatures, equal_up_to } = *mismatch;
            let ([one, other], [first, second]) = (ranks.map(name), describe(signatures));
            let text = if first == second {
                format!(
                    "{one} and {other} have done different operations, after operation {equal_up_to} and before \
                     operation {number}, which is {first} at both; `compare_operations` finds such an operation \
                     when it begins"
                )
            } else {
                format!(
                    "{one} does {first}, and {other} does {second}, as operation {number}; all ranks do the same \
                     operations in the same order"
                )
            };
            // To the others it is not one rank alone.
            let rank = ranks.iter().position(|&rank| rank == own).map(|at| ranks[1 - at]);
            let cause = Cause::Mismatch { number, ranks, operations: [first, second] };
            let error = Error::invalid(text).with_cause(cause);
            match rank.and_then(|rank| Some((*members.get(rank)?, hosts.get(rank)))) {
                Some((member, host)) => error.of_rank(member, || host.cloned()),
                None => error,
            }
        };
        let ledger = Ledger {
            group: self.id.clone(),
            members: self.members.clone(),
            journal: Arc::clone(&journal),
            reported: AtomicU64::new(0),
            comparison: Mutex::new(Comparison::new(self.ranks(), outline)),
            watch: self.watch(),
            explain: Box::new(explain),
        };
        self.router.ledgers.all().open.insert(self.id.clone(), Arc::new(ledger));
        Recorder::new(Some(journal), self.watch())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The journal of a rank that has done these operations, and how far it has reported.
    struct Rank {
        journal: Arc<Journal>,
        recorder: Recorder,
        reported: u64,
    }

    /// The first word, and a mark.
    fn short([word, ..]: Signature) -> Signature {
        [word, 0, u64::MAX]
    }

    impl Rank {
        fn new() -> Self {
            let journal = Arc::new(Journal::new());
            Self { recorder: Recorder::new(Some(Arc::clone(&journal)), Watch::new()), journal, reported: 0 }
        }

        fn does(&mut self, operations: impl IntoIterator<Item = u64>) {
            operations.into_iter().for_each(|operation| self.recorder.record([operation, 0, 0]).unwrap());
        }

        fn report(&mut self) -> Report {
            let report = self.journal.since(self.reported).unwrap();
            self.reported = report.last;
            report
        }
    }

    #[test]
    fn ranks_that_do_the_same_are_equal_however_far_each_is() {
        let mut ranks = [(); 3].map(|()| Rank::new());
        let mut comparison = Comparison::new(3, short);
        let mut done = [0; 3];
        for turn in 0..3000_u64 {
            let at = (turn % 3) as usize;
            let more = turn * 7919 % 500 + 1;
            ranks[at].does(done[at]..done[at] + more);
            done[at] += more;
            assert_eq!(comparison.take(at, ranks[at].report()), None);
        }
        // Nothing that all ranks have done is kept.
        let least = *done.iter().min().unwrap();
        assert!(comparison.entries.keys().all(|&number| number > least), "{:?}", comparison.entries.keys());
        assert!(comparison.equal.iter().all(|&equal| equal > least / 2), "{:?} of {least}", comparison.equal);
    }

    #[test]
    fn the_first_different_operation_that_is_known_is_named() {
        let mut ranks = [(); 3].map(|()| Rank::new());
        let mut comparison = Comparison::new(3, short);
        for (at, rank) in ranks.iter_mut().enumerate() {
            rank.does(0..20);
            assert_eq!(comparison.take(at, rank.report()), None);
        }
        ranks[2].does([100, 101]);
        ranks[1].does([100, 7, 8]);
        assert_eq!(comparison.take(2, ranks[2].report()), None);
        let found = comparison.take(1, ranks[1].report()).unwrap();
        let expected = Mismatch { number: 22, ranks: [1, 2], signatures: [[7, 0, 0], [101, 0, 0]], equal_up_to: 21 };
        assert_eq!(found, expected);
    }

    /// The ranks differ in one operation, which neither journal has any more.
    #[test]
    fn a_difference_is_found_long_after_it() {
        let mut ranks = [(); 2].map(|()| Rank::new());
        let mut comparison = Comparison::new(2, short);
        for (at, rank) in ranks.iter_mut().enumerate() {
            rank.does(0..40);
            assert_eq!(comparison.take(at, rank.report()), None);
            rank.does([at as u64]);
        }
        ranks[0].does(0..10_000);
        ranks[1].does(0..12_345);
        assert_eq!(comparison.take(0, ranks[0].report()), None);
        let found = comparison.take(1, ranks[1].report()).unwrap();
        assert_eq!((found.ranks, found.signatures[0], found.equal_up_to), ([0, 1], found.signatures[1], 40));
        assert_eq!(found.number, 8191);
    }

    /// Ranks that repeat two operations, of which one differs, and the other one is at all marks.
    #[test]
    fn one_of_two_operations_is_named_long_after_it() {
        let mut ranks = [(); 2].map(|()| Rank::new());
        let mut comparison = Comparison::new(2, short);
        for (at, count) in [(0, 5_000), (1, 6_173)] {
            ranks[at].does((1..=count).map(|number| if number % 2 == 0 { 7 } else { at as u64 }));
        }
        assert_eq!(comparison.take(0, ranks[0].report()), None);
        let found = comparison.take(1, ranks[1].report()).unwrap();
        assert_eq!((found.number, found.signatures), (4095, [[0, 0, 0], [1, 0, 0]]));
    }

    /// Two ranks are known to be equal beyond the operation in which a third differs.
    #[test]
    fn equal_operations_of_others_say_nothing_of_a_rank() {
        let mut ranks = [(); 3].map(|()| Rank::new());
        let mut comparison = Comparison::new(3, short);
        for (at, rank) in ranks.iter_mut().enumerate() {
            rank.does((0..120).map(|number| if at == 1 && number == 50 { 7 } else { 1 }));
        }
        assert_eq!(comparison.take(0, ranks[0].report()), None);
        assert_eq!(comparison.take(2, ranks[2].report()), None);
        let found = comparison.take(1, ranks[1].report()).unwrap();
        assert!(found.equal_up_to < 51 && found.number > 51, "{found:?}");
        // The ranks are told once.
        ranks[1].does([9]);
        ranks[0].does([8]);
        assert_eq!(comparison.take(0, ranks[0].report()), None);
        assert_eq!(comparison.take(1, ranks[1].report()), None);
    }

    /// Whichever of them reports first.
    #[test]
    fn an_aggregator_is_compared_as_far_as_it_does_the_same() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut ranks = [(); 3].map(|()| Rank::new());
            let mut comparison = Comparison::new(3, short);
            ranks[2].recorder.forget();
            for (at, rank) in ranks.iter_mut().enumerate() {
                // The aggregator has no elements.
                let operation = |word| if at == 2 { short([word, 9, 9]) } else { [word, 9, 9] };
                (0..100).for_each(|word| rank.recorder.record(operation(word)).unwrap());
            }
            for at in order {
                assert_eq!(comparison.take(at, ranks[at].report()), None);
            }
            for (at, rank) in ranks.iter_mut().enumerate() {
                rank.recorder.record(if at == 2 { short([7, 0, 0]) } else { [8, 9, 9] }).unwrap();
            }
            let found: Vec<_> = order.iter().filter_map(|&at| comparison.take(at, ranks[at].report())).collect();
            assert!(found.len() == 1 && found[0].number == 101 && found[0].ranks[1] == 2, "{found:?}");
        }
    }

    #[test]
    fn a_rank_that_reports_nonsense_does_not_make_memory_grow() {
        let mut comparison = Comparison::new(2, short);
        for report in 0..1000 {
            let entry = |at| Entry { number: u64::MAX - report * 100 - at, hash: 0, signature: [0; 3] };
            let entries = (0..MOST_ENTRIES as u64).map(entry).collect();
            assert_eq!(comparison.take(1, Report { last: u64::MAX, entries }), None);
            assert!(comparison.entries.len() <= 4 * MOST_ENTRIES);
        }
    }
}
