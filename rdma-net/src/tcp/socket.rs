//! One socket of the TCP exchange: the steps of a handshake, and the end of a connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use rdma::cm::{Accepted, ConnectionParameters, EventKind, IdKey, PrivateData, RejectReason, Rejection};
use rdma::{Endpoint, Error, ErrorKind, Verb};

use super::wire::{self, Kind, MAX_FRAME};
use crate::protocol::{Refuse, RefuseCode};

/// A connected socket and its place in the handshake.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    step: Step,
    /// Bytes of the peer that are no whole frame yet: at most one frame.
    received: Vec<u8>,
}

/// The event for which a socket waits.
#[derive(Debug)]
enum Step {
    /// The TCP connection, to send this REQUEST.
    Connection(Vec<u8>),
    /// The peer's ANSWER.
    Answer,
    /// The REQUEST of a peer of this listener.
    Request(IdKey),
    /// The program, to accept or to refuse.
    Program,
    /// The peer's READY.
    Ready,
    /// The end of the connection.
    End,
    /// Nothing: the end was reported.
    Nothing,
}

/// A change that concerns others than the socket.
#[derive(Debug)]
pub(super) enum Change {
    /// A valid REQUEST has come.
    Request(Endpoint, PrivateData),
    Event(EventKind),
}

impl Socket {
    /// A socket that is being connected.
    pub(super) fn connecting(stream: TcpStream, body: &[u8]) -> Self {
        Self::new(stream, Step::Connection(wire::encode(Kind::Request, body)))
    }

    /// A socket that a listener has accepted.
    pub(super) fn accepted(stream: TcpStream, listener: IdKey) -> Self {
        Self::new(stream, Step::Request(listener))
    }

    fn new(stream: TcpStream, step: Step) -> Self {
        Self { stream, step, received: Vec::new() }
    }

    /// The listener of a socket whose REQUEST has not come.
    pub(super) fn half_open_at(&self) -> Option<IdKey> {
        if let Step::Request(listener) = self.step { Some(listener) } else { None }
    }

    /// Whether the end of the connection was reported.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.step, Step::Nothing)
    }

    /// Local address and address of the peer.
    pub(super) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        (self.stream.local_addr().ok(), self.stream.peer_addr().ok())
    }

    /// Sends a frame of this side, and waits for what must follow.
    pub(super) fn send(&mut self, kind: Kind, body: &[u8]) -> rdma::Result<()> {
        let gone = disconnected(Verb::Establish);
        if self.is_over() {
            return Err(gone);
        }
        self.write(&wire::encode(kind, body)).map_err(|_| gone)?;
        self.step = match kind {
            Kind::Request => Step::Answer,
            Kind::Answer => Step::Ready,
            Kind::Ready => Step::End,
            Kind::Refuse => Step::Nothing,
        };
        Ok(())
    }

    /// Writes a whole frame: the buffer of a socket that has sent little has space for it.
    fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        let len = (&self.stream).write(frame)?;
        if len == frame.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Refuses a request that the program has dropped.
    pub(super) fn close(mut self) {
        if matches!(self.step, Step::Program) {
            let refuse = Refuse::new(RefuseCode::Application, "");
            let _gone = self.send(Kind::Refuse, &refuse.to_bytes());
        }
    }

    /// Takes the next frame or the end of the connection. Call it until it returns `None`.
    pub(super) fn advance(&mut self) -> Option<Change> {
        if self.is_over() {
            return None;
        }
        if let Step::Connection(request) = &mut self.step {
            let request = std::mem::take(request);
            match self.write(&request) {
                // A peer that has closed may have said why.
                Err(error) if !is_reset(&error) => return self.not_connected(request, &error),
                Ok(()) | Err(_) => self.step = Step::Answer,
            }
        }
        let is_open = self.fill();
        match wire::decode(&self.received) {
            Ok(Some((kind, len))) => {
                let frame: Vec<_> = self.received.drain(..len).collect();
                Some(self.handle(kind, wire::body(&frame)))
            }
            Ok(None) if is_open => None,
            Ok(None) => Some(self.end(EventKind::Disconnected)),
            Err(refuse) => Some(self.refuse(&refuse)),
        }
    }

    fn not_connected(&mut self, request: Vec<u8>, error: &io::Error) -> Option<Change> {
        if error.kind() == io::ErrorKind::WouldBlock {
            self.step = Step::Connection(request);
            return None;
        }
        Some(self.end(EventKind::ConnectError(connect_error(error))))
    }

    /// Reads what has come, up to one frame. Returns false at the end of the connection.
    fn fill(&mut self) -> bool {
        let mut bytes = [0; MAX_FRAME];
        loop {
            let room = MAX_FRAME - self.received.len();
            match (&self.stream).read(&mut bytes[..room]) {
                Ok(0) => return room == 0,
                Ok(len) => self.received.extend(&bytes[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    fn handle(&mut self, kind: Kind, body: &[u8]) -> Change {
        match (&self.step, kind) {
            (Step::Request(_), Kind::Request) => match wire::split_offer(body) {
                Ok((endpoint, hello)) => {
                    self.step = Step::Program;
                    Change::Request(endpoint, hello.into())
                }
                Err(refuse) => self.refuse(&refuse),
            },
            (Step::Answer, Kind::Answer) => {
                self.step = Step::End;
                Change::Event(EventKind::ConnectResponse(accepted(body)))
            }
            (Step::Answer, Kind::Refuse) => self.end(rejected(body)),
            (Step::Ready, Kind::Ready) => {
                self.step = Step::End;
                Change::Event(EventKind::Established(Accepted::default()))
            }
            _ => self.refuse(&Refuse::new(RefuseCode::Limits, "the frame is not the next of the exchange")),
        }
    }

    /// Ends a handshake for which the peer's bytes are wrong. A connection just ends.
    fn refuse(&mut self, refuse: &Refuse) -> Change {
        let bytes = refuse.to_bytes();
        let event = match self.step {
            Step::Answer => rejected(&bytes),
            _ => EventKind::Disconnected,
        };
        if let Step::Request(_) = self.step {
            let _gone = self.write(&wire::encode(Kind::Refuse, &bytes));
        }
        self.end(event)
    }

    fn end(&mut self, event: EventKind) -> Change {
        self.step = Step::Nothing;
        Change::Event(event)
    }
}

fn accepted(body: &[u8]) -> Accepted {
    Accepted::new(body.into(), ConnectionParameters::default())
}

fn rejected(refuse: &[u8]) -> EventKind {
    EventKind::Rejected(Rejection::new(RejectReason::CONSUMER, refuse.into()))
}

/// The error of a TCP connection that was not made.
pub(super) fn connect_error(error: &io::Error) -> Error {
    let other = Error::from_io(Verb::ConnectTcp, error);
    match error.kind() {
        io::ErrorKind::ConnectionRefused => other.with_kind(ErrorKind::NotListening),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => other.with_kind(ErrorKind::NoRoute),
        io::ErrorKind::TimedOut => other.with_kind(ErrorKind::Timeout),
        _ if is_reset(error) => other.with_kind(ErrorKind::Disconnected),
        _ => other,
    }
}

/// Whether an error says that the peer has closed the connection.
fn is_reset(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted
    )
}

pub(super) fn disconnected(operation: Verb) -> Error {
    Error::new(operation, ErrorKind::Disconnected)
}
