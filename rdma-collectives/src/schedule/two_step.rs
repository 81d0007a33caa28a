//! Two direct steps: each rank handles a share of the elements and passes it on.

use std::ops::Range;

use super::builder::{input, message, output, scratch, share};
use super::direct::in_rank_order;
use super::{Builder, Collective};

pub(super) fn emit(b: &mut Builder<'_>, op: Collective) {
    match op {
        Collective::Broadcast => broadcast(b),
        Collective::Reduce => reduce(b),
        _ => all_reduce(b),
    }
}

/// The elements that a rank handles.
fn share_of(b: &Builder<'_>, rank: usize) -> Range<usize> {
    share(&(0..b.job.count), b.ranks(), rank)
}

fn all_reduce(b: &mut Builder<'_>) {
    let peers: Vec<_> = b.peers().collect();
    send_shares(b);
    let own = share_of(b, b.rank());
    let sources = in_rank_order(b, input(own.clone()));
    b.relay(&sources, &output(own), &peers);
    for from in peers {
        b.receive(from, &output(share_of(b, from)));
    }
}

fn reduce(b: &mut Builder<'_>) {
    let (rank, root) = (b.rank(), b.job.root);
    send_shares(b);
    let own = share_of(b, rank);
    let sources = in_rank_order(b, input(own.clone()));
    if rank != root {
        b.reserve_scratch(own.len());
        return b.relay(&sources, &scratch(0..own.len()), &[root]);
    }
    b.combine(&sources, &output(own));
    for from in b.peers() {
        b.receive(from, &output(share_of(b, from)));
    }
}

/// Sends each rank its share of this rank's input.
fn send_shares(b: &mut Builder<'_>) {
    for to in b.peers() {
        b.send(to, &input(share_of(b, to)));
    }
}

fn broadcast(b: &mut Builder<'_>) {
    let (rank, root) = (b.rank(), b.job.root);
    let peers: Vec<_> = b.peers().collect();
    if rank == root {
        send_shares(b);
        for &to in &peers {
            b.send(to, &input(share_of(b, rank)));
        }
        return b.copy_input_to_output();
    }
    let others: Vec<_> = peers.iter().copied().filter(|&peer| peer != root).collect();
    b.relay(&[message(root)], &output(share_of(b, rank)), &others);
    for from in peers {
        b.receive(from, &output(share_of(b, from)));
    }
}
