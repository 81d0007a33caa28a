//! The first exchange of a connection: who are you, and do we agree?

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::Roles;
use super::frame::{Frame, Head, Hello, VERSION, read_head, write_head};
use crate::{Failure, launcher};

/// How long a connection may take to say who it is.
const HELLO_TIME: Duration = Duration::from_secs(2);
/// Connections that may be about to say it at a time; further ones wait.
const MOST_UNHEARD: usize = 64;

/// Rank 0: waits until every other rank has come.
pub(super) fn gather(
    listener: &TcpListener,
    own: &Hello,
    roles: Roles,
    timeout: Duration,
) -> Result<Vec<(usize, TcpStream)>, Failure> {
    let deadline = Instant::now() + timeout;
    let mut ranks: Vec<Option<TcpStream>> = (0..own.world).map(|_| None).collect();
    let (heard, hearing) = channel();
    let mut unheard = 0;
    listener.set_nonblocking(true)?;
    while ranks[1..].iter().any(Option::is_none) {
        // Each may take its time, and none shall take that of the others.
        let accepted = if unheard < MOST_UNHEARD { listener.accept() } else { Err(io::ErrorKind::WouldBlock.into()) };
        match accepted {
            Ok((stream, from)) => {
                let heard = heard.clone();
                let listen = move || drop(heard.send(Caller::hear(stream, from)));
                std::thread::Builder::new().name("greeting".into()).stack_size(128 << 10).spawn(listen)?;
                unheard += 1;
                continue;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(Failure::from(error).context("cannot accept a rank's connection")),
        }
        if let Ok(Caller { mut stream, from, hello }) = hearing.recv_timeout(Duration::from_millis(1)) {
            unheard -= 1;
            match hello.and_then(|hello| admit(&mut stream, &hello, own, &ranks)) {
                Ok(rank) => ranks[rank] = Some(stream),
                Err(Rejected::Stranger(what)) => {
                    drop(writeln!(io::stderr(), "{}: ignored a connection from {from}: {what}", own.program));
                }
                Err(Rejected::Rank(why)) => {
                    refuse(&mut stream, &why);
                    for other in ranks.iter_mut().flatten() {
                        refuse(other, &why);
                    }
                    return Err(Failure::new(why));
                }
            }
        }
        if Instant::now() >= deadline {
            for _ in 0..unheard {
                // It may be the one that is missing.
                drop(writeln!(io::stderr(), "{}: a connection has come, and it does not say who it is", own.program));
            }
            let missing: Vec<String> =
                (1..ranks.len()).filter(|&r| ranks[r].is_none()).map(|r| r.to_string()).collect();
            let (missing, seconds) = ((roles.missing)(&missing, own.world), timeout.as_secs());
            return Err(Failure::new(format!("{missing} within {seconds} s; {}", roles.remedy)));
        }
    }
    let mut streams = Vec::new();
    for (rank, stream) in ranks.into_iter().enumerate() {
        if let Some(mut stream) = stream {
            // Not `?`: a closed connection is not the closed pipe of a reader that had enough.
            let welcomed = write_head(&mut stream).and_then(|()| Frame::Welcome.write(&mut stream));
            welcomed.map_err(|_| lost(format!("rank {rank} left before the job began; its message says why")))?;
            streams.push((rank, stream));
        }
    }
    Ok(streams)
}

/// The end of another rank. Its launcher tells of that; without one, this is the place.
pub(crate) fn lost(why: String) -> Failure {
    if launcher::is_launched() { Failure::peer(why) } else { Failure::new(why) }
}

/// A connection that has to say everything until a deadline, however slowly it does.
pub(crate) struct Until<'a>(pub(crate) &'a TcpStream, pub(crate) Instant);

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        self.0.read(bytes)
    }
}

/// Why a connection does not become a rank.
enum Rejected {
    /// It is none of ours: go on waiting.
    Stranger(String),
    /// It is one of ours and does not fit: the job cannot start.
    Rank(String),
}

/// Who has connected, and what it says of itself.
struct Caller {
    stream: TcpStream,
    from: SocketAddr,
    hello: Result<Hello, Rejected>,
}

impl Caller {
    fn hear(stream: TcpStream, from: SocketAddr) -> Self {
        let hello = hear(&stream);
        Self { stream, from, hello }
    }
}

fn hear(stream: &TcpStream) -> Result<Hello, Rejected> {
    let stranger = |error: io::Error| {
        Rejected::Stranger(match error.kind() {
            io::ErrorKind::UnexpectedEof => "it left before it had said who it is".to_owned(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not say who it is".to_owned(),
            _ => error.to_string(),
        })
    };
    stream.set_nonblocking(false).map_err(stranger)?;
    stream.set_nodelay(true).map_err(stranger)?;
    stream.set_write_timeout(Some(HELLO_TIME)).map_err(stranger)?;
    let mut input = Until(stream, Instant::now() + HELLO_TIME);
    match read_head(&mut input).map_err(stranger)? {
        Head::Ours => {}
        Head::Foreign => return Err(Rejected::Stranger("it does not speak our protocol".to_owned())),
        Head::OtherVersion(other) => {
            return Err(Rejected::Rank(format!(
                "a rank speaks version {other} of the protocol and this one {VERSION}; run the same build everywhere"
            )));
        }
    }
    Hello::read(&mut input).map_err(stranger)
}

/// The rank that a connection becomes.
fn admit(stream: &mut TcpStream, peer: &Hello, own: &Hello, ranks: &[Option<TcpStream>]) -> Result<usize, Rejected> {
    if peer.job != own.job {
        refuse(stream, "this rank belongs to another job; give each job an address of its own (--root)");
        return Err(Rejected::Stranger("it belongs to another job".to_owned()));
    }
    let rank = peer.rank as usize;
    let problem = if peer.program != own.program {
        Some(format!("rank 0 runs {} and another rank {}; run the same program everywhere", own.program, peer.program))
    } else if peer.world != own.world {
        Some(format!("rank 0 expects {} ranks and rank {rank} {}; give all the same --world", own.world, peer.world))
    } else if peer.settings != own.settings {
        Some(format!(
            "rank 0 has the settings {:?} and rank {rank} {:?}; give all the same options",
            own.settings, peer.settings
        ))
    } else if rank >= ranks.len() {
        Some(format!("there is no rank {rank} among {}; ranks count from 0", own.world))
    } else if rank == 0 || ranks[rank].is_some() {
        Some(format!("there are two of rank {rank}; give each its own --rank"))
    } else {
        None
    };
    problem.map_or(Ok(rank), |why| Err(Rejected::Rank(why)))
}

fn refuse(stream: &mut TcpStream, why: &str) {
    // It may have gone already, and then has nothing to hear.
    drop(write_head(stream).and_then(|()| Frame::Refuse(why.to_owned()).write(stream)));
}

/// The other ranks: finds rank 0, which may start later, and waits until it has found everybody.
pub(super) fn join(address: &str, own: &Hello, roles: Roles, timeout: Duration) -> Result<TcpStream, Failure> {
    let root = roles.root;
    let mut stream = connect(address, root, timeout)?;
    // Rank 0 may have started waiting when we did, and answers when the last rank has come.
    stream.set_read_timeout(Some(timeout + HELLO_TIME))?;
    stream.set_write_timeout(Some(HELLO_TIME))?;
    stream.set_nodelay(true)?;
    let foreign = || Failure::new(format!("what listens at {address} is not {root} of {}", own.program));
    let broken = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Failure::new(format!("{root} at {address} does not answer; do all processes of the job run?"))
        }
        io::ErrorKind::InvalidData => foreign(),
        _ => lost(format!("{root} at {address} closed the connection before the job began; its message says why")),
    };
    write_head(&mut stream).and_then(|()| own.write(&mut stream)).map_err(broken)?;
    match read_head(&mut stream).map_err(broken)? {
        Head::Ours => {}
        Head::Foreign => return Err(foreign()),
        Head::OtherVersion(other) => {
            return Err(Failure::new(format!(
                "{root} speaks version {other} of the protocol and this one {VERSION}; run the same build everywhere"
            )));
        }
    }
    match Frame::read(&mut stream).map_err(broken)? {
        Frame::Welcome => Ok(stream),
        Frame::Refuse(why) => Err(Failure::new(format!("{root} refused: {why}"))),
        _ => Err(foreign()),
    }
}

/// Connects to `root`, what listens at the address, which may start later.
pub(crate) fn connect(address: &str, root: &str, timeout: Duration) -> Result<TcpStream, Failure> {
    let deadline = Instant::now() + timeout;
    let resolved: Vec<SocketAddr> = address
        .to_socket_addrs()
        .map_err(|error| Failure::new(format!("cannot resolve {address}: {error}; give host:port")))?
        .collect();
    loop {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for target in &resolved {
            match TcpStream::connect_timeout(target, Duration::from_secs(1)) {
                // A loopback connect to a free ephemeral port can meet itself.
                Ok(stream) if stream.local_addr().ok() != stream.peer_addr().ok() => return Ok(stream),
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
