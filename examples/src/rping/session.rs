//! One side of a connection: its queues, its messages, and waiting for them.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rdma::cm::ConnOptions;
use rdma::cm::blocking::Connection;
use rdma::op::{self, Opcode};
use rdma::transport::Rc;
use rdma::{
    Buffer, CompletionChannel, CompletionQueue, Context, ExposedRegion, ExposedSlice, Poller, ProtectionDomain,
    QueuePair, RemoteAccess, RemoteSlice, WcStatus,
};

use super::wire::MESSAGE;
use crate::{Failure, wait};
use rdma_collectives::connect::{End, Receives};

/// Number of posted receives: one message is in flight at a time, and a second receive makes a
/// peer's surplus message visible.
const RECEIVES: u32 = 2;
/// Send queue depth: space for a message and the data transfer before it.
const SENDS: u32 = 4;
/// Time to wait, after the queue was flushed, for the event that the peer has disconnected.
const FAREWELL: Duration = Duration::from_secs(2);

/// The token of a nudge's request.
const NUDGE: u64 = 1;

/// Work-around for iWARP, used if nothing arrives at first.
///
/// Linux's siw (6.1 to 6.18) does not read a message that arrives during accept until more bytes
/// arrive.
#[derive(Debug)]
pub(super) enum Nudge {
    /// A write of no bytes by the side that connected, repeated each second, since this side cannot
    /// know when the other side has accepted.
    Write,
    /// A read of no bytes into this slice by the side that accepted; the response wakes the
    /// connection. It is posted once, after the other side has had time to become ready for a
    /// request.
    Read(ExposedSlice),
}

impl Nudge {
    /// Returns the nudge with the time at which it is due.
    fn planned(self) -> (Self, Instant) {
        let seconds = if matches!(self, Self::Write) { 1 } else { 3 };
        (self, Instant::now() + Duration::from_secs(seconds))
    }
}

/// An event of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A message came.
    Message([u8; MESSAGE]),
    /// A read or a write has completed.
    Data,
    /// The peer has disconnected, or is gone.
    Gone,
}

/// One side of a connection.
#[derive(Debug)]
pub(super) struct Session {
    /// The queue pair.
    pub(super) qp: QueuePair<Rc>,
    connection: Connection,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    channel: CompletionChannel,
    poller: Poller,
    spare: Vec<Buffer>,
    arrivals: VecDeque<Arrival>,
    patience: Duration,
    /// Name of the other side in messages.
    peer: &'static str,
    flushed: bool,
    gone: bool,
    /// Whether a message has come.
    heard: bool,
    /// The nudge to post if nothing has arrived by this time.
    nudge: Option<(Nudge, Instant)>,
}

impl Session {
    /// Creates a queue pair with receives and connects it. `peer` names the other side in messages.
    pub(super) fn open(
        context: &Context,
        end: End,
        peer: &'static str,
        (options, patience): (&ConnOptions, Duration),
    ) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let channel = context.create_completion_channel()?;
        let cq = context.cq_builder(SENDS + RECEIVES).channel(&channel).build()?;
        let qp = QueuePair::<Rc>::builder(&pd).cq(&cq).max_send_wr(SENDS).max_recv_wr(RECEIVES).build()?;
        let mut buffers = pd.allocate((SENDS + RECEIVES) as usize * MESSAGE)?;
        let rooms = (0..RECEIVES).map(|_| Some(buffers.split_to(MESSAGE))).collect();
        let spare = (0..SENDS).map(|_| buffers.split_to(MESSAGE)).collect();
        let access = RemoteAccess::READ | RemoteAccess::WRITE;
        let (connection, qp) = end.connect(qp, Receives { rooms, token: 0 }, access, (options, patience))?;
        Ok(Self {
            qp,
            connection,
            pd,
            poller: cq.poller(),
            cq,
            channel,
            spare,
            arrivals: VecDeque::new(),
            patience,
            peer,
            flushed: false,
            gone: false,
            heard: false,
            nudge: None,
        })
    }

    /// Allocates memory for texts.
    pub(super) fn region(&self, size: usize, access: RemoteAccess) -> Result<ExposedRegion, Failure> {
        Ok(self.pd.allocate_exposed(size, access)?)
    }

    /// Sets the nudge to post if nothing comes at first.
    pub(super) fn nudge_by(&mut self, nudge: Nudge) {
        self.nudge = Some(nudge.planned());
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: [u8; MESSAGE]) -> Result<(), Failure> {
        let deadline = Instant::now() + self.patience;
        let mut buffer = loop {
            match self.spare.pop() {
                Some(buffer) => break buffer,
                None => self.pump(deadline)?,
            }
        };
        buffer.copy_from_slice(&message);
        Ok(self.qp.post_send(op::send(buffer))?)
    }

    /// Waits for the next event.
    pub(super) fn next(&mut self) -> Result<Arrival, Failure> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(arrival) = self.arrivals.pop_front() {
                return Ok(arrival);
            }
            self.pump(deadline)?;
        }
    }

    /// Ends the connection, and waits a moment until the peer has noticed.
    pub(super) fn disconnect(self) {
        // If the peer disconnected first or is gone, there is nothing left to end.
        if self.connection.disconnect(&self.qp).is_ok() && !self.gone {
            self.connection.wait_disconnected(Some(FAREWELL)).ok();
        }
    }

    /// Handles one completion, or reports that the peer is gone; sleeps until one of the two
    /// happens.
    fn pump(&mut self, deadline: Instant) -> Result<(), Failure> {
        let mut deadline = deadline;
        loop {
            if self.take()? {
                return Ok(());
            }
            if self.gone {
                // All earlier completions have been handled by now.
                self.arrivals.push_back(Arrival::Gone);
                return Ok(());
            }
            if self.flushed {
                deadline = deadline.min(Instant::now() + FAREWELL);
            }
            self.cq.request_notify(false)?;
            // A completion that came before the CQ was armed may raise no event.
            if self.take()? {
                return Ok(());
            }
            let until = self.nudge.as_ref().map_or(deadline, |(_, at)| deadline.min(*at));
            if !wait::readable(&[self.channel.as_fd(), self.connection.as_fd()], Some(until))? {
                if until == deadline {
                    return Err(self.silence());
                }
                self.give_nudge();
            }
            while self.channel.try_next_event()?.is_some() {}
            self.gone = self.connection.wait_disconnected(Some(Duration::ZERO))?;
        }
    }

    fn give_nudge(&mut self) {
        // The rkey is arbitrary: no key is checked for zero bytes.
        let nothing = RemoteSlice::new(0, 0, 1);
        // Errors are ignored: their cause also ends the connection, which is reported elsewhere.
        match self.nudge.take() {
            Some((Nudge::Write, _)) => drop(self.qp.post_send(op::write_inline(&[], nothing).token(NUDGE))),
            Some((Nudge::Read(sink), _)) => drop(self.qp.post_send(op::read(sink, nothing).token(NUDGE))),
            None => {}
        }
    }

    fn silence(&self) -> Failure {
        let peer = self.peer;
        if self.flushed {
            return Failure::new(format!("the connection to {peer} broke, and nothing says why"));
        }
        Failure::new(format!("{peer} has been silent for {} s", self.patience.as_secs()))
    }

    /// Handles a completion, if there is one; returns whether there was one.
    fn take(&mut self) -> Result<bool, Failure> {
        let Some(mut completion) = self.poller.poll()? else { return Ok(false) };
        let (opcode, is_nudge) = (completion.opcode(), completion.token() == NUDGE);
        if let Err(error) = completion.status() {
            if error.status == WcStatus::WR_FLUSH_ERR {
                // A flush means that the connection has ended; another event reports the reason.
                self.flushed = true;
                return Ok(true);
            }
            let what = match opcode {
                _ if is_nudge => "cannot wake the connection",
                Opcode::Recv | Opcode::RecvWriteImm => "cannot receive a message",
                Opcode::Send => "cannot send a message",
                Opcode::Read => "cannot read the client's text",
                _ => "cannot write to the client",
            };
            return Err(Failure::new(format!("{what}: {error}")));
        }
        match opcode {
            Opcode::Recv => {
                let length = completion.byte_len();
                let buffer = completion.take_buffer().filter(|_| length == MESSAGE);
                let wrong = || Failure::new(format!("{} sent {length} bytes; rping's messages have 16", self.peer));
                let buffer = buffer.ok_or_else(wrong)?;
                let mut message = [0; MESSAGE];
                message.copy_from_slice(&buffer);
                self.qp.post_recv(buffer, 0)?;
                (self.nudge, self.heard) = (None, true);
                self.arrivals.push_back(Arrival::Message(message));
            }
            Opcode::Write if is_nudge && !self.heard => self.nudge = Some(Nudge::Write.planned()),
            _ if is_nudge => {}
            Opcode::Send => self.spare.extend(completion.take_buffer()),
            Opcode::Read | Opcode::Write => self.arrivals.push_back(Arrival::Data),
            _ => return Err(Failure::new(format!("{} sent what is no part of rping", self.peer))),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use rdma::cm::blocking::{self, ListenOptions, Listener};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A client's side and a server's side on the software device, and memory for the server's read
    /// of no bytes.
    fn pair() -> (Session, Session, ExposedRegion) {
        let device = crate::device::DeviceOptions::named(Some("soft0".to_owned())).open();
        let context = device.unwrap().adapter.context;
        let listener: Listener =
            Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
        let options = ConnOptions::new();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
                Session::open(&context, End::Passive(request), "the client", (&options, LIMIT)).unwrap()
            });
            let route = blocking::resolve::<Rc>(&context, None, listener.local_addr(), LIMIT).unwrap();
            let client = Session::open(&context, End::Active(route), "the server", (&options, LIMIT)).unwrap();
            let server = server.join().unwrap();
            let sink = server.region(1, RemoteAccess::WRITE).unwrap();
            (client, server, sink)
        })
    }

    /// The completion of a nudge is not reported as a transfer, and the other side does not notice
    /// the nudge.
    #[test]
    fn nudges_are_no_news() {
        let (mut client, mut server, sink) = pair();
        client.nudge = Some((Nudge::Write, Instant::now()));
        server.nudge = Some((Nudge::Read(sink.slice(..0).unwrap()), Instant::now()));
        for end in [&mut client, &mut server] {
            // Returns only because a nudge completed: no other completion can come.
            end.pump(Instant::now() + LIMIT).unwrap();
            assert!(end.arrivals.is_empty());
        }
        assert!(matches!(client.nudge, Some((Nudge::Write, _))), "a client nudges until it hears something");
        assert!(server.nudge.is_none(), "a server nudges once");
        // The connection still works.
        for turn in 0..3 {
            client.send([turn; MESSAGE]).unwrap();
            assert_eq!(server.next().unwrap(), Arrival::Message([turn; MESSAGE]));
            server.send([!turn; MESSAGE]).unwrap();
            assert_eq!(client.next().unwrap(), Arrival::Message([!turn; MESSAGE]));
        }
        assert!(client.nudge.is_none());
    }
}
