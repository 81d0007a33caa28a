//! Messages between two ranks, one or several at a time.

mod exchange;

use std::cmp::Ordering;

use crate::Error;
use crate::blocks::parts;
use crate::communicator::{Communicator, Linked};
use crate::element::{Element, Reduction};
use crate::link::Links;
use crate::memory::{Source, Target};
use crate::schedule::Collective;
use crate::schedule::step::{self, Place, Schedule, Span, Step};
use crate::wait::Wait;

pub use self::exchange::Transfer;
use self::exchange::{Exchange, HEAD, piece_of};

impl Communicator {
    /// Sends a message to a rank, which receives it by [`recv`](Self::recv), with the same number
    /// of elements. Returns when the memory may be changed again, at the latest when the rank has
    /// received the message: two ranks that send to each other use [`exchange`](Self::exchange).
    ///
    /// This is NCCL's `ncclSend` and MPI's `MPI_Send`, without a tag.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such rank, or it is this one; otherwise a rank has failed, or
    /// has made no progress for [`Tuning::stall`](crate::Tuning::stall).
    #[doc(alias = "ncclSend")]
    #[doc(alias = "MPI_Send")]
    pub fn send<'a, T: Element>(&mut self, memory: impl Into<Source<'a, T>>, to: usize) -> Result<(), Error> {
        self.exchange(&mut [Transfer::send(memory, to)])
    }

    /// Receives the next message of a rank. Messages between two ranks come in the order in which
    /// they were sent.
    ///
    /// This is NCCL's `ncclRecv` and MPI's `MPI_Recv`, without a tag.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such rank; an error if the message has another length;
    /// otherwise a rank has failed, or has sent nothing for
    /// [`Tuning::stall`](crate::Tuning::stall).
    #[doc(alias = "ncclRecv")]
    #[doc(alias = "MPI_Recv")]
    pub fn recv<'a, T: Element>(&mut self, memory: impl Into<Target<'a, T>>, from: usize) -> Result<(), Error> {
        self.exchange(&mut [Transfer::recv(memory, from)])
    }

    /// Receives a message of any other rank, all of which send as many elements, and returns the
    /// rank.
    ///
    /// This is MPI's `MPI_Recv` with `MPI_ANY_SOURCE`.
    ///
    /// # Errors
    /// `InvalidInput` for a message without elements, without other ranks, and with tensors on
    /// GPUs; otherwise as [`recv`](Self::recv).
    #[doc(alias = "MPI_ANY_SOURCE")]
    pub fn recv_any<'a, T: Element>(&mut self, memory: impl Into<Target<'a, T>>) -> Result<usize, Error> {
        let memory = memory.into();
        if memory.is_empty() || self.ranks() < 2 {
            return Err(Error::invalid("only a message with elements, of another rank, tells where it is from"));
        }
        let first = HEAD + memory.len().min(piece_of::<T>()) * size_of::<T>();
        self.begin();
        let received = self.next_sender(first).and_then(|from| {
            self.exchange_all(&mut [Transfer::recv(memory, from)])?;
            Ok(from)
        });
        self.ended(Some(Collective::SendRecv), received)
    }

    /// Exchanges several messages at a time: none waits for another, so that ranks may send to each
    /// other, and a rank to itself. The messages between two ranks come in the order of the
    /// transfers.
    ///
    /// This is NCCL's `ncclGroupStart` and `ncclGroupEnd` around sends and receives, and MPI's
    /// `MPI_Sendrecv`, or `MPI_Isend` and `MPI_Irecv` with one `MPI_Waitall`.
    ///
    /// The elements are copied at both sides, by pieces of up to 1 MiB, so a tensor that is sent is
    /// not received into at the same time. Tensors on GPUs are not copied;
    /// there one message to another rank and one from another rank can be exchanged at a time.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such rank, or a message of this rank to itself has no receiver
    /// among the transfers; otherwise as [`recv`](Self::recv).
    #[doc(alias = "ncclGroupStart")]
    #[doc(alias = "ncclGroupEnd")]
    #[doc(alias = "MPI_Sendrecv")]
    #[doc(alias = "MPI_Isend")]
    #[doc(alias = "MPI_Irecv")]
    pub fn exchange<T: Element>(&mut self, transfers: &mut [Transfer<'_, T>]) -> Result<(), Error> {
        self.maker.check()?;
        self.begin();
        let done = self.exchange_all(transfers);
        self.ended(Some(Collective::SendRecv), done)
    }

    fn exchange_all<T: Element>(&mut self, transfers: &mut [Transfer<'_, T>]) -> Result<(), Error> {
        let (rank, ranks) = (self.rank(), self.ranks());
        if let Some(peer) = transfers.iter().map(Transfer::peer).find(|&peer| peer >= ranks) {
            return Err(Error::invalid(format!("rank {peer} is not below the number of ranks, {ranks}")));
        }
        if let Some(long) = transfers.iter().find(|transfer| !transfer.fits()) {
            return Err(Error::invalid(format!("a message of {} elements in a tensor that has fewer", long.len())));
        }
        if self.gpu.is_some() {
            return self.exchange_on_gpus(transfers);
        }
        copy_to_itself(transfers, rank)?;
        let exchange = Exchange::new(transfers, rank);
        let scratch = self.scratch(exchange.scratch())?;
        let Linked { mut links, traffic, .. } = self.links(std::iter::empty())?;
        *traffic += exchange.run(&mut links, &scratch)?;
        self.stats.messages += transfers.iter().filter(|transfer| transfer.peer() != rank).count() as u64;
        Ok(())
    }

    /// Exchanges tensors on GPUs: one message to a rank and one from a rank at most.
    fn exchange_on_gpus<T: Element>(&mut self, transfers: &mut [Transfer<'_, T>]) -> Result<(), Error> {
        let refused = || Error::invalid("ranks with tensors on GPUs send and receive one tensor each at a time");
        let (mut steps, mut input, mut output) = (Vec::new(), None, None);
        for transfer in transfers.iter_mut() {
            let elements = 0..transfer.len();
            match transfer {
                Transfer::Send { to, memory: Source::Tensor(tensor, _) } if input.is_none() && *to != self.rank => {
                    steps.insert(
                        0,
                        Step::Send { to: *to, span: Span { place: Place::Input, elements: elements.clone() } },
                    );
                    input = Some(tensor.part(elements));
                }
                Transfer::Recv { from, memory: Target::Tensor(tensor, _) }
                    if output.is_none() && *from != self.rank =>
                {
                    let into = Span { place: Place::Output, elements: elements.clone() };
                    steps.push(Step::Combine { sources: vec![step::Source::Message { from: *from }], into });
                    output = Some(tensor.part(elements));
                }
                _ => return Err(refused()),
            }
        }
        let (input, output) = match (input, output) {
            (Some(input), Some(output)) => (input, output),
            (Some(one), None) | (None, Some(one)) => (one.clone(), one),
            (None, None) => return Ok(()),
        };
        self.run_part(&Schedule { steps, ..Schedule::default() }, &input, &output, Reduction::Sum)?;
        self.stats.messages += transfers.len() as u64;
        Ok(())
    }

    /// Waits for a message whose first piece has so many bytes, and returns its sender.
    fn next_sender(&mut self, bytes: usize) -> Result<usize, Error> {
        let (rank, ranks) = (self.rank(), self.ranks());
        if self.gpu.is_some() {
            return Err(Error::invalid("ranks with tensors on GPUs receive of ranks that they name"));
        }
        let mut links = self.links(std::iter::empty())?.links;
        let bytes = bytes.min(links.piece());
        let mut wait = Wait::default();
        loop {
            let mut gone = None;
            for from in (0..ranks).filter(|&from| from != rank) {
                match links.arrived(from, bytes) {
                    Ok(Some(_)) => return Ok(from),
                    Ok(None) => {}
                    // Others may still send, and those that were lost are told of.
                    Err(error) if error.is_effect() => gone = Some((error, gone.map_or(1, |(_, count)| count + 1))),
                    Err(error) => return Err(error),
                }
            }
            if let Some((error, count)) = gone {
                if count == ranks - 1 {
                    return Err(error);
                }
            }
            let waiting = |error: Error| error.context("waiting for any rank to send a message");
            links.pause(&mut wait).map_err(waiting)?;
        }
    }
}

/// Copies the messages of a rank to itself, after a look whether each has a receiver.
fn copy_to_itself<T: Element>(transfers: &mut [Transfer<'_, T>], rank: usize) -> Result<(), Error> {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for (index, transfer) in transfers.iter().enumerate() {
        match transfer {
            _ if transfer.is_empty() || transfer.peer() != rank => {}
            Transfer::Send { .. } => sent.push(index),
            Transfer::Recv { .. } => received.push(index),
        }
    }
    let invalid = |what: &str| Err(Error::invalid(format!("rank {rank} {what}")));
    match sent.len().cmp(&received.len()) {
        Ordering::Greater => return invalid("sends itself a message that it does not receive"),
        Ordering::Less => return invalid("receives a message of itself that it does not send"),
        Ordering::Equal => {}
    }
    let mut pairs = sent.into_iter().zip(received);
    if pairs.clone().any(|(from, to)| transfers[from].len() != transfers[to].len()) {
        return invalid("sends itself a message of another length");
    }
    let mut block = Vec::new();
    pairs.try_for_each(|(from, to)| {
        for part in parts(0..transfers[from].len(), piece_of::<T>()) {
            if let Transfer::Send { memory, .. } = &transfers[from] {
                memory.read(part.clone(), &mut block)?;
            }
            if let Transfer::Recv { memory, .. } = &mut transfers[to] {
                memory.write(part.start, &block)?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ranks;
    use crate::transport::Transport;
    use crate::tuning::Tuning;

    fn message(from: usize, to: usize, count: usize) -> Vec<u32> {
        (0..count).map(|index| u32::try_from((from * 7 + to * 31 + index) % 60_000).unwrap()).collect()
    }

    /// Lengths of less than a piece, and of several.
    const COUNTS: [usize; 4] = [1, 100, 4096, 20_001];

    fn messages_come_as_they_were_sent(world: usize, transport: Transport) {
        ranks(world, transport, move |mut comm, _| {
            let rank = comm.rank();
            for count in COUNTS {
                // From each rank to the next, beginning with rank 0.
                let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
                let mut came = vec![0; count];
                if rank == 0 {
                    comm.send(&message(0, right, count), right).unwrap();
                    comm.recv(&mut came, left).unwrap();
                } else {
                    comm.recv(&mut came, left).unwrap();
                    comm.send(&message(rank, right, count), right).unwrap();
                }
                assert_eq!(came, message(left, rank, count));

                // From each to each, itself too, with lengths that differ.
                let length = |from: usize, to: usize| (from + 2 * to) % 3 * count;
                let sent: Vec<_> = (0..world).map(|to| message(rank, to, length(rank, to))).collect();
                let mut all: Vec<_> = (0..world).map(|from| vec![0; length(from, rank)]).collect();
                let receives = all.iter_mut().enumerate().map(|(from, memory)| Transfer::recv(memory, from));
                let mut transfers: Vec<_> = receives.collect();
                transfers.extend(sent.iter().enumerate().map(|(to, memory)| Transfer::send(memory, to)));
                comm.exchange(&mut transfers).unwrap();
                let expected: Vec<_> = (0..world).map(|from| message(from, rank, length(from, rank))).collect();
                assert_eq!(all, expected);

                // From any rank to rank 0.
                if rank == 0 {
                    let mut senders: Vec<usize> = (1..world)
                        .map(|_| {
                            let from = comm.recv_any(&mut came).unwrap();
                            assert_eq!(came, message(from, 0, count));
                            from
                        })
                        .collect();
                    senders.sort_unstable();
                    assert!(senders.into_iter().eq(1..world));
                } else {
                    comm.send(&message(rank, 0, count), 0).unwrap();
                }
            }
            let tensor = comm.allocate::<u32>(100).unwrap();
            if rank == 0 {
                tensor.write(0, &message(0, 1, 100)).unwrap();
                comm.send(&tensor, 1).unwrap();
            } else if rank == 1 {
                comm.recv(tensor.target(100), 0).unwrap();
                let mut came = vec![0; 100];
                tensor.read(0, &mut came).unwrap();
                assert_eq!(came, message(0, 1, 100));
            }
        });
    }

    #[test]
    fn messages_in_shared_memory_come_as_they_were_sent() {
        messages_come_as_they_were_sent(2, Transport::Shm);
        messages_come_as_they_were_sent(4, Transport::Shm);
    }

    #[test]
    fn messages_over_verbs_come_as_they_were_sent() {
        messages_come_as_they_were_sent(2, Transport::Verbs);
        messages_come_as_they_were_sent(3, Transport::Verbs);
    }

    #[test]
    fn a_message_of_another_length_is_refused_at_both_sides() {
        for transport in [Transport::Shm, Transport::Verbs] {
            for (sent, wanted) in [(10, 9), (10, 20), (1000, 10), (30_000, 60_000), (60_000, 30_000), (5000, 4096)] {
                crate::testing::start(2, transport, move |mut comm, group| {
                    let done = match comm.rank() {
                        0 => comm.send(&vec![7_u8; sent], 1),
                        // Any rank, or the only one that there is.
                        _ if sent == 10 => comm.recv_any(&mut vec![0_u8; wanted]).map(drop),
                        _ => comm.recv(&mut vec![0_u8; wanted], 0),
                    };
                    let rank = comm.rank();
                    if rank == 1 {
                        let error = done.as_ref().unwrap_err().to_string();
                        assert!(error.starts_with("rank 0 sent ") || error.contains(": rank 0 sent "), "{error}");
                    }
                    // The sender may have done its part, and hears of the failure at the end.
                    let error = group.conclude(done).unwrap_err().to_string();
                    assert!(error.contains("rank 0 sent "), "rank {rank}, {sent} and {wanted}: {error}");
                });
            }
        }
    }

    #[test]
    fn pieces_of_messages_that_links_cut_are_right() {
        let tuning = Tuning { chunk: 4096, transport: Transport::Verbs, ..crate::testing::tuning() };
        crate::testing::start_tuned(2, tuning, |comm, group| {
            let mut comm = comm.unwrap();
            let (rank, peer) = (comm.rank(), 1 - comm.rank());
            for count in [1, 2045, 2046, 2047, 2048, 2049, 4096, 10_001] {
                let mut came = vec![0; count];
                let sent = message(rank, peer, count);
                comm.exchange(&mut [Transfer::send(&sent, peer), Transfer::recv(&mut came, peer)]).unwrap();
                assert_eq!(came, message(peer, rank, count));
            }
            group.conclude(Ok(())).unwrap();
        });
    }

    #[test]
    fn a_rank_that_has_gone_keeps_no_message_of_others() {
        ranks(3, Transport::Shm, |mut comm, group| {
            let rank = comm.rank();
            if rank == 2 {
                drop(comm);
                return group.barrier("the end of a rank").unwrap();
            }
            group.barrier("the end of a rank").unwrap();
            if rank == 0 {
                comm.recv(&mut [0_u8; 5], 1).unwrap();
            } else {
                comm.send(&[7_u8; 5], 0).unwrap();
            }
        });
    }

    #[test]
    fn messages_that_nobody_can_receive_are_refused() {
        ranks(2, Transport::Auto, |mut comm, _| {
            let (rank, refused) = (comm.rank(), |result: Result<(), Error>| result.unwrap_err().to_string());
            assert_eq!(refused(comm.send(&[1_u8], 2)), "rank 2 is not below the number of ranks, 2");
            let text = format!("rank {rank} sends itself a message that it does not receive");
            assert_eq!(refused(comm.send(&[1_u8], rank)), text);
            let text = format!("rank {rank} receives a message of itself that it does not send");
            assert_eq!(refused(comm.recv(&mut [1_u8], rank)), text);
            comm.barrier().unwrap();
        });
    }

    /// Two messages of several pieces, which one rank takes at a time and the other sends one by
    /// one, or the other way round.
    #[test]
    fn messages_match_however_they_are_grouped() {
        for transport in [Transport::Shm, Transport::Verbs] {
            ranks(2, transport, |mut comm, _| {
                let (one, two) = (message(0, 1, 10_000), message(1, 0, 7000));
                let (mut first, mut second) = (vec![0; one.len()], vec![0; two.len()]);
                for is_sender in [comm.rank() == 0, comm.rank() == 1] {
                    if is_sender && comm.rank() == 0 {
                        comm.send(&one, 1).unwrap();
                        comm.send(&two, 1).unwrap();
                    } else if is_sender {
                        comm.exchange(&mut [Transfer::send(&one, 0), Transfer::send(&two, 0)]).unwrap();
                    } else if comm.rank() == 1 {
                        let both = [Transfer::recv(&mut first, 0), Transfer::recv(&mut second, 0)];
                        comm.exchange(&mut { both }).unwrap();
                    } else {
                        comm.recv(&mut first, 1).unwrap();
                        comm.recv(&mut second, 1).unwrap();
                    }
                    assert!(is_sender || first == one && second == two);
                }
            });
        }
    }

    /// Rank 0 gives the message first that comes last, because its sender waits for the others.
    #[test]
    fn no_message_of_an_exchange_waits_for_another() {
        for transport in [Transport::Shm, Transport::Verbs] {
            ranks(3, transport, |mut comm, _| {
                for count in [1, 20_001] {
                    let (mut last, mut first) = (vec![0; count], vec![0; count]);
                    match comm.rank() {
                        0 => {
                            let receives = [Transfer::recv(&mut last, 2), Transfer::recv(&mut first, 1)];
                            comm.exchange(&mut { receives }).unwrap();
                            assert!(last == message(2, 0, count) && first == message(1, 0, count));
                            let sent = message(0, 1, count);
                            let both = [Transfer::recv(&mut last, 2), Transfer::send(&sent, 1)];
                            comm.exchange(&mut { both }).unwrap();
                            assert_eq!(last, message(2, 0, count));
                        }
                        1 => {
                            comm.send(&message(1, 0, count), 0).unwrap();
                            comm.send(&message(1, 2, count), 2).unwrap();
                            comm.recv(&mut first, 0).unwrap();
                            assert_eq!(first, message(0, 1, count));
                            comm.send(&message(1, 2, count), 2).unwrap();
                        }
                        _ => {
                            for _ in 0..2 {
                                comm.recv(&mut first, 1).unwrap();
                                assert_eq!(first, message(1, 2, count));
                                comm.send(&message(2, 0, count), 0).unwrap();
                            }
                        }
                    }
                }
            });
        }
    }

    #[test]
    fn a_message_that_its_tensor_does_not_have_is_refused_before_anything_is_sent() {
        ranks(2, Transport::Auto, |mut comm, _| {
            let (peer, tensor) = (1 - comm.rank(), comm.allocate::<u8>(9000).unwrap());
            let text = "a message of 9001 elements in a tensor that has fewer";
            assert_eq!(comm.send(tensor.source(9001), peer).unwrap_err().to_string(), text);
            assert_eq!(comm.recv(tensor.target(9001), peer).unwrap_err().to_string(), text);
            comm.barrier().unwrap();
        });
    }
}
