//! Algorithms in two levels with few steps between hosts: as `hierarchical`, but the carriers of
//! one position halve and double in place of a ring.
//!
//! Beyond a power of two, hosts are folded as ranks are in `doubling`.

use std::ops::Range;

use super::builder::{input, local, output, scratch};
use super::doubling::{self, Fold, Order, Role};
use super::hierarchical::{Hosts, Position, all_reduce_between, gather_inside, receive_blocks, relay_blocks};
use super::{Builder, Collective};
use crate::blocks::parts;
use crate::schedule::step::Place;

/// The nearest hosts exchange the most elements, so that few go through the outer switches.
const ORDER: Order = Order::NearFirst;

pub(super) fn emit(b: &mut Builder<'_>, op: Collective) {
    let hosts = Hosts::new(b.job);
    let at = hosts.position(b.rank());
    let column = at.column();
    let role = Role::new(&column, at.host, ORDER);
    match op {
        Collective::AllGather => all_gather(b, &at, &role),
        Collective::ReduceScatter => reduce_scatter(b, &at, &role),
        _ => all_reduce_between(b, &at, |b, own| doubling::halving_doubling(b, &role, own)),
    }
}

/// A step of a carrier between hosts in an all-gather.
struct Exchange {
    /// The carrier of another host.
    peer: usize,
    /// The hosts whose blocks are sent.
    sent: Vec<usize>,
    /// The hosts whose blocks are received.
    received: Vec<usize>,
}

/// Blocks go to all ranks of their host. Then carriers send all blocks that they have to one
/// partner after the other, and pass on inside their hosts what they receive.
fn all_gather(b: &mut Builder<'_>, at: &Position<'_>, role: &Role<'_>) {
    let (exchanges, others) = (exchanges(at, role), at.others());
    gather_inside(b, at);
    if at.is_carrier() {
        for Exchange { peer, sent, received } in &exchanges {
            for rank in sent.iter().flat_map(|&host| at.carried(host, at.index)) {
                b.send(*peer, &output(b.job.block(rank)));
            }
            received.iter().for_each(|&host| relay_blocks(b, at, host, *peer, &others));
        }
    }
    // After all exchanges, which need not wait for other carriers of the host.
    let received = exchanges.iter().flat_map(|exchange| &exchange.received);
    received.for_each(|&host| receive_blocks(b, at, host));
}

/// The exchanges of this rank's host. The carriers of all positions have the same, each with peers
/// of its own position.
fn exchanges(at: &Position<'_>, role: &Role<'_>) -> Vec<Exchange> {
    let all_but = |host: usize| (0..at.hosts.len()).filter(|&other| other != host).collect();
    let active = match role {
        Role::Active(active) => active,
        Role::Folded { to } => {
            return vec![Exchange { peer: *to, sent: vec![at.host], received: all_but(at.host) }];
        }
    };
    let guest = active.guest.map(|peer| (peer, at.host + 1));
    let first = guest.map(|(peer, host)| Exchange { peer, sent: Vec::new(), received: vec![host] });
    let last = guest.map(|(peer, host)| Exchange { peer, sent: all_but(host), received: Vec::new() });
    let doubling = active.distances().map(|distance| Exchange {
        peer: active.partner(distance),
        sent: active.owners(active.group(distance)).collect(),
        received: active.owners(active.partner_group(distance)).collect(),
    });
    first.into_iter().chain(doubling).chain(last).collect()
}

/// Carriers sum the blocks that they carry inside their hosts, then by halves between hosts, and
/// send each sum to its rank.
fn reduce_scatter(b: &mut Builder<'_>, at: &Position<'_>, role: &Role<'_>) {
    let (rank, count, fold) = (b.rank(), b.job.count, Fold::new(at.hosts.len(), ORDER));
    let hosts: Vec<usize> = fold.numbers().flat_map(|number| fold.owners(number)).collect();
    for carrier in at.other_carriers() {
        for owner in hosts.iter().flat_map(|&host| at.carried(host, carrier)) {
            b.send(at.ranks()[carrier], &input(b.job.block(owner)));
        }
    }
    if !at.is_carrier() {
        return b.receive(at.ranks()[at.index % at.carriers], &b.output());
    }
    // The sums of each host's blocks, in scratch memory.
    let mut sums = vec![0..0; hosts.len()];
    let mut end = 0;
    for &host in &hosts {
        let start = end;
        for owner in at.carried(host, at.index) {
            b.reserve_scratch(end + count);
            b.combine(&at.operands(local(input(b.job.block(owner)))), &scratch(end..end + count));
            end += count;
        }
        sums[host] = start..end;
    }
    let part = |numbers: &Range<usize>| {
        let (first, last) = (fold.owners(numbers.start).start, fold.owners(numbers.end - 1).end - 1);
        sums[first].start..sums[last].end
    };
    match role {
        Role::Folded { to } => {
            b.send(*to, &scratch(0..end));
            b.receive(*to, &scratch(sums[at.host].clone()));
        }
        Role::Active(active) => {
            doubling::halve(b, active, part, (Place::Scratch, Place::Scratch), None);
            if let Some(guest) = active.guest {
                b.send(guest, &scratch(sums[at.host + 1].clone()));
            }
        }
    }
    for (owner, sum) in at.carried(at.host, at.index).zip(parts(sums[at.host].clone(), count)) {
        if owner == rank {
            b.copy(scratch(sum), b.output());
        } else {
            b.send(owner, &scratch(sum));
        }
    }
}
