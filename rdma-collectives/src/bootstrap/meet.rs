//! The first exchange of a connection: rank 0 admits ranks that agree with it, and tells the others
//! why it refuses them.
//!
//! Rank 0 judges no connection that does not name its job: whatever a stranger sends, the meeting
//! goes on without it. A connection that names the job is one of its processes, so the job ends if
//! it does not fit. The number of the job is no proof of that: who listens at rank 0's address, or
//! reads the network, learns it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};

use super::frame::{self, Frame, Head, Hello, Loss, MAX_HELLO, VERSION};
use super::host::HostId;
use super::listen::local_address;
use super::terms::{Terms, difference};
use super::{is_timeout, spawn};
use crate::Error;
use crate::cause::Cause;
use crate::text::PeerText;

/// Longest time that a connection may take to introduce itself.
const HELLO_TIME: Duration = Duration::from_secs(2);
/// Time after which the kernel gives up a peer whose host no longer answers.
const GONE: Duration = Duration::from_secs(12);
/// Most accepted connections that have not yet introduced themselves; further connections wait.
const MOST_UNHEARD: usize = 64;
/// Most connections of strangers that are reported.
const MOST_REPORTED: u32 = 16;
/// Pause between two looks for ranks that have ended before the job began.
const LOOK: Duration = Duration::from_millis(100);
/// Longest time of one attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(1);

/// The hosts of all ranks, and the connections: rank 0 has one to each other rank, the others have
/// one to rank 0.
pub(super) type Met = (Vec<HostId>, Vec<(usize, Socket)>);

/// Rank 0's half of the meeting: waits until every other rank has come.
///
/// Calls `over` once no rank can be admitted any more, before any rank learns of that.
pub(super) fn gather(
    listener: &Socket,
    job: u64,
    own: &Hello,
    terms: &Terms,
    over: impl FnOnce(),
) -> Result<Met, Error> {
    let mut ranks: Vec<Option<(Socket, HostId)>> = (0..own.world).map(|_| None).collect();
    let waited = wait_for_all(listener, job, own, terms, &mut ranks);
    over();
    // The others are told why the job does not begin.
    match waited {
        Ok(()) => {}
        Err(Ended::Rank(lost)) => {
            let what = "ended before the job began";
            answer_all(job, &ranks, &Frame::Lost(lost, Loss::new(what, Cause::Ended)));
            let error = terms.lost(format!("{} {what}", terms.roles.name(lost)), Cause::Ended);
            return Err(error.of_rank(lost, || None));
        }
        Err(Ended::Failed(failure)) => {
            answer_all(job, &ranks, &Frame::Refuse(failure.to_string().into()));
            return Err(failure);
        }
    }
    let host_of = |rank: &Option<(Socket, HostId)>| rank.as_ref().map_or(&own.host, |(_, host)| host).clone();
    let hosts: Vec<HostId> = ranks.iter().map(host_of).collect();
    // A rank that has ended meanwhile is lost as later ones are: its reader tells all ranks.
    answer_all(job, &ranks, &Frame::Welcome(hosts.clone()));
    let streams = ranks.into_iter().enumerate().filter_map(|(rank, found)| Some((rank, found?.0)));
    Ok((hosts, streams.collect()))
}

/// The reason why a job does not begin.
enum Ended {
    /// A rank that had come has ended.
    Rank(usize),
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Ended {
    fn from(failure: E) -> Self {
        Self::Failed(failure.into())
    }
}

/// Admits ranks until all have come.
fn wait_for_all(
    listener: &Socket,
    job: u64,
    own: &Hello,
    terms: &Terms,
    ranks: &mut [Option<(Socket, HostId)>],
) -> Result<(), Ended> {
    let deadline = Instant::now() + terms.timeout;
    let (heard, hearing) = channel();
    let foreign: Arc<str> = format!("this rank belongs to another job; {}", terms.distinction()).into();
    let (mut unheard, mut reported, mut looked) = (0, 0, Instant::now());
    listener.set_nonblocking(true)?;
    while ranks[1..].iter().any(Option::is_none) {
        // Each connection is read in a thread of its own: a slow introduction must not delay the
        // others.
        let accepted = if unheard < MOST_UNHEARD { listener.accept() } else { Err(io::ErrorKind::WouldBlock.into()) };
        match accepted {
            Ok((stream, from)) => {
                let (heard, foreign) = (heard.clone(), Arc::clone(&foreign));
                spawn("greeting", move || {
                    let hello = hear(&stream, job, &foreign);
                    drop(heard.send((stream, from, hello)));
                })?;
                unheard += 1;
                continue;
            }
            Err(error) if is_timeout(&error) => {}
            // A stranger may leave before it is accepted.
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
            Err(error) => return Err(Error::from(error).context("cannot accept a rank's connection").into()),
        }
        if let Ok((stream, from, hello)) = hearing.recv_timeout(Duration::from_millis(1)) {
            unheard -= 1;
            match hello.and_then(|hello| admit(hello, own, ranks, terms)) {
                Ok((rank, host)) => ranks[rank] = Some((stream, host)),
                Err(Rejected::Stranger(what)) if reported < MOST_REPORTED => {
                    reported += 1;
                    let from = from.as_socket().map_or_else(|| "this host".to_owned(), |from| from.to_string());
                    let last = if reported == MOST_REPORTED { "; more are not reported" } else { "" };
                    (terms.notice)(&format!("{}: ignored a connection from {from}: {what}{last}", own.program));
                }
                Err(Rejected::Stranger(_)) => {}
                Err(Rejected::Rank(why)) => {
                    answer(&stream, job, &Frame::Refuse(why.clone()), own.world);
                    return Err(Error::new(why.to_string()).into());
                }
            }
        }
        if looked.elapsed() >= LOOK {
            look_for_ended(ranks)?;
            looked = Instant::now();
        }
        if Instant::now() >= deadline {
            if unheard > 0 {
                // A missing rank may be among these connections.
                (terms.notice)(&format!(
                    "{}: {unheard} connections have come and not introduced themselves",
                    own.program
                ));
            }
            let missing: Vec<usize> = (1..ranks.len()).filter(|&rank| ranks[rank].is_none()).collect();
            let names = terms.roles.missing(&missing, own.world);
            let (seconds, remedy) = (terms.timeout.as_secs(), terms.remedy());
            let error = Error::new(format!("{names} within {seconds} s; {remedy}"));
            let error = error.with_cause(Cause::TimedOut { limit: terms.timeout });
            return Err(if let [rank] = missing[..] { error.of_rank(rank, || None) } else { error }.into());
        }
    }
    look_for_ended(ranks)
}

/// Fails if a rank that has come has ended.
fn look_for_ended(ranks: &[Option<(Socket, HostId)>]) -> Result<(), Ended> {
    let has_ended = |rank: &Option<(Socket, HostId)>| rank.as_ref().is_some_and(|(stream, _)| is_closed(stream));
    ranks.iter().position(has_ended).map_or(Ok(()), |rank| Err(Ended::Rank(rank)))
}

/// Whether the other side of a connection has been closed.
fn is_closed(stream: &Socket) -> bool {
    match recv(stream.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
        Ok(read) => read == 0,
        Err(Errno::EAGAIN | Errno::EINTR) => false,
        Err(_) => true,
    }
}

/// Answers all ranks that have come.
fn answer_all(job: u64, ranks: &[Option<(Socket, HostId)>], frame: &Frame) {
    let world = ranks.len();
    for (stream, _) in ranks.iter().flatten() {
        answer(stream, job, frame, world);
    }
}

/// Answers an introduction. The head repeats the job that the peer has named, not that of this
/// rank, which a stranger does not know.
fn answer(stream: &Socket, job: u64, frame: &Frame, world: usize) {
    let mut out = Until(stream, Instant::now() + HELLO_TIME);
    // Errors are ignored: the peer may have gone already.
    drop(Head::of(job).write(&mut out).and_then(|()| frame.write(&mut out, frame::max_length(world))));
}

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

/// The reason why a connection does not become a rank.
enum Rejected {
    /// The connection is not of this job, so the wait goes on.
    Stranger(String),
    /// The connection is of this job and does not fit, so the job cannot start.
    Rank(PeerText),
}

/// Reads the introduction of a connection, before which a rank may ask whether this is rank 0 of
/// its job.
fn hear(stream: &Socket, job: u64, foreign: &str) -> Result<Hello, Rejected> {
    let prepared = stream.set_nonblocking(false).and_then(|()| prepare(stream));
    prepared.map_err(|error| stranger(&error))?;
    let mut frame = first_frame(stream, job, foreign)?;
    if frame == Frame::Probe {
        answer(stream, job, &Frame::Present, 1);
        frame = first_frame(stream, job, foreign)?;
    }
    match frame {
        Frame::Hello(hello) => Ok(hello),
        _ => Err(Rejected::Stranger("it does not introduce itself".to_owned())),
    }
}

/// Reads a head and a frame. Whatever the peer sends before it has named the job makes it a
/// stranger. A rank of another job is told that it is `foreign`.
fn first_frame(stream: &Socket, job: u64, foreign: &str) -> Result<Frame, Rejected> {
    let mut input = Until(stream, Instant::now() + HELLO_TIME);
    match Head::read(&mut input).map_err(|error| stranger(&error))? {
        None => return Err(Rejected::Stranger("it speaks another protocol".to_owned())),
        Some(head) if head.job != job => {
            answer(stream, head.job, &Frame::Refuse(foreign.into()), 1);
            return Err(Rejected::Stranger("it belongs to another job".to_owned()));
        }
        Some(Head { version: VERSION, .. }) => {}
        Some(Head { version, .. }) => return Err(Rejected::Rank(other_version("a rank", version).into())),
    }
    Frame::read(&mut input, MAX_HELLO).map_err(|error| stranger(&error))
}

fn stranger(error: &io::Error) -> Rejected {
    Rejected::Stranger(match error.kind() {
        io::ErrorKind::UnexpectedEof => "it left before it had introduced itself".to_owned(),
        _ if is_timeout(error) => "it does not introduce itself".to_owned(),
        _ => error.to_string(),
    })
}

pub(super) fn other_version(name: &str, other: u32) -> String {
    format!("{name} speaks version {other} of the protocol and this one {VERSION}; run the same build everywhere")
}

/// Sets the options of every connection between ranks: no delay, and an end if the peer's host is
/// gone. The kernel's probes work even before the ranks exchange heartbeat frames.
fn prepare(stream: &Socket) -> io::Result<()> {
    // Unix sockets have none of these options; the kernel reports the end of their peer anyway.
    stream.set_tcp_nodelay(true).ok();
    let probes = TcpKeepalive::new().with_time(GONE / 3).with_interval(GONE / 6).with_retries(4);
    stream.set_tcp_keepalive(&probes).ok();
    stream.set_tcp_user_timeout(Some(GONE)).ok();
    Ok(())
}

/// Checks an introduction; returns the number and the host of the rank that the connection becomes.
fn admit(
    peer: Hello,
    own: &Hello,
    ranks: &[Option<(Socket, HostId)>],
    terms: &Terms,
) -> Result<(usize, HostId), Rejected> {
    let (rank, roles) = (peer.rank, terms.roles);
    let problem = if peer.program != own.program {
        Some(format!("rank 0 runs {} and another rank {}; run the same program everywhere", own.program, peer.program))
    } else if peer.world != own.world {
        let world = terms.named("world");
        Some(format!("rank 0 expects {} ranks and rank {rank} {}; give all the same {world}", own.world, peer.world))
    } else if let Some((name, ours, theirs)) = difference(&own.settings, &peer.settings) {
        let (here, there) = (roles.name(0), roles.name(rank));
        let name = terms.named(&name);
        Some(format!("{name} is {ours} at {here} and {theirs} at {there}; give all the same options"))
    } else if rank >= ranks.len() {
        Some(format!("there is no rank {rank} among {}; ranks count from 0", own.world))
    } else if rank == 0 || ranks[rank].is_some() {
        Some(format!("there are two of rank {rank}; give each its own {}", terms.named("rank")))
    } else {
        None
    };
    problem.map_or(Ok((rank, peer.host)), |why| Err(Rejected::Rank(why.into())))
}

/// The other ranks' half of the meeting: finds rank 0, which may start later, and waits until rank
/// 0 has found every rank.
pub(super) fn join(address: &str, job: u64, own: &Hello, terms: &Terms) -> Result<Met, Error> {
    let stream = connect(address, &terms.roles.name(0), terms.timeout).map_err(|error| error.of_rank(0, || None))?;
    prepare(&stream)?;
    introduce(stream, address, job, own, terms)
}

/// Introduces this rank to rank 0, which listens at the address, and waits until rank 0 has found
/// every rank.
pub(super) fn introduce(stream: Socket, address: &str, job: u64, own: &Hello, terms: &Terms) -> Result<Met, Error> {
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
    let mut out = Until(&stream, Instant::now() + HELLO_TIME);
    let sent = Head::of(job).write(&mut out).and_then(|()| Frame::Hello(own.clone()).write(&mut out, MAX_HELLO));
    sent.map_err(broken)?;
    // Rank 0 answers when the last rank has come, and may have started its own wait when this rank
    // did.
    let mut input = Until(&stream, Instant::now() + terms.timeout + HELLO_TIME);
    match Head::read(&mut input).map_err(broken)? {
        None => return Err(foreign()),
        Some(Head { version: VERSION, .. }) => {}
        Some(Head { version, .. }) => {
            return Err(Error::new(other_version(&root, version)).with_cause(Cause::Protocol));
        }
    }
    match Frame::read(&mut input, frame::max_length(own.world)).map_err(broken)? {
        Frame::Welcome(hosts) if hosts.len() == own.world => Ok((hosts, vec![(0, stream)])),
        // Rank 0 reports the reason itself.
        Frame::Refuse(why) => Err(terms.lost(format!("{root} says: {why}"), Cause::Other)),
        Frame::Lost(rank, Loss { what, cause }) if rank < own.world => {
            Err(terms.lost(format!("{} {what}", terms.roles.name(rank)), cause).of_rank(rank, || None))
        }
        _ => Err(foreign()),
    }
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
        Frame::Refuse(why) => Err(why),
        _ => Err(other()),
    }
}

/// Connects to `root`, which listens at the address or will do so soon.
///
/// # Errors
/// If the address does not resolve, or nobody answers in time.
pub fn connect(address: &str, root: &str, timeout: Duration) -> Result<Socket, Error> {
    let deadline = Instant::now() + timeout;
    let targets: Vec<SockAddr> = if address.starts_with('@') {
        vec![local_address(address)?]
    } else {
        let found = address.to_socket_addrs();
        let found = found.map_err(|error| Error::new(format!("cannot resolve {address}: {error}; give host:port")));
        found?.map(SockAddr::from).collect()
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
            let seconds = timeout.as_secs();
            return Err(Error::new(format!(
                "cannot reach {root} at {address} within {seconds} s: {last}; is it running?"
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
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
