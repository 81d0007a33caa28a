//! The connections of this rank, and the frames that arrive for each of its groups.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::Socket;

use super::frame::{Content, Frame, Routed};

/// The identity of a group at each of its ranks: empty for the whole job, else the numbers of the
/// splits that led to it. A rank is in one part of each split, so parts of the same split need no
/// identities of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct GroupId(Vec<u32>);

impl GroupId {
    /// The identity of the parts of a group's split.
    pub(super) fn part(&self, split: u32) -> Self {
        Self(self.0.iter().copied().chain([split]).collect())
    }

    pub(super) fn is_whole(&self) -> bool {
        self.0.is_empty()
    }
}

/// One write end per connection, and the rank at its other end. Rank 0 has one for each other rank,
/// the others have one for rank 0.
pub(super) type Writers = Vec<(usize, Mutex<Socket>)>;

/// The connections of this rank, and an inbox for each of its groups. Ranks are those of the job.
#[derive(Debug)]
pub(super) struct Exchange {
    rank: usize,
    pub(super) writers: Writers,
    /// `None` for a group that has ended, whose number is not used again.
    inboxes: Mutex<HashMap<GroupId, Option<Inbox>>>,
}

/// The inbox of a group: a faster rank may send before this rank has opened it.
#[derive(Debug)]
struct Inbox {
    sender: Sender<(usize, Frame)>,
    /// The receiving end, until the inbox is opened.
    unopened: Option<Receiver<(usize, Frame)>>,
}

impl Default for Inbox {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sender, unopened: Some(receiver) }
    }
}

impl Exchange {
    pub(super) fn new(rank: usize, writers: Writers) -> Self {
        Self { rank, writers, inboxes: Mutex::default() }
    }

    /// This rank.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    fn inboxes(&self) -> MutexGuard<'_, HashMap<GroupId, Option<Inbox>>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frames for a group, and the ranks that sent them; opened once.
    pub(super) fn open(&self, group: &GroupId) -> Receiver<(usize, Frame)> {
        let mut inboxes = self.inboxes();
        let inbox = inboxes.entry(group.clone()).or_insert_with(|| Some(Inbox::default()));
        let opened = inbox.as_mut().and_then(|inbox| inbox.unopened.take());
        opened.unwrap_or_else(|| channel().1)
    }

    /// Ends the inbox of a group.
    pub(super) fn close(&self, group: &GroupId) {
        self.inboxes().insert(group.clone(), None);
    }

    pub(super) fn deliver(&self, group: &GroupId, from: usize, frame: Frame) {
        let mut inboxes = self.inboxes();
        // A group that is dropped needs no frames.
        if let Some(inbox) = inboxes.entry(group.clone()).or_insert_with(|| Some(Inbox::default())) {
            drop(inbox.sender.send((from, frame)));
        }
    }

    /// Delivers a frame to every group of this rank.
    pub(super) fn deliver_to_all(&self, from: usize, frame: &Frame) {
        for inbox in self.inboxes().values().flatten() {
            drop(inbox.sender.send((from, frame.clone())));
        }
    }

    /// Sends to the other end of every connection except one; continues if a send fails, and
    /// returns the first error.
    pub(super) fn send_to_all(&self, frame: &Frame, except: Option<usize>) -> Result<(), (usize, io::Error)> {
        let mut result = Ok(());
        for (peer, writer) in self.writers.iter().filter(|(peer, _)| Some(*peer) != except) {
            if let (Err(error), true) = (write(writer, frame), result.is_ok()) {
                result = Err((*peer, error));
            }
        }
        result
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
        self.route(routed);
        Ok(())
    }

    /// Delivers a frame that is for this rank. Rank 0 passes it on to its other recipients.
    pub(super) fn route(&self, routed: Routed) {
        if routed.to.contains(&self.rank) {
            self.deliver(&routed.group, routed.from, routed.content.clone().into());
        }
        if self.rank != 0 {
            return;
        }
        for (peer, writer) in self.writers.iter().filter(|(peer, _)| routed.to.contains(peer)) {
            // Errors are ignored: the reader of this connection learns that the rank is lost.
            drop(write(writer, &Frame::Within(Routed { to: vec![*peer], ..routed.clone() })));
        }
    }

    /// Sends heartbeats of this rank to the others until the job ends.
    pub(super) fn beat(&self, period: Duration, end: &Receiver<()>) {
        while end.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
            for (_, writer) in &self.writers {
                // A writer in use is sending a frame, which serves as a heartbeat.
                if let Ok(mut writer) = writer.try_lock() {
                    drop(Frame::Alive.write(&mut *writer));
                }
            }
        }
    }

    /// Ends all connections, which wakes the threads that read them.
    pub(super) fn shut_down(&self) {
        for (_, writer) in &self.writers {
            // Errors are ignored: the connection may be closed already.
            drop(writer.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both));
        }
    }
}

fn write(writer: &Mutex<Socket>, frame: &Frame) -> io::Result<()> {
    frame.write(&mut *writer.lock().unwrap_or_else(PoisonError::into_inner))
}
