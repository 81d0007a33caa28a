//! Algorithms in two levels: inside each host, between hosts, inside each host.
//!
//! Between hosts each rank talks to ranks of its own position inside the host, as many positions as
//! the smallest host has ranks: these ranks are *carriers*.

use super::builder::{input, local, message, output, scratch, share};
use super::ring::{self, RingGroup};
use super::tree::{Node, binomial, rotated};
use super::{Builder, Collective, Job, bruck};
use crate::schedule::step::{Source, Span};

/// The ranks of each host.
pub(super) struct Hosts {
    hosts: Vec<Vec<usize>>,
}

/// A rank's position.
pub(super) struct Position<'a> {
    pub(super) hosts: &'a [Vec<usize>],
    /// The index of the rank's host.
    pub(super) host: usize,
    /// The index of the rank inside its host.
    pub(super) index: usize,
    /// Number of carriers of each host.
    pub(super) carriers: usize,
}

impl Hosts {
    pub(super) fn new(job: &Job) -> Self {
        let mut hosts = std::collections::BTreeMap::<usize, Vec<usize>>::new();
        for rank in 0..job.ranks {
            hosts.entry(job.hosts.get(rank).copied().unwrap_or(0)).or_default().push(rank);
        }
        Self { hosts: hosts.into_values().collect() }
    }

    pub(super) fn position(&self, rank: usize) -> Position<'_> {
        let find = |(host, ranks): (usize, &Vec<usize>)| Some((host, ranks.binary_search(&rank).ok()?));
        let (host, index) = self.hosts.iter().enumerate().find_map(find).unwrap_or_default();
        let carriers = self.hosts.iter().map(Vec::len).min().unwrap_or(1);
        Position { hosts: &self.hosts, host, index, carriers }
    }

    /// A binomial tree over one rank of each host, with the other ranks of the host below it.
    pub(super) fn tree(&self, rank: usize, root: usize) -> Node {
        let (home, host) = (self.position(root).host, self.position(rank).host);
        let leader = |host: usize| if host == home { root } else { self.hosts[host][0] };
        if rank != leader(host) {
            return Node::leaf(leader(host));
        }
        let others = self.hosts[host].iter().copied().filter(|&other| other != rank);
        rotated(host, self.hosts.len(), home, binomial).renamed(leader).with_children(others)
    }
}

impl Position<'_> {
    /// The ranks of this host.
    pub(super) fn ranks(&self) -> &[usize] {
        &self.hosts[self.host]
    }

    /// The other ranks of this host.
    pub(super) fn others(&self) -> Vec<usize> {
        let ranks = self.ranks().iter().enumerate().filter(|&(index, _)| index != self.index);
        ranks.map(|(_, &rank)| rank).collect()
    }

    pub(super) fn is_carrier(&self) -> bool {
        self.index < self.carriers
    }

    /// The other carriers of this host.
    pub(super) fn other_carriers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.index;
        (0..self.carriers).filter(move |&carrier| carrier != own)
    }

    /// The carrier of a host that has this rank's position; the first one, if this rank carries
    /// nothing.
    fn carrier(&self, host: usize) -> usize {
        self.hosts[host][if self.is_carrier() { self.index } else { 0 }]
    }

    /// This rank's [`carrier`](Self::carrier) of each host.
    pub(super) fn column(&self) -> Vec<usize> {
        (0..self.hosts.len()).map(|host| self.carrier(host)).collect()
    }

    /// The index of the host so many places to the left.
    fn back(&self, distance: usize) -> usize {
        (self.host + 2 * self.hosts.len() - distance) % self.hosts.len()
    }

    /// The carrier of this position at the left or right host.
    fn left(&self) -> usize {
        self.carrier(self.back(1))
    }

    fn right(&self) -> usize {
        self.carrier((self.host + 1) % self.hosts.len())
    }

    /// The ranks of a host whose blocks a carrier carries.
    pub(super) fn carried(&self, host: usize, carrier: usize) -> impl Iterator<Item = usize> + use<> {
        let ranks: Vec<_> = self.hosts[host].iter().copied().skip(carrier).step_by(self.carriers).collect();
        ranks.into_iter()
    }

    /// This rank's operand and a message of every other rank of the host, in the order of ranks.
    pub(super) fn operands(&self, own: Source) -> Vec<Source> {
        let mut sources: Vec<_> = self.ranks().iter().map(|&rank| message(rank)).collect();
        sources[self.index] = own;
        sources
    }
}

pub(super) fn emit(b: &mut Builder<'_>, op: Collective) {
    let hosts = Hosts::new(b.job);
    let at = hosts.position(b.rank());
    match op {
        Collective::AllGather => all_gather(b, &at),
        Collective::ReduceScatter => reduce_scatter(b, &at),
        Collective::Barrier => barrier(b, &at),
        _ => all_reduce(b, &at),
    }
}

/// Each carrier reduces a share inside its host, then over the ring of its position, and hands the
/// result out inside its host.
fn all_reduce(b: &mut Builder<'_>, at: &Position<'_>) {
    all_reduce_between(b, at, |b, own| {
        ring::all_reduce(b, &RingGroup { members: at.column(), index: at.host }, &own.elements, own.place);
    });
}

/// An all-reduce in which carriers of one position reduce their share between hosts by an algorithm
/// that gets each one's share, and leaves the result in the output.
pub(super) fn all_reduce_between(
    b: &mut Builder<'_>,
    at: &Position<'_>,
    between: impl FnOnce(&mut Builder<'_>, &Span),
) {
    let whole = 0..b.job.count;
    let share_of = |carrier: usize| share(&whole, at.carriers, carrier);
    for carrier in at.other_carriers() {
        b.send(at.ranks()[carrier], &input(share_of(carrier)));
    }
    if at.is_carrier() {
        let own = share_of(at.index);
        let alone = at.ranks().len() == 1;
        if !alone {
            b.combine(&at.operands(local(input(own.clone()))), &output(own.clone()));
        }
        let reduced = if alone { input(own.clone()) } else { output(own.clone()) };
        between(b, &reduced);
        for to in at.others() {
            b.send(to, &output(own.clone()));
        }
    }
    for carrier in at.other_carriers() {
        b.receive(at.ranks()[carrier], &output(share_of(carrier)));
    }
}

/// Blocks go to all ranks of their host, then round the ring of their carriers, which pass them on
/// inside their hosts.
fn all_gather(b: &mut Builder<'_>, at: &Position<'_>) {
    let (others, hosts) = (at.others(), at.hosts.len());
    gather_inside(b, at);
    if at.is_carrier() && hosts > 1 {
        for rank in at.carried(at.host, at.index) {
            b.send(at.right(), &output(b.job.block(rank)));
        }
    }
    for distance in 1..hosts {
        let source = at.back(distance);
        if at.is_carrier() {
            let next = (distance + 1 < hosts).then(|| at.right());
            let to: Vec<_> = next.into_iter().chain(others.iter().copied()).collect();
            relay_blocks(b, at, source, at.left(), &to);
        }
        receive_blocks(b, at, source);
    }
}

/// All ranks of a host get its blocks.
pub(super) fn gather_inside(b: &mut Builder<'_>, at: &Position<'_>) {
    let others = at.others();
    for &to in &others {
        b.send(to, &b.input());
    }
    b.copy(b.input(), output(b.job.block(b.rank())));
    for &from in &others {
        b.receive(from, &output(b.job.block(from)));
    }
}

/// A carrier receives the blocks of another host that it carries from a rank, and passes them on.
pub(super) fn relay_blocks(b: &mut Builder<'_>, at: &Position<'_>, host: usize, from: usize, to: &[usize]) {
    for rank in at.carried(host, at.index) {
        b.relay(&[message(from)], &output(b.job.block(rank)), to);
    }
}

/// A rank receives the blocks of another host that other carriers pass on.
pub(super) fn receive_blocks(b: &mut Builder<'_>, at: &Position<'_>, host: usize) {
    for carrier in at.other_carriers() {
        for rank in at.carried(host, carrier) {
            b.receive(at.ranks()[carrier], &output(b.job.block(rank)));
        }
    }
}

/// The sum of a block begins at the host to the right of its rank's host and goes round the ring of
/// its carriers; each adds the elements of its whole host.
fn reduce_scatter(b: &mut Builder<'_>, at: &Position<'_>) {
    let (rank, count, hosts) = (b.rank(), b.job.count, at.hosts.len());
    for distance in 1..=hosts {
        for carrier in at.other_carriers() {
            for owner in at.carried(at.back(distance), carrier) {
                b.send(at.ranks()[carrier], &input(b.job.block(owner)));
            }
        }
    }
    if !at.is_carrier() {
        return b.receive(at.ranks()[at.index % at.carriers], &b.output());
    }
    let mut sums = 0;
    for distance in 1..=hosts {
        for owner in at.carried(at.back(distance), at.index) {
            let own = input(b.job.block(owner));
            let mut sources = at.operands(local(own.clone()));
            if distance > 1 {
                sources.insert(0, message(at.left()));
            }
            let to = if distance < hosts { at.right() } else { owner };
            if to == rank {
                b.combine(&sources, &b.output());
            } else if sources.len() == 1 {
                b.send(to, &own);
            } else {
                b.reserve_scratch((sums + 1) * count);
                b.relay(&sources, &scratch(sums * count..(sums + 1) * count), &[to]);
                sums += 1;
            }
        }
    }
}

fn barrier(b: &mut Builder<'_>, at: &Position<'_>) {
    let (leader, others) = (at.ranks()[0], at.others());
    if at.index > 0 {
        b.signal(leader);
        return b.await_signals([leader]);
    }
    b.await_signals(others.iter().copied());
    let leaders: Vec<_> = at.hosts.iter().map(|ranks| ranks[0]).collect();
    bruck::barrier(b, &leaders, at.host);
    for &to in &others {
        b.signal(to);
    }
}
