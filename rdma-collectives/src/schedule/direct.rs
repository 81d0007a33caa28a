//! One direct step: every element goes to its reader, who reduces in the order of ranks.

use super::builder::{input, local, message, output};
use super::{Builder, Collective, pairwise, tree};
use crate::schedule::step::{Source, Span};

pub(super) fn emit(b: &mut Builder<'_>, op: Collective) {
    match op {
        Collective::AllReduce => all_reduce(b),
        Collective::AllGather => all_gather(b),
        Collective::ReduceScatter => reduce_scatter(b),
        Collective::Gather => gather(b),
        Collective::Scatter => scatter(b),
        Collective::SendRecv => send_and_receive(b),
        Collective::Barrier => barrier(b),
        Collective::AllToAll | Collective::AllToAllV => pairwise::all_at_once(b),
        _ => tree::emit(b, op, super::Algorithm::Direct),
    }
}

/// This rank's operand and a message of every other rank, in the order of ranks.
pub(super) fn in_rank_order(b: &Builder<'_>, own: Span) -> Vec<Source> {
    let mut sources: Vec<_> = (0..b.ranks()).map(message).collect();
    sources[b.rank()] = local(own);
    sources
}

fn all_reduce(b: &mut Builder<'_>) {
    let own = b.stable_input();
    for to in b.peers() {
        b.send(to, &own);
    }
    let sources = in_rank_order(b, own);
    b.combine(&sources, &b.output());
}

fn all_gather(b: &mut Builder<'_>) {
    let own = b.input();
    for to in b.peers() {
        b.send(to, &own);
    }
    b.copy(own, output(b.job.block(b.rank())));
    for from in b.peers() {
        b.receive(from, &output(b.job.block(from)));
    }
}

fn reduce_scatter(b: &mut Builder<'_>) {
    for to in b.peers() {
        b.send(to, &input(b.job.block(to)));
    }
    let sources = in_rank_order(b, input(b.job.block(b.rank())));
    b.combine(&sources, &b.output());
}

fn gather(b: &mut Builder<'_>) {
    let (rank, root) = (b.rank(), b.job.root);
    if rank != root {
        return b.send(root, &b.input());
    }
    b.copy(b.input(), output(b.job.block(rank)));
    for from in b.peers() {
        b.receive(from, &output(b.job.block(from)));
    }
}

fn scatter(b: &mut Builder<'_>) {
    let (rank, root) = (b.rank(), b.job.root);
    if rank != root {
        return b.receive(root, &b.output());
    }
    for to in b.peers() {
        b.send(to, &input(b.job.block(to)));
    }
    b.copy(input(b.job.block(rank)), b.output());
}

fn send_and_receive(b: &mut Builder<'_>) {
    let (rank, n) = (b.rank(), b.ranks());
    let own = b.stable_input();
    b.send((rank + 1) % n, &own);
    b.receive((rank + n - 1) % n, &b.output());
}

fn barrier(b: &mut Builder<'_>) {
    for to in b.peers() {
        b.signal(to);
    }
    b.await_signals(b.peers());
}
