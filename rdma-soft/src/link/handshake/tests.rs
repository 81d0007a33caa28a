use std::os::fd::{FromRawFd, OwnedFd};
use std::thread;

use super::*;
use crate::os::event_loop::EventLoop;
use crate::os::wait_set::WaitSet;

struct Process {
    directory: SharedMemory,
    slot: u16,
    capacity: usize,
}

impl Process {
    fn new(slot: u16, capacity: usize) -> Self {
        Self { directory: SharedMemory::new(DIRECTORY_LEN).unwrap(), slot, capacity }
    }

    fn local(&self) -> Local<'_> {
        Local { slots: vec![Slot(self.slot)], directory: &self.directory, capacity: self.capacity }
    }
}

fn welcome(_: i32, _: &[Slot]) -> Answer {
    Answer::Welcome
}

/// Receives the first packet, and accepts a link.
fn accept_first(
    socket: Socket,
    local: &Local<'_>,
    answer: impl FnOnce(i32, &[Slot]) -> Answer,
) -> Result<Option<Established>, Refusal> {
    let first = receive(&socket)?;
    accept(socket, first, local, answer)
}

/// Runs an acceptor against an opener that executes `act`. Returns the acceptor's result.
fn accept_from(act: impl FnOnce(&Socket) + Send) -> Result<Option<Established>, Refusal> {
    let [ours, theirs] = Socket::pair();
    let process = Process::new(7, 1 << 16);
    thread::scope(|scope| {
        let accepting = scope.spawn(|| accept_first(ours, &process.local(), welcome));
        act(&theirs);
        accepting.join().unwrap()
    })
}

/// Receives the next packet.
fn take(socket: &Socket) -> Packet {
    socket.wait_readable(PATIENCE).unwrap();
    wire::receive(socket).unwrap()
}

fn refusal_of(socket: &Socket) -> String {
    let packet = take(socket);
    assert_eq!(packet.kind, Kind::Refuse as u32);
    String::from_utf8_lossy(packet.body.rest()).into_owned()
}

/// Takes an honest opener's steps before its Offer. Returns the acceptor's token, the proof to
/// send.
fn greet(socket: &Socket, token: &Token) -> [u8; TOKEN] {
    wire::send(socket, Kind::Hello, &hello(token, &[Slot(9)]), &[]).unwrap();
    let mut answer = take(socket);
    assert!(token.is(&answer.body.take().unwrap()));
    let address = answer.body.take_u64().unwrap();
    trust::read_token(i32::try_from(std::process::id()).unwrap(), address).unwrap()
}

#[test]
fn two_processes_that_mean_well_get_a_link() {
    let [a, b] = Socket::pair();
    let (opener, acceptor) = (Process::new(3, 1 << 16), Process::new(4, 1 << 20));
    let (opened, accepted) = thread::scope(|scope| {
        let accepting = scope.spawn(|| accept_first(b, &acceptor.local(), welcome).unwrap().unwrap());
        let Opened::New(opened) = open(a, &opener.local()).unwrap() else { panic!("no new link") };
        (opened, accepting.join().unwrap())
    });
    assert_eq!((&opened.peer.slots[..], &accepted.peer.slots[..]), (&[Slot(4)][..], &[Slot(3)][..]));
    assert_eq!(opened.peer.pid, i32::try_from(std::process::id()).unwrap());
    // Each side sees the flags that the other side sets.
    super::super::doorbell::arm(opened.ends.asleep.word());
    assert!(super::super::doorbell::must_ring(accepted.ends.peer_asleep.word()));
    assert!(!super::super::doorbell::must_ring(opened.ends.asleep.word()));
    let (event_loop, set) = (EventLoop::new().unwrap(), WaitSet::new().unwrap());
    let mut rings = 0;
    set.watch(&accepted.peer.our_bell, 1, &event_loop).unwrap();
    event_loop.wait(Some(Duration::ZERO), |_| {});
    opened.peer.ring();
    event_loop.wait(Some(Duration::ZERO), |_| rings += 1);
    assert_eq!(rings, 1);
}

#[test]
fn a_peer_that_has_a_link_or_makes_one_is_told_so() {
    for answer in [Answer::Known, Answer::Busy] {
        let [a, b] = Socket::pair();
        let (opener, acceptor) = (Process::new(3, 1 << 16), Process::new(4, 1 << 16));
        let opened = thread::scope(|scope| {
            scope.spawn(|| {
                let told = |pid, slots: &[Slot]| {
                    assert_eq!((pid, slots), (i32::try_from(std::process::id()).unwrap(), &[Slot(3)][..]));
                    answer
                };
                assert!(accept_first(b, &acceptor.local(), told).unwrap().is_none());
            });
            open(a, &opener.local()).unwrap()
        });
        match answer {
            Answer::Known => assert!(matches!(opened, Opened::Known(slots) if slots == [Slot(4)])),
            _ => assert!(matches!(opened, Opened::Busy)),
        }
    }
}

#[test]
fn a_peer_of_another_version_is_told_so() {
    let result = accept_from(|socket| {
        let body = Body::default().u64(0).u64(0);
        wire::send_as(socket, VERSION + 1, Kind::Hello, &body, &[]).unwrap();
        assert!(refusal_of(socket).contains("another version"));
    });
    assert!(matches!(result, Err(Refusal::Version { theirs }) if theirs == VERSION + 1));

    let [a, b] = Socket::pair();
    let result = thread::scope(|scope| {
        let process = Process::new(3, 1 << 16);
        let opening = scope.spawn(move || open(a, &process.local()).map(drop));
        take(&b);
        wire::send_as(&b, 77, Kind::Refuse, &Body::default(), &[]).unwrap();
        opening.join().unwrap()
    });
    assert!(matches!(result, Err(Refusal::Version { theirs: 77 })));
    assert!(Refusal::Version { theirs: 77 }.to_string().contains("version 77"));
}

#[test]
fn who_has_not_read_the_token_is_refused() {
    let result = accept_from(|socket| {
        let token = Token::new().unwrap();
        greet(socket, &token);
        let offer = Body::default().bytes(&[0; TOKEN]).u64(1 << 16);
        wire::send(socket, Kind::Offer, &offer, &[]).unwrap();
        assert!(refusal_of(socket).contains("has not shown"));
    });
    assert!(matches!(result, Err(Refusal::Unproved(_))));
}

#[test]
fn a_token_that_cannot_be_read_is_refused() {
    let result = accept_from(|socket| {
        let body = Body::default().u64(4096).u64(0);
        wire::send(socket, Kind::Hello, &body, &[]).unwrap();
        assert!(refusal_of(socket).contains("trace"));
    });
    assert!(matches!(result, Err(Refusal::Untraceable { .. })));
}

#[test]
fn a_peer_that_has_died_is_said_to_be_dead() {
    let mut process = std::process::Command::new("true").spawn().unwrap();
    let peer = Credentials { pid: process.id().try_into().unwrap(), uid: 0 };
    process.wait().unwrap();
    let [socket, theirs] = Socket::pair();
    wire::send(&theirs, Kind::Hello, &Body::default().u64(4096).u64(0), &[]).unwrap();
    let refusal = Hello::read(&socket, peer, &mut take(&socket).body).err().unwrap();
    assert!(matches!(refusal, Refusal::Died(_)), "{refusal}");
    assert_eq!(refusal.to_string(), format!("process {} has died", peer.pid));
}

#[test]
fn what_is_not_a_device_is_refused() {
    let result = accept_from(|socket| {
        socket.send(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    });
    assert!(matches!(result, Err(Refusal::Packet(Error::Malformed(_)))));
}

#[test]
fn descriptors_that_could_hurt_are_refused() {
    let good = Process::new(9, 1 << 16);
    let (_, memory) = Memory::create(1 << 16).unwrap();
    // SAFETY: memfd_create requires a NUL-terminated name, which the C string literal is.
    let fd = unsafe { libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    // SAFETY: from_raw_fd requires an open descriptor that has no other owner: memfd_create has
    // just made this one.
    let unsealed = unsafe { OwnedFd::from_raw_fd(fd) };
    let directory = good.directory.fd().unwrap();
    let made = Bell::new().unwrap();
    let bell = made.as_fd();
    let bad: [(&str, u64, Vec<BorrowedFd<'_>>); 7] = [
        ("no descriptors", 1 << 16, vec![]),
        ("one too many", 1 << 16, vec![memory.as_fd(), directory, bell, bell]),
        ("no bell", 1 << 16, vec![memory.as_fd(), directory]),
        ("unsealed rings", 1 << 16, vec![unsealed.as_fd(), directory, bell]),
        ("rings shorter than said", 1 << 20, vec![memory.as_fd(), directory, bell]),
        ("an impossible capacity", (1 << 16) + 1, vec![memory.as_fd(), directory, bell]),
        ("a directory that is none", 1 << 16, vec![memory.as_fd(), unsealed.as_fd(), bell]),
    ];
    for (what, capacity, fds) in bad {
        let result = accept_from(|socket| {
            let token = Token::new().unwrap();
            let proof = greet(socket, &token);
            wire::send(socket, Kind::Offer, &Body::default().bytes(&proof).u64(capacity), &fds).unwrap();
            refusal_of(socket);
        });
        assert!(matches!(result, Err(Refusal::Packet(_) | Refusal::Memory(_))), "{what}: {result:?}");
    }
}
