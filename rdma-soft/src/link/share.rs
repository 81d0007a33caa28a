//! The socket at which the processes of a user that chose one address listen for other hosts: all
//! of them hold a descriptor of the same socket, so a call waits in one queue, and whoever is awake
//! accepts it.
//!
//! Each process that has the socket gives it away under an abstract name of its own, of the address
//! and its slot. A newcomer asks these names in turn; the first process makes the socket. So no
//! process is in charge, and none has to be replaced when it dies or stands still.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::wire::{self, Body, Kind};
use crate::engine::Slot;
use crate::os::owner;
use crate::os::socket::{self, Socket};
use crate::os::tcp::Tcp;
use crate::os::{Error, Named, Result};

/// How long a newcomer tries: a process that has made the socket may not have its name yet.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a newcomer tries while a process of this user has the socket and does not answer.
const LONG_PATIENCE: Duration = Duration::from_secs(20);
/// How long a newcomer waits for one process, which may stand still.
const ANSWER: Duration = Duration::from_millis(200);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(5);

/// The socket, and the door at which this process gives it away.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) listener: Tcp,
    pub(crate) door: Socket,
}

fn prefix(address: SocketAddr) -> String {
    format!("rdma-soft-tcp-{address}-")
}

/// Listens at an address, together with the other processes of this user that do. `EADDRINUSE` if
/// another user or another program has the address, or if no process of this user that has it
/// answers.
pub(crate) fn join(address: SocketAddr) -> Result<Tcp> {
    let prefix = prefix(address);
    let begun = Instant::now();
    loop {
        let mut patience = PATIENCE;
        for name in socket::names(&prefix).named("read of /proc/self/net/unix")? {
            match ask(&name, address) {
                Err(Error { errno: Errno::EAGAIN, .. }) => patience = LONG_PATIENCE,
                Err(_) => {}
                listener => return listener,
            }
        }
        match Tcp::listen(address) {
            Err(Error { errno: Errno::EADDRINUSE, .. }) if begun.elapsed() < patience => thread::sleep(PAUSE),
            listener => return listener,
        }
    }
}

/// A sentence about the process that keeps this one from an address, and about what helps.
pub(crate) fn in_use(address: SocketAddr) -> String {
    let owner = owner::of_listener(address);
    format!("{owner} listens there and does not share it: choose another port on all hosts, or end it if it hangs")
}

/// Asks the process behind a name for the socket; `EAGAIN` if it does not answer.
fn ask(name: &str, address: SocketAddr) -> Result<Tcp> {
    let refused = Error { call: "the check of a shared socket", errno: Errno::EPERM };
    let door = Socket::new()?;
    door.connect(name)?;
    // Another user may bind such a name, and could read the calls to a socket of its own.
    if !door.peer()?.is_own_user() {
        return Err(refused);
    }
    door.wait_readable(ANSWER)?;
    let mut packet = wire::receive(&door).map_err(|_| refused)?;
    let is_whole = packet.kind == Kind::Listener as u32 && packet.version == wire::VERSION;
    let fd = packet.fds.pop().filter(|_| is_whole).ok_or(refused)?;
    let listener = Tcp::of_listener(fd)?;
    if listener.local()? == address { Ok(listener) } else { Err(refused) }
}

impl Shared {
    /// Gives a socket of this address away from now on. `slot` is one of this process.
    pub(crate) fn new(listener: Tcp, address: SocketAddr, slot: Slot) -> Result<Self> {
        let door = Socket::new()?;
        door.bind(&format!("{}{}", prefix(address), slot.0))?;
        door.listen()?;
        Ok(Self { listener, door })
    }

    /// Gives the socket to the processes of this user that wait at the door.
    pub(crate) fn give(&self) {
        while let Ok(newcomer) = self.door.accept() {
            if newcomer.peer().is_ok_and(|peer| peer.is_own_user()) {
                // The newcomer may have given up.
                let _given: Result<()> =
                    wire::send(&newcomer, Kind::Listener, &Body::default(), &[self.listener.as_fd()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::fd::BorrowedFd;

    fn join_as(address: SocketAddr, slot: u16) -> Shared {
        Shared::new(join(address).unwrap(), address, Slot(slot)).unwrap()
    }

    /// An address that no other test uses.
    fn address() -> SocketAddr {
        Tcp::listen("127.0.0.1:0".parse().unwrap()).unwrap().local().unwrap()
    }

    #[test]
    fn a_newcomer_gets_the_socket_from_any_process_that_answers() {
        let address = address();
        let first = join_as(address, 1);
        thread::scope(|scope| {
            let second = scope.spawn(|| join_as(address, 2));
            // The first process answers when it gets to it.
            while !second.is_finished() {
                first.give();
                thread::sleep(Duration::from_millis(1));
            }
            let second = second.join().unwrap();
            // The first process stands still: its name is asked in vain.
            let third = scope.spawn(|| join_as(address, 3));
            while !third.is_finished() {
                second.give();
                thread::sleep(Duration::from_millis(1));
            }
            let third = third.join().unwrap();
            drop((first, second));
            // A call reaches whoever is left.
            let _caller = TcpStream::connect(address).unwrap();
            while let Err(error) = third.listener.accept() {
                assert_eq!(error.errno, Errno::EAGAIN);
                thread::yield_now();
            }
        });
        let again = join_as(address, 1);
        assert_eq!(again.listener.local(), Ok(address), "nobody is left, so it is made anew");
    }

    #[test]
    fn an_address_of_another_program_is_in_use() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = join(other.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.errno, Errno::EADDRINUSE);
        let text = in_use(other.local_addr().unwrap());
        assert!(text.starts_with("process ") && text.contains(" of this user listens there"), "{text}");
    }

    #[test]
    fn what_is_no_listening_socket_of_the_address_is_refused() {
        let address = address();
        let door = Socket::new().unwrap();
        let name = format!("{}77", prefix(address));
        door.bind(&name).unwrap();
        door.listen().unwrap();
        let stream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let elsewhere = TcpStream::connect(stream.local_addr().unwrap()).unwrap();
        let dev_null = std::fs::File::open("/dev/null").unwrap();
        // What a newcomer makes of a descriptor. On a busy machine it may have given up before.
        let answered = |fd: BorrowedFd<'_>| loop {
            let answer = thread::scope(|scope| {
                let asking = scope.spawn(|| ask(&name, address));
                let newcomer = loop {
                    match door.accept() {
                        Ok(newcomer) => break newcomer,
                        Err(_) => thread::yield_now(),
                    }
                };
                let _sent: Result<()> = wire::send(&newcomer, Kind::Listener, &Body::default(), &[fd]);
                asking.join().unwrap()
            });
            match answer {
                Err(Error { errno: Errno::EAGAIN, .. }) => {}
                answer => break answer,
            }
        };
        for fd in [dev_null.as_fd(), elsewhere.as_fd(), stream.as_fd()] {
            assert!(answered(fd).is_err());
        }
        let listener = Tcp::listen(address).unwrap();
        assert_eq!(answered(listener.as_fd()).unwrap().local(), Ok(address));
    }
}
