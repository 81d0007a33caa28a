//! The connections of a rank, and the inboxes of its groups.
//!
//! A rank that breaks the protocol does not make this rank's memory grow. A gathering leaves each
//! rank of a group with at most one frame that the receiver has not read: a rank sends its next
//! part after the whole of the last one, which is sent when all parts were read. So:
//!
//! * An inbox takes one unread frame of each member.
//! * There are inboxes for the groups that this rank has opened, and for the parts that its next
//!   split of one of them will make: a faster rank may be there already. It cannot be further, as
//!   the next gathering of such a part needs this rank.
//! * The unread frames of one rank have at most [`MAX_UNREAD`] times the bytes of the largest
//!   frame, over all inboxes: 4 MiB in a job of 2 ranks, 128 MiB in one of 64 or more.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::compare::Ledgers;
use super::frame::{self, Content, Frame, GroupId, Loss, Routed};
use super::journal::News;
use super::meet::Until;
use crate::cause::Cause;

/// One write end per connection, and the rank at its other side. Rank 0 has one for each other
/// rank, the others have one for rank 0.
pub(super) type Writers = Vec<(usize, Mutex<Socket>)>;

/// Bytes of one rank's unread frames, as a multiple of the largest frame.
pub(super) const MAX_UNREAD: usize = 2;

/// The error for a frame that the protocol does not allow; holds the rank that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotDue(pub(super) usize);

/// The connections of this rank, and an inbox for each of its groups. Ranks are those of the job.
#[derive(Debug)]
pub(super) struct Router {
    rank: usize,
    pub(super) world: usize,
    pub(super) writers: Writers,
    /// Time in which the other side of a connection has to take a frame.
    limit: Duration,
    /// Of the groups that have not ended.
    inboxes: Mutex<Inboxes>,
    /// Locked while a failure is made known, to this rank and then to the others.
    telling: Mutex<()>,
    /// Locked by a test that holds the news back.
    #[cfg(test)]
    pub(super) gate: Mutex<()>,
    /// The journals of this rank's communicators.
    pub(super) ledgers: Ledgers,
}

type Inboxes = HashMap<GroupId, Inbox>;

/// The inbox of a group.
#[derive(Debug)]
struct Inbox {
    sender: Sender<(usize, Frame)>,
    /// The receiving side, until the inbox is opened.
    unopened: Option<Receiver<(usize, Frame)>>,
    /// The ranks that may send, and the bytes of the unread frame of each.
    unread: HashMap<usize, Option<usize>>,
    /// Number of times that this rank has split the group.
    splits: u32,
}

impl Inbox {
    fn new(members: impl Iterator<Item = usize>) -> Self {
        let (sender, receiver) = channel();
        let unread = members.map(|member| (member, None)).collect();
        Self { sender, unopened: Some(receiver), unread, splits: 0 }
    }
}

impl Router {
    /// The connections of a rank of a job of `world` ranks.
    pub(super) fn new(rank: usize, world: usize, writers: Writers, limit: Duration) -> Self {
        Self {
            rank,
            world,
            writers,
            limit,
            inboxes: Mutex::default(),
            ledgers: Ledgers::default(),
            telling: Mutex::default(),
            #[cfg(test)]
            gate: Mutex::default(),
        }
    }

    /// This rank.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The largest frame.
    pub(super) fn max_length(&self) -> usize {
        frame::max_length(self.world)
    }

    fn inboxes(&self) -> MutexGuard<'_, Inboxes> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frames for a group, and the ranks that sent them; opened once. The members of a part are
    /// among those of its parent, which is open.
    pub(super) fn open(&self, group: &GroupId, members: &[usize]) -> Receiver<(usize, Frame)> {
        let mut inboxes = self.inboxes();
        if let Some((parent, split)) = group.parent() {
            if let Some(parent) = inboxes.get_mut(&parent) {
                parent.splits = split + 1;
            }
        }
        let inbox = inboxes.entry(group.clone()).or_insert_with(|| Inbox::new(members.iter().copied()));
        inbox.unread.retain(|member, _| members.contains(member));
        inbox.unopened.take().unwrap_or_else(|| channel().1)
    }

    /// Ends the inbox of a group, and that of the parts that the group will not be split into.
    pub(super) fn close(&self, group: &GroupId) {
        self.close_ledger(group);
        let mut inboxes = self.inboxes();
        if let Some(inbox) = inboxes.remove(group) {
            inboxes.remove(&group.part(inbox.splits));
        }
    }

    /// Says that the frame of a rank has been read, so that the rank may send the next one.
    pub(super) fn has_read(&self, group: &GroupId, from: usize) {
        if let Some(inbox) = self.inboxes().get_mut(group) {
            if let Some(unread) = inbox.unread.get_mut(&from) {
                *unread = None;
            }
        }
    }

    /// Ends the waits of a group for values, whose watch has failed.
    pub(super) fn wake(&self, group: &GroupId) {
        if let Some(inbox) = self.inboxes().get(group) {
            drop(inbox.sender.send((self.rank, Frame::Lost(self.rank, Loss::new("has failed", Cause::Other)))));
        }
    }

    /// Takes a frame that came over the connection to `peer`.
    pub(super) fn take(&self, peer: usize, frame: Frame) -> Result<(), NotDue> {
        match frame {
            Frame::Part(..) | Frame::Whole(_) => self.deliver(&GroupId::default(), peer, frame),
            // Rank 0 knows its peers; the others know from rank 0 whose frame it is.
            Frame::Within(routed) if self.may_send(peer, &routed) => self.route(routed),
            Frame::Compare(routed) if self.may_send(peer, &routed) => {
                if routed.to.contains(&self.rank) {
                    self.learn(&routed.group, routed.from, routed.content.clone())?;
                }
                self.pass_on(&routed, Frame::Compare);
                Ok(())
            }
            _ => Err(NotDue(peer)),
        }
    }

    /// Whether the other side of a connection may send this frame.
    fn may_send<C>(&self, peer: usize, routed: &Routed<C>) -> bool {
        (self.rank != 0 || routed.from == peer) && routed.to.len() < self.world
    }

    fn deliver(&self, group: &GroupId, from: usize, frame: Frame) -> Result<(), NotDue> {
        let mut inboxes = self.inboxes();
        if !inboxes.contains_key(group) {
            let (parent, split) = group.parent().ok_or(NotDue(from))?;
            match inboxes.get(&parent) {
                Some(parent) if parent.unopened.is_none() && parent.splits == split => {
                    let inbox = Inbox::new(parent.unread.keys().copied());
                    inboxes.insert(group.clone(), inbox);
                }
                // A group that is dropped needs no frames, nor do its parts.
                _ if was_opened(&inboxes, group) => return Ok(()),
                _ => return Err(NotDue(from)),
            }
        }
        let unread = inboxes.values().filter_map(|inbox| *inbox.unread.get(&from)?);
        let (size, unread) = (frame.size(), unread.sum::<usize>());
        let Some(inbox) = inboxes.get_mut(group) else { return Ok(()) };
        match inbox.unread.get_mut(&from) {
            Some(entry @ None) if size.saturating_add(unread) <= MAX_UNREAD * self.max_length() => *entry = Some(size),
            _ => return Err(NotDue(from)),
        }
        drop(inbox.sender.send((from, frame)));
        Ok(())
    }

    /// Delivers a frame to every group of this rank.
    pub(super) fn deliver_to_all(&self, from: usize, frame: &Frame) {
        for inbox in self.inboxes().values() {
            drop(inbox.sender.send((from, frame.clone())));
        }
    }

    /// Sends to the other side of every connection except one; continues if a send fails, and
    /// returns the first error.
    pub(super) fn send_to_all(&self, frame: &Frame, except: Option<usize>) -> Result<(), (usize, io::Error)> {
        let mut result = Ok(());
        for (peer, writer) in self.writers.iter().filter(|(peer, _)| Some(*peer) != except) {
            if let (Err(error), true) = (self.write(writer, frame), result.is_ok()) {
                result = Err((*peer, error));
            }
        }
        result
    }

    /// Makes a failure known: to this rank by `fail`, which returns whether it is the first, and if
    /// it is, to the other side of every connection except one. Returns whether it is.
    pub(super) fn tell(&self, news: &Frame, except: Option<usize>, fail: impl FnOnce() -> bool) -> bool {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = fail();
        #[cfg(test)]
        drop(self.gate.lock());
        if is_first {
            // Errors are ignored: a rank that does not get the news has gone.
            drop(self.send_to_all(news, except));
        }
        is_first
    }

    /// Waits until a failure that this rank knows of has been told to the others. They would take
    /// the end of this rank, which follows from it, for the cause if it came first.
    pub(super) fn wait_until_told(&self) {
        drop(self.telling.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sends to some ranks of a part of the job.
    pub(super) fn send_within(
        &self,
        group: &GroupId,
        to: Vec<usize>,
        content: Content,
    ) -> Result<(), (usize, io::Error)> {
        let routed = Routed { group: group.clone(), from: self.rank, to, content };
        if self.rank != 0 {
            return self.send_to_all(&Frame::Within(routed), None);
        }
        self.route(routed).map_err(|NotDue(rank)| (rank, io::Error::other("it is not in the group")))
    }

    /// Delivers a frame that is for this rank. Rank 0 passes it on to its other recipients.
    fn route(&self, routed: Routed) -> Result<(), NotDue> {
        if routed.to.contains(&self.rank) {
            self.deliver(&routed.group, routed.from, routed.content.clone().into())?;
        }
        self.pass_on(&routed, Frame::Within);
        Ok(())
    }

    /// At rank 0, passes a frame on to its other recipients.
    fn pass_on<C: Clone>(&self, routed: &Routed<C>, frame: impl Fn(Routed<C>) -> Frame) {
        if self.rank != 0 {
            return;
        }
        for (peer, writer) in self.writers.iter().filter(|(peer, _)| routed.to.contains(peer)) {
            // Errors are ignored: the reader of this connection learns that the rank is lost.
            drop(self.write(writer, &frame(Routed { to: vec![*peer], ..routed.clone() })));
        }
    }

    /// Tells other ranks of this rank's communicator about their operations.
    pub(super) fn send_news(&self, news: Routed<News>) {
        if self.rank == 0 {
            self.pass_on(&news, Frame::Compare);
        } else {
            // Errors are ignored: the reader of the connection learns that rank 0 is lost.
            drop(self.send_to_all(&Frame::Compare(news), None));
        }
    }

    /// Sends a frame towards a rank; returns whether the connection was free.
    pub(super) fn try_send(&self, to: usize, frame: &Frame) -> bool {
        let Some(Ok(writer)) = self.writer_towards(to).map(Mutex::try_lock) else { return false };
        // Errors are ignored: the reader of the connection learns that the rank is lost.
        drop(self.write_to(&writer, frame));
        true
    }

    /// Sends a frame towards a rank.
    pub(super) fn send_towards(&self, to: usize, frame: &Frame) {
        if let Some(writer) = self.writer_towards(to) {
            // Errors are ignored: the reader of the connection learns that the rank is lost.
            drop(self.write(writer, frame));
        }
    }

    /// The connection to a rank, or to rank 0, which passes frames on.
    fn writer_towards(&self, to: usize) -> Option<&Mutex<Socket>> {
        let next = if self.rank == 0 { to } else { 0 };
        self.writers.iter().find(|(peer, _)| *peer == next).map(|(_, writer)| writer)
    }

    /// Sends heartbeats of this rank to the others, and reports its operations, until the job ends.
    pub(super) fn beat(&self, period: Duration, end: &Receiver<()>) {
        let interval = self.interval();
        let (mut beat, mut report) = (Instant::now() + period, Instant::now() + interval);
        while end.recv_timeout(beat.min(report).saturating_duration_since(Instant::now()))
            == Err(RecvTimeoutError::Timeout)
        {
            if Instant::now() >= report {
                self.report();
                report = Instant::now() + interval;
            }
            if Instant::now() < beat {
                continue;
            }
            for (_, writer) in &self.writers {
                // A writer in use is sending a frame, which serves as a heartbeat.
                if let Ok(writer) = writer.try_lock() {
                    drop(self.write_to(&writer, &Frame::Alive));
                }
            }
            beat = Instant::now() + period;
        }
    }

    /// Ends all connections, which wakes the threads that read them.
    pub(super) fn shut_down(&self) {
        for (_, writer) in &self.writers {
            // Errors are ignored: the connection may be closed already.
            drop(writer.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both));
        }
    }

    fn write(&self, writer: &Mutex<Socket>, frame: &Frame) -> io::Result<()> {
        self.write_to(&writer.lock().unwrap_or_else(PoisonError::into_inner), frame)
    }

    fn write_to(&self, stream: &Socket, frame: &Frame) -> io::Result<()> {
        let written = frame.write(&mut Until(stream, Instant::now() + self.limit), self.max_length());
        if written.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::InvalidInput) {
            // A part of the frame may have left, after which no other frame would be understood.
            // Errors are ignored: the connection may be closed already.
            drop(stream.shutdown(Shutdown::Write));
        }
        written
    }
}
/// Whether this rank has opened a part, of which nothing may be kept any more.
fn was_opened(inboxes: &Inboxes, part: &GroupId) -> bool {
    let Some((parent, split)) = part.parent() else { return false };
    // A group that is not kept has ended, with all its parts, if it has begun.
    inboxes.get(&parent).map_or_else(|| was_opened(inboxes, &parent), |parent| split < parent.splits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::json::Json;

    #[test]
    fn nothing_is_kept_of_parts_that_have_ended() {
        let router = Router::new(1, 2, Vec::new(), Duration::from_secs(1));
        let (job, members) = (GroupId::default(), [0, 1]);
        let _inbox = router.open(&job, &members);
        let part = |group: &GroupId, content: &str| {
            let content = Content::Part(content.to_owned(), Json::of(&()).unwrap());
            router.take(0, Frame::Within(Routed { group: group.clone(), from: 0, to: vec![1], content }))
        };
        for split in 0..100 {
            let leaf = job.part(split);
            let _of_leaf = router.open(&leaf, &members);
            part(&leaf, "a value").unwrap();
            router.close(&leaf);
            assert_eq!(router.inboxes().len(), 1);
            // Late frames are for nobody; those of a part that is not due are refused.
            part(&leaf, "late").unwrap();
            part(&leaf.part(0), "early in a part of it").unwrap();
            part(&leaf.part(0).part(0), "early in a part of that").unwrap();
            assert_eq!(part(&job.part(split + 2), "too early"), Err(NotDue(0)));
            assert_eq!(router.inboxes().len(), 1);
        }
        // Nor of those that were split themselves.
        let outer = job.part(100);
        let _of_outer = router.open(&outer, &members);
        for split in 0..100 {
            let inner = outer.part(split);
            let of_inner = router.open(&inner, &members);
            if split == 99 {
                router.close(&outer);
            }
            part(&inner, "a value").unwrap();
            assert!(of_inner.try_recv().is_ok());
            router.close(&inner);
            part(&inner, "late").unwrap();
        }
        assert_eq!(router.inboxes().len(), 1);
    }
}
