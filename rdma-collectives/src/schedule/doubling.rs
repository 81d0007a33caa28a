//! Exchanges between ranks at distances 1, 2, 4..., over as many ranks as the largest power of two.
//!
//! Ranks beyond it are *folded*: of the first ranks, each odd one leaves its part to its left
//! neighbour and gets the result from it. The blocks of folded pairs lie side by side.

use std::ops::Range;

use super::builder::{local, message, output, scratch, share};
use super::{Algorithm, Builder, Collective};
use crate::schedule::step::{Place, Source, Span};

/// How the ranks are folded.
#[derive(Clone, Copy)]
struct Fold {
    /// Number of ranks that take part in exchanges.
    power: usize,
    /// Number of folded ranks.
    folded: usize,
}

/// The role of a rank: ranks beyond a power of two fold their part into a neighbour's.
enum Role {
    /// Leaves its part to a neighbour.
    Folded { to: usize },
    /// Takes part in exchanges.
    Active(Active),
}

/// A rank that takes part in exchanges.
#[derive(Clone, Copy)]
struct Active {
    fold: Fold,
    /// The rank's number among the active ones.
    number: usize,
    /// The rank that left its part to this one.
    guest: Option<usize>,
}

impl Fold {
    fn new(n: usize) -> Self {
        let power = 1 << n.ilog2();
        Self { power, folded: n - power }
    }

    fn role(self, rank: usize) -> Role {
        if rank >= 2 * self.folded {
            Role::Active(Active { fold: self, number: rank - self.folded, guest: None })
        } else if rank % 2 == 0 {
            Role::Active(Active { fold: self, number: rank / 2, guest: Some(rank + 1) })
        } else {
            Role::Folded { to: rank - 1 }
        }
    }

    /// The rank of an active number; it is the first of the ranks whose part it has.
    fn rank(self, number: usize) -> usize {
        if number < self.folded { 2 * number } else { number + self.folded }
    }

    /// The elements of the blocks of some active numbers.
    fn blocks(self, numbers: &Range<usize>, count: usize) -> Range<usize> {
        self.rank(numbers.start) * count..self.rank(numbers.end) * count
    }
}

impl Active {
    fn partner(&self, distance: usize) -> usize {
        self.fold.rank(self.number ^ distance)
    }

    /// The numbers whose parts the rank has before the exchange over a distance, when distances
    /// grow.
    fn group(&self, distance: usize) -> Range<usize> {
        let start = self.number / distance * distance;
        start..start + distance
    }

    /// The numbers whose parts the partner has then.
    fn partner_group(&self, distance: usize) -> Range<usize> {
        Self { number: self.number ^ distance, ..*self }.group(distance)
    }

    fn distances(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        (0..self.fold.power.ilog2()).map(|bit| 1 << bit)
    }

    /// The operands of an exchange, the lower number's first: both partners reduce in one order.
    fn operands(&self, own: Span, distance: usize) -> [Source; 2] {
        let (own, other) = (local(own), message(self.partner(distance)));
        if self.number & distance == 0 { [own, other] } else { [other, own] }
    }
}

pub(super) fn emit(b: &mut Builder<'_>, op: Collective, algorithm: Algorithm) {
    let role = Fold::new(b.ranks()).role(b.rank());
    match (op, role) {
        (Collective::Barrier, role) => barrier(b, &role),
        (Collective::AllGather | Collective::HyperCube, Role::Folded { to }) => all_gather_folded(b, to),
        (Collective::AllGather | Collective::HyperCube, Role::Active(active)) => all_gather(b, &active),
        (_, Role::Folded { to }) => {
            b.send(to, &b.input());
            b.receive(to, &b.output());
        }
        (Collective::ReduceScatter, Role::Active(active)) => reduce_scatter(b, &active),
        (_, Role::Active(active)) if algorithm == Algorithm::HalvingDoubling => halving_doubling(b, &active),
        (_, Role::Active(active)) => all_reduce(b, &active),
    }
}

/// Exchanges all elements over each distance. Sums alternate between two places, since the partner
/// reads one while the next is made.
fn all_reduce(b: &mut Builder<'_>, active: &Active) {
    let steps = active.distances().count();
    let whole = 0..b.job.count;
    let place = |step: usize| if (steps - step) % 2 == 0 { output(whole.clone()) } else { scratch(whole.clone()) };
    let mut sum = b.input();
    if let Some(guest) = active.guest {
        b.combine(&[local(b.input()), message(guest)], &place(0));
        sum = place(0);
    } else if place(0).place == Place::Scratch {
        // In place, the first sum would overwrite the input while the partner reads it.
        sum = b.stable_input();
    }
    if steps > 1 || sum.place == Place::Scratch {
        b.reserve_scratch(whole.end);
    }
    for (step, distance) in active.distances().enumerate() {
        b.send(active.partner(distance), &sum);
        b.combine(&active.operands(sum, distance), &place(step + 1));
        sum = place(step + 1);
    }
    send_to_guest(b, active, &sum);
}

fn send_to_guest(b: &mut Builder<'_>, active: &Active, span: &Span) {
    if let Some(guest) = active.guest {
        b.send(guest, span);
    }
}

/// Exchanges halves, quarters... until the rank has the sum of its own part in `sums`, or in
/// `last`.
fn halve(
    b: &mut Builder<'_>,
    active: &Active,
    part: impl Fn(&Range<usize>) -> Range<usize>,
    sums: Place,
    last: Option<&Span>,
) {
    let at = |place: Place, numbers: &Range<usize>| Span { place, elements: part(numbers) };
    let mut from = Place::Input;
    if let Some(guest) = active.guest {
        let whole = 0..active.fold.power;
        b.combine(&[local(at(from, &whole)), message(guest)], &at(sums, &whole));
        from = sums;
    }
    for distance in active.distances().rev() {
        let (kept, given) = (active.group(distance), active.partner_group(distance));
        b.send(active.partner(distance), &at(from, &given));
        let sum = at(sums, &kept);
        let into = if distance == 1 { last.unwrap_or(&sum) } else { &sum };
        b.combine(&active.operands(at(from, &kept), distance), into);
        from = sums;
    }
}

/// Rabenseifner's algorithm.
fn halving_doubling(b: &mut Builder<'_>, active: &Active) {
    let (whole, power) = (0..b.job.count, active.fold.power);
    let part =
        |numbers: &Range<usize>| share(&whole, power, numbers.start).start..share(&whole, power, numbers.end - 1).end;
    halve(b, active, part, Place::Output, None);
    for distance in active.distances() {
        b.send(active.partner(distance), &output(part(&active.group(distance))));
        b.receive(active.partner(distance), &output(part(&active.partner_group(distance))));
    }
    send_to_guest(b, active, &output(whole.clone()));
}

fn reduce_scatter(b: &mut Builder<'_>, active: &Active) {
    let (count, fold) = (b.job.count, active.fold);
    let part = |numbers: &Range<usize>| fold.blocks(numbers, count);
    if fold.power > 2 || active.guest.is_some() {
        b.reserve_scratch(b.ranks() * count);
    }
    let Some(guest) = active.guest else {
        let last = b.output();
        return halve(b, active, part, Place::Scratch, Some(&last));
    };
    halve(b, active, part, Place::Scratch, None);
    b.send(guest, &scratch(b.job.block(guest)));
    b.copy(scratch(b.job.block(b.rank())), b.output());
}

fn all_gather(b: &mut Builder<'_>, active: &Active) {
    let (rank, n, count) = (b.rank(), b.ranks(), b.job.count);
    let blocks = |numbers: &Range<usize>| output(active.fold.blocks(numbers, count));
    b.copy(b.input(), output(b.job.block(rank)));
    if let Some(guest) = active.guest {
        b.receive(guest, &output(b.job.block(guest)));
    }
    for distance in active.distances() {
        b.send(active.partner(distance), &blocks(&active.group(distance)));
        b.receive(active.partner(distance), &blocks(&active.partner_group(distance)));
    }
    if let Some(guest) = active.guest {
        b.send(guest, &output(0..guest * count));
        b.send(guest, &output((guest + 1) * count..n * count));
    }
}

fn all_gather_folded(b: &mut Builder<'_>, to: usize) {
    let (rank, n, count) = (b.rank(), b.ranks(), b.job.count);
    b.send(to, &b.input());
    b.copy(b.input(), output(b.job.block(rank)));
    b.receive(to, &output(0..rank * count));
    b.receive(to, &output((rank + 1) * count..n * count));
}

fn barrier(b: &mut Builder<'_>, role: &Role) {
    match role {
        Role::Folded { to } => {
            b.signal(*to);
            b.await_signals([*to]);
        }
        Role::Active(active) => {
            b.await_signals(active.guest);
            for distance in active.distances() {
                b.signal(active.partner(distance));
                b.await_signals([active.partner(distance)]);
            }
            if let Some(guest) = active.guest {
                b.signal(guest);
            }
        }
    }
}
