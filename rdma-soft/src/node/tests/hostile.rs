//! Hostile peers, which misuse their side of a link.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::thread;

use super::*;
use crate::link::handshake::{self, Opened, PATIENCE};

/// A page whose first access blocks for ever, also in the kernel. None if this process lacks the
/// permission for such a page.
fn trap() -> Option<*mut libc::c_void> {
    #[repr(C)]
    struct Api {
        api: u64,
        features: u64,
        ioctls: u64,
    }
    #[repr(C)]
    struct Register {
        start: u64,
        len: u64,
        mode: u64,
        ioctls: u64,
    }
    // The type depends on the C library.
    const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
    const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
    // SAFETY: userfaultfd takes a number and reads no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: from_raw_fd requires an open descriptor that has no other owner: userfaultfd has just
    // made this one.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let (read_write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: mmap requires no fixed address over live memory: the kernel chooses the address.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, read_write, private, -1, 0) };
    let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
    // SAFETY: UFFDIO_API requires a live structure of its layout, which `api` is.
    let versioned = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) };
    let mut register = Register { start: page.addr() as u64, len: 4096, mode: 1, ioctls: 0 };
    // SAFETY: UFFDIO_REGISTER requires a live structure of its layout, which `register` is; it
    // names a page of this function's own.
    let registered = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, &raw mut register) };
    let _open_for_ever = fd.into_raw_fd();
    (versioned == 0 && registered == 0).then_some(page)
}

/// Plays the hostile roles of [`super::peer`].
pub(super) fn play(role: &str, side: &Side, first: &mut rdma_test_support::Channel, theirs: &[u64]) {
    match role {
        // Announces sleep again and again, and never reads the doorbells: a thread holds the link's
        // socket in the middle of a receive.
        "stuck" => {
            first.tell(&side.describe());
            side.recv(1, 0, 64);
            side.wait_ok();
            let mut state = side.node.lock();
            // No other thread can send the acknowledgement while this thread holds the lock.
            state.send_deferred();
            let link = state.links().find(|link| link.peer().is_some()).unwrap();
            let socket = link.peer().unwrap().socket.as_fd().as_raw_fd();
            // SAFETY: F_SETFL takes an int and reads no memory.
            assert_eq!(unsafe { libc::fcntl(socket, libc::F_SETFL, 0) }, 0);
            let trap = trap().map(|page| page.expose_provenance());
            thread::scope(|scope| {
                scope.spawn(|| {
                    let page = std::ptr::with_exposed_provenance_mut(trap.unwrap_or(0));
                    // SAFETY: recv requires a writable byte: the page is used only here. A null
                    // page makes recv fail.
                    unsafe { libc::recv(socket, page, 1, 0) };
                });
                first.tell(&u64::from(trap.is_some()).to_string());
                // Runs until the process is killed.
                loop {
                    link.arm();
                    thread::yield_now();
                }
            });
        }
        // Opens many links from several threads at once.
        "greedy" => {
            let slot = slot_of(theirs[0]);
            let open = || {
                let local = side.node.local();
                let opened = handshake::open(slot::connect(slot, PATIENCE).unwrap(), &local);
                matches!(opened, Ok(Opened::New(_))).then(|| opened.unwrap())
            };
            let links: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..8).map(|_| scope.spawn(|| (0..25).filter_map(|_| open()).collect::<Vec<_>>())).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            first.tell(&links.len().to_string());
            first.hear();
        }
        other => panic!("no role {other}"),
    }
}

/// Neither a ring nor a call waits for the peer, whatever the peer does to its end.
#[test]
fn a_peer_that_does_not_listen_stops_nobody() {
    let (side, mut peer, _) = pair("stuck", 4096);
    side.send(1, 0, 8);
    side.wait_ok();
    if peer.hear_numbers() == [0] {
        rdma_test_support::lacks("userfaultfd for faults in the kernel");
    }
    let pid = peer.pid();
    let (done, ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for id in 0..50 {
            side.send(id, 0, 8);
        }
        let state = side.node.lock();
        let peer = state.peers().find(|peer| peer.pid == pid).unwrap();
        (0..10_000).for_each(|_| peer.ring());
        drop(state);
        done.send(side).unwrap();
    });
    let side = ended.recv_timeout(LONG).expect("a call waits for the peer");
    peer.kill();
    assert_ne!(side.wait().status, ibv_wc_status::IBV_WC_SUCCESS);
}

#[test]
fn a_process_gets_one_link_however_often_it_asks() {
    let side = Side::new(4096);
    let mut peer = spawn("greedy");
    peer.tell(&side.describe());
    // The peer's node has the link, or the first of the handshakes has it.
    assert!(peer.hear_numbers()[0] <= 1);
    assert_eq!(links_to(&side, peer.pid()), 1);
    peer.tell("0");
    peer.finish();
}
