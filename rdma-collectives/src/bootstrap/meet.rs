//! The meeting of the ranks other than rank 0: they find it and introduce themselves. [`admit`] is
//! rank 0's half.
//!
//! [`admit`]: super::admit

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};

use super::frame::{self, Frame, Head, Hello, Loss, MAX_HELLO, VERSION};
use super::host::HostId;
use super::is_timeout;
use super::listen::local_address;
use super::terms::Terms;
use crate::Error;
use crate::cause::Cause;
use crate::text::PeerText;

/// Longest time that a connection may take to introduce itself.
pub(super) const HELLO_TIME: Duration = Duration::from_secs(2);
/// Time after which the kernel gives up a peer whose host no longer answers.
const GONE: Duration = Duration::from_secs(12);
/// Longest time of one attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Pause between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(50);
/// Pause between two questions for a name that does not resolve, which name servers answer.
const LOOK_UP_AGAIN: Duration = Duration::from_millis(500);

/// The hosts of all ranks, and the connections: rank 0 has one to each other rank, the others have
/// one to rank 0.
pub(super) type Met = (Vec<HostId>, Vec<(usize, Socket)>);

/// Reads or writes a connection until a deadline for the whole message, however slowly the bytes
/// move.
#[derive(Debug)]
pub struct Until<'a>(pub &'a Socket, pub Instant);

impl Until<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.set_read_timeout(Some(self.left()?))?;
        (&mut &*self.0).read(bytes)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.set_write_timeout(Some(self.left()?))?;
        (&mut &*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn other_version(name: &str, other: u32) -> String {
    format!("{name} speaks version {other} of the protocol and this one {VERSION}; run the same build everywhere")
}

/// Sets the options of every connection between ranks: no delay, and an end if the peer's host is
/// gone. The kernel's probes work even before the ranks exchange heartbeat frames.
pub(super) fn prepare(stream: &Socket) -> io::Result<()> {
    // Unix sockets have none of these options; the kernel reports the end of their peer anyway.
    stream.set_tcp_nodelay(true).ok();
    let probes = TcpKeepalive::new().with_time(GONE / 3).with_interval(GONE / 6).with_retries(4);
    stream.set_tcp_keepalive(&probes).ok();
    stream.set_tcp_user_timeout(Some(GONE)).ok();
    Ok(())
}

/// The other ranks' half of the meeting: finds rank 0, which may start later, and waits until rank
/// 0 has found every rank.
pub(super) fn join(address: &str, job: u64, own: &Hello, terms: &Terms) -> Result<Met, Error> {
    let (root, deadline) = (terms.roles.name(0), Instant::now() + terms.timeout);
    let mut was_sent_away = false;
    loop {
        let stream =
            connect_until(address, &root, deadline, terms.timeout).map_err(|error| error.of_rank(0, || None))?;
        prepare(&stream)?;
        if let Some(met) = introduce(stream, address, job, own, terms, was_sent_away)? {
            return Ok(met);
        }
        was_sent_away = true;
        if Instant::now() >= deadline {
            let seconds = terms.timeout.as_secs();
            let text = format!("{root} at {address} has not begun another meeting within {seconds} s");
            return Err(Error::new(text).with_cause(Cause::TimedOut { limit: terms.timeout }).of_rank(0, || None));
        }
        std::thread::sleep(AGAIN);
    }
}

/// Introduces this rank to rank 0, which listens at the address, and waits until rank 0 has found
/// every rank. Returns `None` if rank 0 is still at an earlier meeting that has failed, of which
/// this rank has been told, or has left it now that this rank `was_sent_away` from it.
pub(super) fn introduce(
    stream: Socket,
    address: &str,
    job: u64,
    own: &Hello,
    terms: &Terms,
    was_sent_away: bool,
) -> Result<Option<Met>, Error> {
    let root = terms.roles.name(0);
    let foreign = || Error::new(format!("what listens at {address} is not {root} of {}", own.program));
    let broken = |error: io::Error| match error.kind() {
        _ if is_timeout(&error) => {
            let text = format!("{root} at {address} does not answer; do all processes of the job run?");
            Error::new(text).of_rank(0, || None)
        }
        io::ErrorKind::InvalidData => foreign(),
        // The introduction is too long.
        io::ErrorKind::InvalidInput => Error::from(error),
        _ => {
            let text = format!("{root} at {address} ended before the job began, without a word");
            terms.lost(text, Cause::Ended).of_rank(0, || None)
        }
    };
    let answer = || {
        let mut out = Until(&stream, Instant::now() + HELLO_TIME);
        Head::of(job).write(&mut out)?;
        Frame::Hello(own.clone()).write(&mut out, MAX_HELLO)?;
        // Rank 0 answers when the last rank has come, and may have started its own wait when this
        // rank did.
        let mut input = Until(&stream, Instant::now() + terms.timeout + HELLO_TIME);
        let head = Head::read(&mut input)?;
        let is_ours = head.as_ref().is_some_and(|head| head.version == VERSION);
        let frame = if is_ours { Some(Frame::read(&mut input, frame::max_length(own.world))?) } else { None };
        Ok((head, frame))
    };
    let (head, frame) = match answer() {
        // Rank 0 has left the meeting that has failed.
        Err(error) if was_sent_away && is_end(&error) => return Ok(None),
        answer => answer.map_err(broken)?,
    };
    let frame = match (head, frame) {
        (_, Some(frame)) => frame,
        (Some(Head { version, .. }), None) => {
            return Err(Error::new(other_version(&root, version)).with_cause(Cause::Protocol));
        }
        (None, None) => return Err(foreign()),
    };
    match frame {
        Frame::Welcome(hosts) if hosts.len() == own.world => Ok(Some((hosts, vec![(0, stream)]))),
        Frame::Over => Ok(None),
        // Rank 0 reports the reason itself.
        Frame::Refuse(rank, Loss { what, cause }) => {
            let error = terms.lost(format!("{root} says: {what}"), cause);
            Err(match rank.filter(|&rank| rank < own.world && rank != own.rank) {
                Some(rank) => error.of_rank(rank, || None),
                None => error,
            })
        }
        Frame::Lost(rank, Loss { what, cause }) if rank < own.world => {
            Err(terms.lost(format!("{} {what}", terms.roles.name(rank)), cause).of_rank(rank, || None))
        }
        _ => Err(foreign()),
    }
}

/// Whether an error is the end of a connection.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// Connects to an address at which rank 0 of the job may listen, which has to answer within
/// `limit`; the error says what is there instead.
pub(super) fn probe(address: SocketAddr, job: u64, limit: Duration) -> Result<Socket, PeerText> {
    let other = || PeerText::from("something else listens there");
    let broken = |error: io::Error| match error.kind() {
        _ if is_timeout(&error) => "something that does not answer listens there".into(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => other(),
        _ => error.to_string().into(),
    };
    let stream = connect_once(&address.into()).map_err(|error| PeerText::from(error.to_string()))?;
    prepare(&stream).map_err(broken)?;
    let mut limited = Until(&stream, Instant::now() + limit);
    let head = Head::of(job);
    let sent = head.write(&mut limited).and_then(|()| Frame::Probe.write(&mut limited, MAX_HELLO));
    sent.map_err(broken)?;
    if Head::read(&mut limited).map_err(broken)? != Some(head) {
        return Err(other());
    }
    match Frame::read(&mut limited, MAX_HELLO).map_err(broken)? {
        Frame::Present => Ok(stream),
        Frame::Refuse(_, why) => Err(why.what),
        _ => Err(other()),
    }
}

/// Connects to `root`, which listens at the address or will do so soon. Its name, too, may be one
/// that does not resolve yet: that of a container or a pod which has not been started.
///
/// # Errors
/// If the address does not resolve, or nobody answers, in time.
pub fn connect(address: &str, root: &str, timeout: Duration) -> Result<Socket, Error> {
    connect_until(address, root, Instant::now() + timeout, timeout)
}

/// Connects as [`connect`] does, until a deadline that ends a wait of `timeout`.
fn connect_until(address: &str, root: &str, deadline: Instant, timeout: Duration) -> Result<Socket, Error> {
    let seconds = timeout.as_secs();
    let targets = if address.starts_with('@') {
        vec![local_address(address)?]
    } else {
        let look_up = || address.to_socket_addrs().map(|found| found.map(SockAddr::from).collect());
        resolve_until(look_up, deadline).map_err(|error| {
            let text = format!("cannot resolve {address} within {seconds} s: {error}; give host:port");
            Error::new(text).with_cause(Cause::TimedOut { limit: timeout })
        })?
    };
    loop {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for target in &targets {
            match connect_once(target) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        if Instant::now() >= deadline {
            return Err(Error::new(format!(
                "cannot reach {root} at {address} within {seconds} s: {last}; is it running?"
            )));
        }
        std::thread::sleep(AGAIN);
    }
}

/// Looks a name up again and again, until it has an address or the deadline has passed.
fn resolve_until<T>(mut look_up: impl FnMut() -> io::Result<Vec<T>>, deadline: Instant) -> io::Result<Vec<T>> {
    loop {
        match look_up() {
            Ok(found) if !found.is_empty() => return Ok(found),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Ok(_) if Instant::now() >= deadline => return Err(io::ErrorKind::AddrNotAvailable.into()),
            _ => std::thread::sleep(LOOK_UP_AGAIN),
        }
    }
}

fn connect_once(target: &SockAddr) -> io::Result<Socket> {
    match target.as_socket() {
        Some(address) => {
            let stream = TcpStream::connect_timeout(&address, ATTEMPT)?;
            // A loopback connect to a free ephemeral port can connect to itself.
            if stream.local_addr()? == address {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            Ok(stream.into())
        }
        None => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            // The wait for a listener whose backlog is full has this limit.
            socket.set_write_timeout(Some(ATTEMPT))?;
            socket.connect(target)?;
            Ok(socket)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_appears_is_found() {
        let mut answers = vec![Ok(vec![7]), Ok(Vec::new()), Err(io::ErrorKind::NotFound.into())];
        let far = Instant::now() + Duration::from_secs(600);
        let found = resolve_until(|| answers.pop().expect("an answer"), far).unwrap();
        assert_eq!((found, answers.len()), (vec![7], 0));
    }

    #[test]
    fn a_name_that_nobody_has_ends_the_wait() {
        let end = |answer: fn() -> io::Result<Vec<u8>>| resolve_until(answer, Instant::now()).unwrap_err().kind();
        assert_eq!(end(|| Err(io::ErrorKind::NotFound.into())), io::ErrorKind::NotFound);
        assert_eq!(end(|| Ok(Vec::new())), io::ErrorKind::AddrNotAvailable);
    }
}
