//! Messages between ranks in the background: a [`Mailbox`] owns a communicator, and moves every
//! message that is posted as soon as its other side is.
//!
//! A thread looks at all posted messages in turn, as an [exchange](Communicator::exchange) does,
//! with the difference that messages join it while it goes on. A message is a head, which has its
//! length and its tag, and pieces of the elements after it. The head is a message of its own on the
//! links, so that a receiver knows the length before it takes a piece. A receiver looks only for
//! heads of ranks of which it wants a message; one that no receive wants yet stays where it is,
//! unless it is in the way of one that is wanted: then its bytes are kept here.

mod mail;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use crate::Error;
use crate::cause::Cause;
use crate::collective::Collective;
use crate::communicator::{Communicator, Linked};
use crate::link::{Links, Slice, Ticket};
use crate::pair::PairLinks;
use crate::queue::{OwnedSource, OwnedTarget, StartedWith, pair};
use crate::shm::HostSlice;
use crate::wait::Wait;

use self::mail::{Incoming, Letter, Outgoing};

/// Bytes of a head: the number of bytes, and the tag.
const HEAD: usize = 16;
/// Most bytes of a piece, and least.
const PIECES: (usize, usize) = (4 << 10, 256 << 10);
/// Bytes that the pieces to all ranks may take together.
const MOST: usize = 8 << 20;
/// Pieces to one rank that are in flight at a time.
const PLACES: usize = 2;
/// Places begin at multiples of so many bytes: no two share a cache line.
const ALIGNMENT: usize = 64;

/// Sends and receives messages in the background, none of which waits for another: MPI's
/// `MPI_Isend` and `MPI_Irecv`, with tags and `MPI_ANY_SOURCE`.
///
/// A message goes on when both of its sides are posted, in whatever order each rank posts its own.
/// Messages between two ranks that have one tag come in the order in which they were sent. All
/// ranks of a communicator send and receive by mailboxes, or none does.
///
/// ```no_run
/// use rdma_collectives::{Communicator, Error, Mailbox};
///
/// fn swap(comm: &mut Communicator, own: Vec<u8>) -> Result<Vec<u8>, Error> {
///     let peer = 1 - comm.rank();
///     let mailbox = Mailbox::new(comm.split(0, comm.rank())?)?;
///     let came = mailbox.recv(vec![0; own.len()], Some(peer), 0)?;
///     mailbox.send(own, peer, 0)?.wait()?;
///     let (came, _from) = came.wait()?;
///     Ok(came)
/// }
/// ```
///
/// The first failure of the communicator ends the mailbox: it is also the result of every later
/// message. A message that is longer or shorter than its receiver's memory fails at the receiver
/// alone.
///
/// A message that comes while a receive waits for another one of the same rank is kept in memory
/// until a receive wants it, whatever its length; the number of such messages has no limit.
///
/// Dropping the mailbox does not wait: messages that are not complete fail at this rank, and the
/// other ranks wait for them.
#[derive(Debug)]
#[doc(alias = "MPI_Isend")]
#[doc(alias = "MPI_Irecv")]
pub struct Mailbox {
    rank: usize,
    ranks: usize,
    is_dropped: SetOnDrop,
    letters: Sender<Letter>,
    thread: JoinHandle<()>,
}

/// Bytes of a piece among so many ranks: a multiple of the size of every element, so that no piece
/// ends inside of one.
fn piece(ranks: usize) -> usize {
    (MOST / ranks.max(1) / PLACES).clamp(PIECES.0, PIECES.1) / ALIGNMENT * ALIGNMENT
}

/// A flag that is set when this side of it is dropped.
#[derive(Debug)]
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Mailbox {
    /// Starts the thread, which owns the communicator. Every rank of it makes a mailbox.
    ///
    /// # Errors
    /// If the thread cannot be started, or the memory for messages is lacking.
    pub fn new(mut comm: Communicator) -> Result<Self, Error> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let piece = piece(ranks);
        let place = (HEAD + piece).next_multiple_of(ALIGNMENT);
        let scratch = comm.scratch(ranks * PLACES * place)?;
        let (letters, inbox) = channel();
        let is_dropped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_dropped);
        let post = Post {
            rank,
            piece,
            place,
            scratch,
            inbox,
            is_dropped: flag,
            outgoing: (0..ranks).map(|_| VecDeque::new()).collect(),
            places: (0..ranks).map(|_| [const { None }; PLACES]).collect(),
            incoming: VecDeque::new(),
            arriving: (0..ranks).map(|_| None).collect(),
            kept: Vec::new(),
            block: Vec::new(),
        };
        let thread = thread::Builder::new().name("messages".to_owned()).spawn(move || post.run(comm));
        let thread = thread.map_err(|error| Error::not_started("the thread of the messages", &error))?;
        Ok(Self { rank, ranks, is_dropped: SetOnDrop(is_dropped), letters, thread })
    }

    /// Sends a message to a rank, in the background. The memory comes back when it may be changed,
    /// at the latest when the rank has received the message.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such rank, or it is this one.
    pub fn send<M: OwnedSource>(&self, memory: M, to: usize, tag: u64) -> Result<StartedWith<M, ()>, Error> {
        self.check(to)?;
        let (outcome, pending) = pair(self.thread.thread().id(), memory, crate::OperationError::new);
        self.post(Letter::Send(to, Outgoing::new(tag, outcome)));
        Ok(pending)
    }

    /// Receives a message with this tag, of a rank or of any other one, in the background. The
    /// memory comes back with the rank that has sent the message.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such rank, or it is this one.
    pub fn recv<M: OwnedTarget>(
        &self,
        memory: M,
        from: Option<usize>,
        tag: u64,
    ) -> Result<StartedWith<M, usize>, Error> {
        from.map_or(Ok(()), |from| self.check(from))?;
        if self.ranks < 2 {
            return Err(Error::invalid("there is no other rank that sends a message"));
        }
        let (outcome, pending) = pair(self.thread.thread().id(), memory, crate::OperationError::new);
        self.post(Letter::Recv(Incoming::new(from, tag, outcome)));
        Ok(pending)
    }

    fn check(&self, peer: usize) -> Result<(), Error> {
        match peer {
            _ if peer >= self.ranks => {
                Err(Error::invalid(format!("rank {peer} is not below the number of ranks, {}", self.ranks)))
            }
            _ if peer == self.rank => Err(Error::invalid(format!("rank {peer} is this one: a message is for another"))),
            _ => Ok(()),
        }
    }

    fn post(&self, letter: Letter) {
        // If the thread has ended, the letter is dropped, of which its handle learns.
        drop(self.letters.send(letter));
    }

    /// Waits until all posted messages are complete, or have failed.
    pub fn finish(self) {
        let Self { is_dropped: _is_dropped, letters, thread, .. } = self;
        drop(letters);
        // A panic has ended all messages, of which their handles tell.
        drop(thread.join());
    }
}

/// The thread's side of a mailbox.
struct Post {
    rank: usize,
    /// Most bytes of a piece, and bytes of a place in the scratch memory.
    piece: usize,
    place: usize,
    scratch: HostSlice,
    inbox: Receiver<Letter>,
    is_dropped: Arc<AtomicBool>,
    /// The messages to each rank that are not posted to the end.
    outgoing: Vec<VecDeque<Outgoing>>,
    /// The piece in each of a rank's places until it is taken.
    places: Vec<[Option<Piece>; PLACES]>,
    /// The receives that have no message yet, in the order of their posts.
    incoming: VecDeque<Incoming>,
    /// The message of each rank that arrives.
    arriving: Vec<Option<Arriving>>,
    /// Messages that came before their receives, in the order in which they came.
    kept: Vec<Kept>,
    block: Vec<u8>,
}

/// A piece in flight.
struct Piece {
    ticket: Ticket,
    /// The message of which it is the last one.
    ends: Option<Outgoing>,
}

/// A message whose head has come.
struct Arriving {
    len: usize,
    tag: u64,
    done: usize,
    goal: Goal,
}

/// The place of a message's bytes.
enum Goal {
    /// Nowhere yet: no receive wants the message.
    Open,
    Memory(Incoming),
    /// To the messages that are kept for a later receive.
    Kept(Vec<u8>),
    /// Nowhere: the receive has failed.
    Lost,
}

/// A message that came before its receive.
struct Kept {
    from: usize,
    tag: u64,
    bytes: Vec<u8>,
}

impl Post {
    fn run(mut self, mut comm: Communicator) {
        let Err(error) = self.serve(&mut comm) else { return };
        let failed = comm.ended::<()>(Some(Collective::SendRecv), Err(error.clone())).err().unwrap_or(error);
        // Before the letters: the rest of the job learns of it while they are answered.
        let places = self.places.iter_mut().flatten().filter_map(|place| place.take()?.ends);
        let outgoing: Vec<Outgoing> = places.chain(self.outgoing.iter_mut().flat_map(|all| all.drain(..))).collect();
        outgoing.into_iter().for_each(|letter| letter.end(Err(failed.clone())));
        let arriving = self.arriving.drain(..).flatten().filter_map(|arriving| match arriving.goal {
            Goal::Memory(letter) => Some(letter),
            _ => None,
        });
        let incoming: Vec<Incoming> = arriving.chain(self.incoming.drain(..)).collect();
        incoming.into_iter().for_each(|letter| letter.end(Err(failed.clone())));
        // Until the mailbox ends.
        for letter in &self.inbox {
            match letter {
                Letter::Send(_, letter) => letter.end(Err(failed.clone())),
                Letter::Recv(letter) => letter.end(Err(failed.clone())),
            }
        }
    }

    /// Moves messages until the mailbox ends.
    fn serve(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let Linked { mut links, .. } = comm.links(std::iter::empty())?;
        let mut wait = Wait::default();
        loop {
            let Some(mut moves) = self.take_letters() else { return Ok(()) };
            let (rank, ranks) = (self.rank, self.outgoing.len());
            for peer in (0..ranks).filter(|&peer| peer != rank) {
                moves |= self.send(peer, &mut links).map_err(|error| error.waits_for(peer))?;
                moves |= self.receive(peer, &mut links).map_err(|error| error.waits_for(peer))?;
            }
            if moves {
                wait = Wait::default();
                continue;
            }
            links.pause(&mut wait).map_err(|error| match self.awaited() {
                Some((peer, what)) => error.context(format!("waiting for rank {peer} {what}")).waits_for(peer),
                None => error.context("waiting for any rank to send a message"),
            })?;
        }
    }

    /// Takes what was posted; waits for it if nothing else is to be done. Returns whether there was
    /// anything, and `None` at the end of the mailbox.
    fn take_letters(&mut self) -> Option<bool> {
        let mut any = false;
        loop {
            if self.is_dropped.load(Ordering::Acquire) {
                return None;
            }
            let is_idle = self.is_idle();
            let letter = match is_idle {
                true => self.inbox.recv().map_err(|_| TryRecvError::Disconnected),
                false => self.inbox.try_recv(),
            };
            match letter {
                Ok(Letter::Send(to, letter)) => self.outgoing[to].push_back(letter),
                Ok(Letter::Recv(letter)) => self.post_receive(letter),
                Err(TryRecvError::Disconnected) if is_idle => return None,
                Err(_) => return Some(any),
            }
            any = true;
        }
    }

    /// Whether nothing is to be done until a letter comes.
    fn is_idle(&self) -> bool {
        let is_open =
            |arriving: &Option<Arriving>| arriving.as_ref().is_none_or(|arriving| matches!(arriving.goal, Goal::Open));
        self.incoming.is_empty()
            && self.outgoing.iter().all(VecDeque::is_empty)
            && self.places.iter().flatten().all(Option::is_none)
            && self.arriving.iter().all(is_open)
    }

    /// The rank that is waited for, and for what; `None` if it may be any.
    fn awaited(&self) -> Option<(usize, &'static str)> {
        let arriving = |peer: &usize| {
            let arriving = self.arriving[*peer].as_ref();
            arriving.is_some_and(|arriving| !matches!(arriving.goal, Goal::Open))
        };
        let sends = |peer: &usize| !self.outgoing[*peer].is_empty() || self.places[*peer].iter().any(Option::is_some);
        let peers = || 0..self.outgoing.len();
        let named = self.incoming.iter().find_map(|letter| letter.from());
        let sender = peers().find(arriving).or(named).map(|peer| (peer, "to send a message"));
        sender.or_else(|| peers().find(sends).map(|peer| (peer, "to take a message")))
    }

    /// Gives a receive a message that has come before it, or keeps it until one comes.
    fn post_receive(&mut self, letter: Incoming) {
        let Some(at) = self.kept.iter().position(|kept| letter.accepts(kept.from, kept.tag)) else {
            return self.incoming.push_back(letter);
        };
        let Kept { from, bytes, .. } = self.kept.remove(at);
        deliver(letter, from, &bytes);
    }

    /// The first receive that wants a message.
    fn wanted(&mut self, from: usize, tag: u64) -> Option<Incoming> {
        let at = self.incoming.iter().position(|letter| letter.accepts(from, tag))?;
        self.incoming.remove(at)
    }

    /// Posts pieces to a rank where places are free; returns whether anything has moved.
    fn send(&mut self, to: usize, links: &mut PairLinks<'_>) -> Result<bool, Error> {
        let mut moves = false;
        for number in 0..PLACES {
            if let Some(Piece { ticket, .. }) = self.places[to][number] {
                if !links.is_taken(ticket)? {
                    continue;
                }
                moves = true;
                if let Some(Piece { ends: Some(letter), .. }) = self.places[to][number].take() {
                    letter.end(Ok(()));
                }
            }
            let Some(letter) = self.outgoing[to].front_mut() else { continue };
            letter.next(self.piece, &mut self.block)?;
            let start = (to * PLACES + number) * self.place;
            let piece = self.scratch.part(start..start + self.block.len())?;
            piece.copy_in(0, &self.block)?;
            let ticket = links.post(to, piece)?;
            let ends = if letter.is_posted() { self.outgoing[to].pop_front() } else { None };
            self.places[to][number] = Some(Piece { ticket, ends });
            moves = true;
        }
        Ok(moves)
    }

    /// Takes what has arrived from a rank; returns whether anything has.
    fn receive(&mut self, from: usize, links: &mut PairLinks<'_>) -> Result<bool, Error> {
        let mut moves = false;
        loop {
            let wants = self.incoming.iter().any(|letter| letter.from().is_none_or(|wanted| wanted == from));
            let Some(arriving) = &mut self.arriving[from] else {
                if !wants {
                    return Ok(moves);
                }
                let Some(head) = links.arrived(from, HEAD)? else { return Ok(moves) };
                let mut words = [0_u64; 2];
                head.copy_out(0, bytemuck::cast_slice_mut(&mut words))?;
                links.release(from)?;
                let [len, tag] = words;
                let len = usize::try_from(len).map_err(|_| Error::new(format!("rank {from} sends {len} bytes")))?;
                self.arriving[from] = Some(Arriving { len, tag, done: 0, goal: Goal::Open });
                moves = true;
                continue;
            };
            let (len, tag) = (arriving.len, arriving.tag);
            if matches!(arriving.goal, Goal::Open) {
                let goal = match self.wanted(from, tag) {
                    Some(letter) if letter.len() == len => Goal::Memory(letter),
                    Some(letter) => {
                        let error = other_length(from, len, letter.len());
                        letter.end(Err(error));
                        Goal::Lost
                    }
                    // It is in the way of one that is wanted, perhaps.
                    None if wants => Goal::Kept(Vec::new()),
                    None => return Ok(moves),
                };
                self.arriving[from] = Some(Arriving { len, tag, done: 0, goal });
                moves = true;
                continue;
            }
            let done = arriving.done;
            if done == len {
                match self.arriving[from].take().map(|arriving| arriving.goal) {
                    Some(Goal::Memory(letter)) => letter.end(Ok(from)),
                    Some(Goal::Kept(bytes)) => match self.wanted(from, tag) {
                        Some(letter) => deliver(letter, from, &bytes),
                        None => self.kept.push(Kept { from, tag, bytes }),
                    },
                    _ => {}
                }
                moves = true;
                continue;
            }
            // The links cut each piece on their part.
            let end = (done - done % self.piece).saturating_add(self.piece).min(len);
            let end = end.min(done.saturating_add(links.piece()));
            let Some(part) = links.arrived(from, end - done)? else { return Ok(moves) };
            self.block.resize(end - done, 0);
            part.copy_out(0, &mut self.block)?;
            links.release(from)?;
            arriving.done = end;
            moves = true;
            let written = match &mut arriving.goal {
                Goal::Memory(letter) => letter.write(done, &self.block),
                Goal::Kept(bytes) => {
                    bytes.extend_from_slice(&self.block);
                    Ok(())
                }
                Goal::Open | Goal::Lost => Ok(()),
            };
            if let Err(error) = written {
                if let Goal::Memory(letter) = std::mem::replace(&mut arriving.goal, Goal::Lost) {
                    letter.end(Err(error));
                }
            }
        }
    }
}

/// Gives a receive a message that was kept.
fn deliver(mut letter: Incoming, from: usize, bytes: &[u8]) {
    let written = match letter.len() == bytes.len() {
        true => letter.write(0, bytes),
        false => Err(other_length(from, bytes.len(), letter.len())),
    };
    letter.end(written.map(|()| from));
}

fn other_length(from: usize, sent: usize, wanted: usize) -> Error {
    Error::new(format!("rank {from} sent {sent} bytes, and {wanted} are to be received"))
        .with_cause(Cause::InvalidInput)
}
