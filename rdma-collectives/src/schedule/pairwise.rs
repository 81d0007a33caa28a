//! All-to-all: every rank sends a block to every rank.

use super::Builder;
use super::builder::{output, section};
use crate::schedule::step::Span;

/// Sends to one peer and receives from another at a time, at the same distance on both sides.
pub(super) fn exchange(b: &mut Builder<'_>) {
    let own = b.stable_input();
    copy_own_block(b, &own);
    let (rank, n) = (b.rank(), b.ranks());
    for distance in 1..n {
        send(b, &own, (rank + distance) % n);
        receive(b, (rank + n - distance) % n);
    }
}

/// Sends to all peers before the first receive.
pub(super) fn all_at_once(b: &mut Builder<'_>) {
    let own = b.stable_input();
    for to in b.peers() {
        send(b, &own, to);
    }
    copy_own_block(b, &own);
    let (rank, n) = (b.rank(), b.ranks());
    for distance in 1..n {
        receive(b, (rank + n - distance) % n);
    }
}

fn copy_own_block(b: &mut Builder<'_>, own: &Span) {
    let rank = b.rank();
    let block = section(own, &b.job.sent(b.op, rank));
    b.copy(block, output(b.job.received(b.op, rank)));
}

fn send(b: &mut Builder<'_>, own: &Span, to: usize) {
    let block = section(own, &b.job.sent(b.op, to));
    b.send(to, &block);
}

fn receive(b: &mut Builder<'_>, from: usize) {
    let block = output(b.job.received(b.op, from));
    b.receive(from, &block);
}
