//! Exchanges between ranks at distances 1, 2, 4..., over as many ranks as the largest power of two.
//!
//! Ranks beyond it are *folded*: of the first ranks, each odd one leaves its part to its left
//! neighbour and gets the result from it. The blocks of folded pairs lie side by side.

use std::ops::Range;

use super::builder::{local, message, output, scratch, share};
use super::{Algorithm, Builder, Collective};
use crate::schedule::step::{Place, Source, Span};

/// The order of exchanges by halves. The first one carries the most elements; doubling goes back.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// From the longest distance to the shortest: parts lie in the order of members.
    FarFirst,
    /// From the shortest distance to the longest: few elements go far.
    NearFirst,
}

/// How the members of a group are folded. A part has the number by which it lies among the parts.
#[derive(Clone, Copy)]
pub(super) struct Fold {
    /// Number of members that take part in exchanges.
    power: usize,
    /// Number of folded members.
    folded: usize,
    order: Order,
}

/// The role of a member: those beyond a power of two fold their part into a neighbour's.
pub(super) enum Role<'a> {
    /// Leaves its part to a neighbour.
    Folded { to: usize },
    /// Takes part in exchanges.
    Active(Active<'a>),
}

/// A member that takes part in exchanges.
#[derive(Clone, Copy)]
pub(super) struct Active<'a> {
    /// The ranks of the group.
    members: &'a [usize],
    fold: Fold,
    /// The number of the member's part.
    number: usize,
    /// The rank that left its part to this one.
    pub(super) guest: Option<usize>,
}

impl Fold {
    pub(super) fn new(n: usize, order: Order) -> Self {
        let power = 1 << n.ilog2();
        Self { power, folded: n - power, order }
    }

    /// All numbers.
    pub(super) fn numbers(self) -> Range<usize> {
        0..self.power
    }

    /// The indices of the members that have a part: the active one, and the one folded into it.
    pub(super) fn owners(self, number: usize) -> Range<usize> {
        let position = self.turned(number);
        self.index(position)..self.index(position + 1)
    }

    /// The number of an active member by its position among the active ones, or the reverse.
    ///
    /// Numbers are halved from the longest distance on. If the bits of positions are in reverse
    /// order, the partner at that distance is the nearest member.
    fn turned(self, position: usize) -> usize {
        match (self.order, self.power.ilog2()) {
            (Order::FarFirst, _) | (_, 0) => position,
            (Order::NearFirst, bits) => position.reverse_bits() >> (usize::BITS - bits),
        }
    }

    /// The index of an active member.
    fn index(self, position: usize) -> usize {
        if position < self.folded { 2 * position } else { position + self.folded }
    }

    /// The elements of the blocks of some numbers, if blocks lie in the order of members.
    fn blocks(self, numbers: &Range<usize>, count: usize) -> Range<usize> {
        self.index(numbers.start) * count..self.index(numbers.end) * count
    }
}

impl<'a> Role<'a> {
    /// The role of the member with an index.
    pub(super) fn new(members: &'a [usize], index: usize, order: Order) -> Self {
        let fold = Fold::new(members.len(), order);
        let active = |position, guest| Role::Active(Active { members, fold, number: fold.turned(position), guest });
        if index >= 2 * fold.folded {
            active(index - fold.folded, None)
        } else if index % 2 == 0 {
            active(index / 2, Some(members[index + 1]))
        } else {
            Role::Folded { to: members[index - 1] }
        }
    }
}

impl Active<'_> {
    pub(super) fn partner(&self, distance: usize) -> usize {
        self.members[self.fold.owners(self.number ^ distance).start]
    }

    /// The numbers of the parts that the rank has before the exchange over a distance, when
    /// distances grow.
    pub(super) fn group(&self, distance: usize) -> Range<usize> {
        let start = self.number / distance * distance;
        start..start + distance
    }

    /// The numbers of the parts that the partner has then.
    pub(super) fn partner_group(&self, distance: usize) -> Range<usize> {
        Self { number: self.number ^ distance, ..*self }.group(distance)
    }

    /// The indices of the members that have the parts with some numbers.
    pub(super) fn owners(&self, numbers: Range<usize>) -> impl Iterator<Item = usize> + use<> {
        let fold = self.fold;
        numbers.flat_map(move |number| fold.owners(number))
    }

    /// The distances between the numbers of partners.
    pub(super) fn distances(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        (0..self.fold.power.ilog2()).map(|bit| 1 << bit)
    }

    /// The operands of an exchange, the lower number's first: both partners reduce in one order.
    fn operands(&self, own: Span, distance: usize) -> [Source; 2] {
        let (own, other) = (local(own), message(self.partner(distance)));
        if self.number & distance == 0 { [own, other] } else { [other, own] }
    }
}

pub(super) fn emit(b: &mut Builder<'_>, op: Collective, algorithm: Algorithm) {
    let members: Vec<_> = (0..b.ranks()).collect();
    if (op, algorithm) == (Collective::AllReduce, Algorithm::HalvingDoubling) {
        return halving_doubling(b, &Role::new(&members, b.rank(), Order::NearFirst), &b.input());
    }
    // Blocks that go by one message lie side by side.
    match (op, Role::new(&members, b.rank(), Order::FarFirst)) {
        (Collective::Barrier, role) => barrier(b, &role),
        (Collective::AllGather | Collective::HyperCube, Role::Folded { to }) => all_gather_folded(b, to),
        (Collective::AllGather | Collective::HyperCube, Role::Active(active)) => all_gather(b, &active),
        (_, Role::Folded { to }) => {
            b.send(to, &b.input());
            b.receive(to, &b.output());
        }
        (Collective::ReduceScatter, Role::Active(active)) => reduce_scatter(b, &active),
        (_, Role::Active(active)) => all_reduce(b, &active),
    }
}

/// Exchanges all elements over each distance. Sums alternate between two places, since the partner
/// reads one while the next is made.
fn all_reduce(b: &mut Builder<'_>, active: &Active<'_>) {
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

fn send_to_guest(b: &mut Builder<'_>, active: &Active<'_>, span: &Span) {
    if let Some(guest) = active.guest {
        b.send(guest, span);
    }
}

/// Exchanges halves, quarters... of `from`, until the rank has the sum of its own part in `sums`,
/// or in `last`. `part` has the elements of some numbers.
pub(super) fn halve(
    b: &mut Builder<'_>,
    active: &Active<'_>,
    part: impl Fn(&Range<usize>) -> Range<usize>,
    (mut from, sums): (Place, Place),
    last: Option<&Span>,
) {
    let at = |place: Place, numbers: &Range<usize>| Span { place, elements: part(numbers) };
    if let Some(guest) = active.guest {
        let whole = active.fold.numbers();
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

/// Rabenseifner's algorithm: reduces elements of all members; the results lie in the output.
pub(super) fn halving_doubling(b: &mut Builder<'_>, role: &Role<'_>, own: &Span) {
    let whole = &own.elements;
    let active = match role {
        Role::Active(active) => active,
        Role::Folded { to } => {
            b.send(*to, own);
            return b.receive(*to, &output(whole.clone()));
        }
    };
    let shares = active.fold.power;
    if shares == 1 {
        return b.copy(own.clone(), output(whole.clone()));
    }
    let part =
        |numbers: &Range<usize>| share(whole, shares, numbers.start).start..share(whole, shares, numbers.end - 1).end;
    halve(b, active, part, (own.place, Place::Output), None);
    for distance in active.distances() {
        b.send(active.partner(distance), &output(part(&active.group(distance))));
        b.receive(active.partner(distance), &output(part(&active.partner_group(distance))));
    }
    send_to_guest(b, active, &output(whole.clone()));
}

fn reduce_scatter(b: &mut Builder<'_>, active: &Active<'_>) {
    let (count, fold) = (b.job.count, active.fold);
    let part = |numbers: &Range<usize>| fold.blocks(numbers, count);
    if fold.power > 2 || active.guest.is_some() {
        b.reserve_scratch(b.ranks() * count);
    }
    let places = (Place::Input, Place::Scratch);
    let Some(guest) = active.guest else {
        let last = b.output();
        return halve(b, active, part, places, Some(&last));
    };
    halve(b, active, part, places, None);
    b.send(guest, &scratch(b.job.block(guest)));
    b.copy(scratch(b.job.block(b.rank())), b.output());
}

fn all_gather(b: &mut Builder<'_>, active: &Active<'_>) {
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

fn barrier(b: &mut Builder<'_>, role: &Role<'_>) {
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
