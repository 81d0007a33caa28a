//! Packets on the Unix socket between two processes: bytes, and descriptors that travel with them.
//!
//! ```text
//! magic 8 | version 4 | kind 4 | body
//! ```
//!
//! Numbers are in the host's byte order: both ends are on one host. Magic, version and kind stay where they are in all versions.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What two processes must agree on: bump it with every change of a packet, a frame, the rings or the directory.
pub(crate) const VERSION: u32 = 4;
const MAGIC: u64 = u64::from_be_bytes(*b"RDMAsoft");

/// Bytes of the longest packet.
const MAX_PACKET: usize = 512;
/// Descriptors that a packet may carry.
pub(crate) const MAX_FDS: usize = 4;

/// What a packet is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Who I am, and where my token is; the acceptor's also proves that it read the opener's.
    Hello = 1,
    /// The opener's proof, and the link.
    Offer = 2,
    /// The link is up.
    Accept = 3,
    /// No, and why.
    Refuse = 4,
    /// A region that the peer may map.
    Grant = 5,
}

/// A packet.
#[derive(Debug)]
pub(crate) struct Packet {
    /// What it is for; as it came, it may be anything.
    pub(crate) kind: u32,
    /// The sender's version.
    pub(crate) version: u32,
    /// The rest.
    pub(crate) body: Body,
    /// What came with it.
    pub(crate) fds: Vec<OwnedFd>,
}

/// A packet's contents: written from the front, read from the front.
#[derive(Debug, Default)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    read: usize,
}

impl Body {
    /// Appends bytes.
    #[must_use]
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends a number.
    #[must_use]
    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Takes `N` bytes.
    pub(crate) fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let taken = self.bytes[self.read..].first_chunk().copied();
        self.read += if taken.is_some() { N } else { 0 };
        taken.ok_or_else(|| invalid("a packet of the peer is too short"))
    }

    /// Takes a number.
    pub(crate) fn take_u64(&mut self) -> io::Result<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    /// What is left.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.read..]
    }
}

/// Sends a packet.
pub(crate) fn send(socket: &OwnedFd, kind: Kind, body: &Body, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_as(socket, VERSION, kind, body, fds)
}

/// Sends a packet as a process of another version would.
pub(crate) fn send_as(
    socket: &OwnedFd,
    version: u32,
    kind: Kind,
    body: &Body,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let head = Body::default().u64(MAGIC).bytes(&version.to_ne_bytes()).bytes(&(kind as u32).to_ne_bytes());
    let mut packet = head.bytes(&body.bytes).bytes;
    assert!(packet.len() <= MAX_PACKET && fds.len() <= MAX_FDS, "a packet of ours is too long");
    let mut iov = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
    let mut control = Control([0; CONTROL_WORDS]);
    let mut message = message(&mut iov);
    if !fds.is_empty() {
        let bytes = u32::try_from(fds.len() * size_of::<libc::c_int>()).unwrap_or(0);
        message.msg_control = (&raw mut control).cast();
        // SAFETY: CMSG_SPACE and CMSG_LEN only calculate.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
        // SAFETY: `message` has a control buffer of at least one header, so this is its start.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        let value = libc::cmsghdr {
            // SAFETY: only calculates.
            cmsg_len: unsafe { libc::CMSG_LEN(bytes) } as usize,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        // SAFETY: `header` is the aligned start of the control buffer, which has room for it.
        unsafe { header.write(value) };
        // SAFETY: `header` is a whole header within the buffer.
        let data = unsafe { libc::CMSG_DATA(header) }.cast::<libc::c_int>();
        for (i, fd) in fds.iter().enumerate() {
            // SAFETY: the buffer has room for MAX_FDS descriptors after its header, and `fds` is no longer.
            let slot = unsafe { data.add(i) };
            // SAFETY: as above.
            unsafe { slot.write_unaligned(fd.as_raw_fd()) };
        }
    }
    loop {
        // SAFETY: sendmsg reads the iovec and the control buffer that `message` points to, all live.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Receives a packet; `UnexpectedEof` when the peer hung up.
pub(crate) fn receive(socket: &OwnedFd) -> io::Result<Packet> {
    let mut bytes = [0_u8; MAX_PACKET];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_WORDS]);
    let mut message = message(&mut iov);
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    let received = loop {
        // SAFETY: recvmsg writes within the iovec and the control buffer that `message` points to, all live.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if let Ok(received) = usize::try_from(received) {
            break received;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let mut fds = take_fds(&message);
    if received == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer hung up"));
    }
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(invalid("a packet of the peer is too long"));
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        // The peer sent too many, or this process can have no more: whoever needs them finds none.
        fds.clear();
    }
    let mut body = Body { bytes: bytes[..received].to_vec(), read: 0 };
    if body.take_u64()? != MAGIC {
        return Err(invalid("the peer is not a software RDMA device"));
    }
    let version = u32::from_ne_bytes(body.take()?);
    let kind = u32::from_ne_bytes(body.take()?);
    Ok(Packet { kind, version, body, fds })
}

/// An error about what the peer sent.
pub(crate) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A header and MAX_FDS descriptors, with room for what the kernel may add.
const CONTROL_WORDS: usize = 8;

/// Aligned as control messages have to be.
#[repr(C, align(8))]
struct Control([u64; CONTROL_WORDS]);

fn message(iov: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: msghdr is plain data, valid when zero.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = iov;
    message.msg_iovlen = 1;
    message
}

/// The descriptors that `recvmsg` put into a control buffer: every one is now ours, to use or to close.
fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: `message` is as recvmsg left it, its control buffer live.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: the CMSG functions return whole headers within the buffer, or null.
        let libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type } = unsafe { header.read() };
        if cmsg_level == libc::SOL_SOCKET && cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: only calculates.
            let bytes = cmsg_len - unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<libc::c_int>();
            for i in 0..bytes / size_of::<libc::c_int>() {
                // SAFETY: the kernel wrote `bytes` bytes of descriptors there.
                let slot = unsafe { data.add(i) };
                // SAFETY: as above.
                let fd = unsafe { slot.read_unaligned() };
                // SAFETY: from_raw_fd wants an open descriptor that nobody else owns: the kernel just made it for us.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: `header` is a header of this message's control buffer.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    fds
}
