//! The first exchange of a connection: rank 0 admits ranks that agree with it, and tells the others
//! why it refuses them.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};

use super::frame::{self, Frame, Head, Hello, VERSION, read_head, write_head};
use super::host::HostId;
use super::terms::{Roles, Terms, difference};
use super::{is_timeout, local_address, spawn};
use crate::Failure;
use crate::failure::{is_launched, say};

/// Longest time that a connection may take to introduce itself.
const HELLO_TIME: Duration = Duration::from_secs(2);
/// Time after which the kernel gives up a peer whose host no longer answers.
const GONE: Duration = Duration::from_secs(12);
/// Most accepted connections that have not yet introduced themselves; further connections wait.
const MOST_UNHEARD: usize = 64;

/// The hosts of all ranks, and the connections: rank 0 has one to each other rank, the others have
/// one to rank 0.
type Met = (Vec<HostId>, Vec<(usize, Socket)>);

/// Rank 0's half of the meeting: waits until every other rank has come.
pub(super) fn gather(listener: &Socket, own: &Hello, terms: &Terms) -> Result<Met, Failure> {
    let deadline = Instant::now() + terms.timeout;
    let mut ranks: Vec<Option<(Socket, HostId)>> = (0..own.world).map(|_| None).collect();
    let (heard, hearing) = channel();
    let mut unheard = 0;
    listener.set_nonblocking(true)?;
    while ranks[1..].iter().any(Option::is_none) {
        // Each connection is read in a thread of its own: a slow introduction must not delay the
        // others.
        let accepted = if unheard < MOST_UNHEARD { listener.accept() } else { Err(io::ErrorKind::WouldBlock.into()) };
        match accepted {
            Ok((stream, from)) => {
                let heard = heard.clone();
                spawn("greeting", move || {
                    let hello = hear(&stream);
                    drop(heard.send((stream, from, hello)));
                })?;
                unheard += 1;
                continue;
            }
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::from(error).context("cannot accept a rank's connection")),
        }
        if let Ok((mut stream, from, hello)) = hearing.recv_timeout(Duration::from_millis(1)) {
            unheard -= 1;
            match hello.and_then(|hello| admit(&mut stream, hello, own, &ranks, terms.roles)) {
                Ok((rank, host)) => ranks[rank] = Some((stream, host)),
                Err(Rejected::Stranger(what)) => {
                    let from = from.as_socket().map_or_else(|| "this host".to_owned(), |from| from.to_string());
                    say(&format!("{}: ignored a connection from {from}: {what}", own.program));
                }
                Err(Rejected::Rank(why)) => {
                    refuse(&mut stream, &why);
                    for (other, _) in ranks.iter_mut().flatten() {
                        refuse(other, &why);
                    }
                    return Err(Failure::new(why));
                }
            }
        }
        if Instant::now() >= deadline {
            if unheard > 0 {
                // A missing rank may be among these connections.
                say(&format!("{}: {unheard} connections have come and not introduced themselves", own.program));
            }
            let missing: Vec<usize> = (1..ranks.len()).filter(|&rank| ranks[rank].is_none()).collect();
            let missing = terms.roles.missing(&missing, own.world);
            let (seconds, remedy) = (terms.timeout.as_secs(), terms.roles.remedy());
            return Err(Failure::new(format!("{missing} within {seconds} s; {remedy}")));
        }
    }
    let host_of = |rank: &Option<(Socket, HostId)>| rank.as_ref().map_or(&own.host, |(_, host)| host).clone();
    let hosts: Vec<HostId> = ranks.iter().map(host_of).collect();
    let mut streams = Vec::new();
    for (rank, (mut stream, _)) in ranks.into_iter().enumerate().filter_map(|(rank, found)| Some((rank, found?))) {
        // Not `?`: an `EPIPE` here means that a rank left, not that the reader of our output did.
        let welcomed = write_head(&mut stream).and_then(|()| Frame::Welcome(hosts.clone()).write(&mut stream));
        let name = terms.roles.name(rank);
        welcomed.map_err(|_| lost(format!("{name} left before the job began; its message says why")))?;
        streams.push((rank, stream));
    }
    Ok((hosts, streams))
}

/// The failure for the end of another rank. Under a launcher, the launcher reports that end;
/// without one, this rank does.
pub(crate) fn lost(why: String) -> Failure {
    if is_launched() { Failure::peer(why) } else { Failure::new(why) }
}

/// Reads a connection until a deadline for the whole message, however slowly the bytes arrive.
pub(crate) struct Until<'a>(pub(crate) &'a Socket, pub(crate) Instant);

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        (&mut &*self.0).read(bytes)
    }
}

/// The reason why a connection does not become a rank.
enum Rejected {
    /// The connection is not of this job, so the wait goes on.
    Stranger(String),
    /// The connection is of this job and does not fit, so the job cannot start.
    Rank(String),
}

/// Reads the introduction of a connection.
fn hear(stream: &Socket) -> Result<Hello, Rejected> {
    let stranger = |error: io::Error| {
        Rejected::Stranger(match error.kind() {
            io::ErrorKind::UnexpectedEof => "it left before it had introduced itself".to_owned(),
            _ if is_timeout(&error) => "it does not introduce itself".to_owned(),
            _ => error.to_string(),
        })
    };
    stream.set_nonblocking(false).map_err(stranger)?;
    prepare(stream).map_err(stranger)?;
    let mut input = Until(stream, Instant::now() + HELLO_TIME);
    match read_head(&mut input).map_err(stranger)? {
        Head::Ours => {}
        Head::Foreign => return Err(Rejected::Stranger("it speaks another protocol".to_owned())),
        Head::OtherVersion(other) => return Err(Rejected::Rank(other_version("a rank", other))),
    }
    match Frame::read(&mut input, frame::MAX_HELLO).map_err(stranger)? {
        Frame::Hello(hello) => Ok(hello),
        _ => Err(Rejected::Stranger("it does not introduce itself".to_owned())),
    }
}

fn other_version(name: &str, other: u32) -> String {
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
    stream.set_write_timeout(Some(HELLO_TIME))
}

/// Checks an introduction; returns the number and the host of the rank that the connection becomes.
fn admit(
    stream: &mut Socket,
    peer: Hello,
    own: &Hello,
    ranks: &[Option<(Socket, HostId)>],
    roles: Roles,
) -> Result<(usize, HostId), Rejected> {
    if peer.job != own.job {
        refuse(stream, "this rank belongs to another job; give each job an address of its own (--root)");
        return Err(Rejected::Stranger("it belongs to another job".to_owned()));
    }
    let rank = peer.rank;
    let problem = if peer.program != own.program {
        Some(format!("rank 0 runs {} and another rank {}; run the same program everywhere", own.program, peer.program))
    } else if peer.world != own.world {
        Some(format!("rank 0 expects {} ranks and rank {rank} {}; give all the same --world", own.world, peer.world))
    } else if let Some((name, ours, theirs)) = difference(&own.settings, &peer.settings) {
        let (here, there) = (roles.name(0), roles.name(rank));
        Some(format!("{name} is {ours} at {here} and {theirs} at {there}; give all the same options"))
    } else if rank >= ranks.len() {
        Some(format!("there is no rank {rank} among {}; ranks count from 0", own.world))
    } else if rank == 0 || ranks[rank].is_some() {
        Some(format!("there are two of rank {rank}; give each its own --rank"))
    } else {
        None
    };
    problem.map_or(Ok((rank, peer.host)), |why| Err(Rejected::Rank(why)))
}

fn refuse(stream: &mut Socket, why: &str) {
    // Errors are ignored: the peer may have gone already.
    drop(write_head(stream).and_then(|()| Frame::Refuse(why.to_owned()).write(stream)));
}

/// The other ranks' half of the meeting: finds rank 0, which may start later, and waits until rank
/// 0 has found every rank.
pub(super) fn join(address: &str, own: &Hello, terms: &Terms) -> Result<Met, Failure> {
    let root = terms.roles.name(0);
    let mut stream = connect(address, &root, terms.timeout)?;
    prepare(&stream)?;
    let foreign = || Failure::new(format!("what listens at {address} is not {root} of {}", own.program));
    let broken = |error: io::Error| match error.kind() {
        _ if is_timeout(&error) => {
            Failure::new(format!("{root} at {address} does not answer; do all processes of the job run?"))
        }
        io::ErrorKind::InvalidData => foreign(),
        _ => lost(format!("{root} at {address} closed the connection before the job began; its message says why")),
    };
    write_head(&mut stream).and_then(|()| Frame::Hello(own.clone()).write(&mut stream)).map_err(broken)?;
    // Rank 0 answers when the last rank has come, and may have started its own wait when this rank
    // did.
    let mut input = Until(&stream, Instant::now() + terms.timeout + HELLO_TIME);
    match read_head(&mut input).map_err(broken)? {
        Head::Ours => {}
        Head::Foreign => return Err(foreign()),
        Head::OtherVersion(other) => return Err(Failure::new(other_version(&root, other))),
    }
    match Frame::read(&mut input, frame::MAX_LENGTH).map_err(broken)? {
        Frame::Welcome(hosts) if hosts.len() == own.world => Ok((hosts, vec![(0, stream)])),
        Frame::Refuse(why) => Err(Failure::new(format!("{root} refused: {why}"))),
        _ => Err(foreign()),
    }
}

/// Connects to `root`, which listens at the address or will do so soon.
pub(crate) fn connect(address: &str, root: &str, timeout: Duration) -> Result<Socket, Failure> {
    let deadline = Instant::now() + timeout;
    let targets: Vec<SockAddr> = if address.starts_with('@') {
        vec![local_address(address)?]
    } else {
        let found = address.to_socket_addrs();
        let found = found.map_err(|error| Failure::new(format!("cannot resolve {address}: {error}; give host:port")));
        found?.map(SockAddr::from).collect()
    };
    loop {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for target in &targets {
            match connect_once(target) {
                // A loopback connect to a free ephemeral port can connect to itself.
                Ok(stream) if target.is_unix() || own_address(&stream) != target.as_socket() => return Ok(stream),
                Ok(_) => {}
                Err(error) => last = error,
            }
        }
        if Instant::now() >= deadline {
            let seconds = timeout.as_secs();
            return Err(Failure::new(format!(
                "cannot reach {root} at {address} within {seconds} s: {last}; is it running?"
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn connect_once(target: &SockAddr) -> io::Result<Socket> {
    match target.as_socket() {
        Some(address) => TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(Socket::from),
        None => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.connect(target)?;
            Ok(socket)
        }
    }
}

fn own_address(stream: &Socket) -> Option<SocketAddr> {
    stream.local_addr().ok()?.as_socket()
}
