//! Descriptors that pass between processes over a Unix socket.
//!
//! A record is some bytes, and with its first byte perhaps a descriptor. Both ends know the length
//! of every record, since a stream has no boundaries. Who may pass memory to whom is the caller's
//! decision; [`SegmentView::map`](crate::SegmentView::map) checks what arrives.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// Sends a record, and with it perhaps a descriptor.
///
/// # Errors
///
/// Errors of sendmsg; `WouldBlock` if the socket has a timeout, and it passes.
pub fn send(socket: &UnixStream, record: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let fds: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let mut control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let mut rest = record;
    while !rest.is_empty() {
        match sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(rest)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(sent) => {
                rest = &rest[sent..];
                control = &[];
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Receives a record of the length of `record`, and the descriptor that came with it.
///
/// # Errors
///
/// `UnexpectedEof` if the peer closed the socket; errors of recvmsg; `WouldBlock` if the socket has
/// a timeout, and it passes.
pub fn receive(socket: &UnixStream, record: &mut [u8]) -> io::Result<Option<OwnedFd>> {
    let (mut descriptor, mut at) = (None, 0);
    while at < record.len() {
        match receive_part(socket.as_fd(), &mut record[at..]) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((received, fd)) => {
                at += received;
                descriptor = descriptor.or(fd);
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(descriptor)
}

/// Room for the control message of one descriptor, aligned as control messages are.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    fd: RawFd,
}

/// Bytes of a control message with one descriptor. The kernel closes further ones, for which there
/// is no room.
const CONTROL: usize = size_of::<libc::cmsghdr>() + size_of::<RawFd>();

/// Receives some bytes, and the descriptor that came with the first one.
fn receive_part(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)> {
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = MaybeUninit::<Control>::zeroed();
    // SAFETY: zeroed wants a type for which all zeroes is a value: msghdr consists of integers and
    // pointers.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL;
    // Not through `nix`, which leaks the descriptors of a list that is cut off.
    // SAFETY: recvmsg writes within the buffers that `message` names, which are locals and have the
    // lengths given there.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = Errno::result(received)?;
    // SAFETY: assume_init wants a value: zeroes are one, and so is what the kernel wrote.
    let Control { header, fd } = unsafe { control.assume_init() };
    let is_descriptor = message.msg_controllen >= CONTROL
        && (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
        && header.cmsg_len == CONTROL;
    // SAFETY: from_raw_fd wants an open descriptor that has no other owner: the kernel made this
    // one for the control message, of which it filled all `CONTROL` bytes.
    let descriptor = is_descriptor.then(|| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok((usize::try_from(received).unwrap_or(0), descriptor))
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Segment, SegmentView};

    #[test]
    fn a_segment_passes_over_a_socket() {
        let (one, other) = UnixStream::pair().unwrap();
        let segment = Segment::new(4096).unwrap();
        segment.bytes().store_u64(0, 9).unwrap();
        send(&one, b"first", Some(segment.fd())).unwrap();
        send(&one, b"other", None).unwrap();
        let mut record = [0; 5];
        let fd = receive(&other, &mut record).unwrap().unwrap();
        assert_eq!(&record, b"first");
        assert_eq!(SegmentView::map(fd.as_fd(), 4096).unwrap().bytes().load_u64(0), Ok(9));
        assert!(receive(&other, &mut record).unwrap().is_none());
        assert_eq!(&record, b"other");
        drop(one);
        assert_eq!(receive(&other, &mut record).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn one_descriptor_of_many_is_kept() {
        let (one, other) = UnixStream::pair().unwrap();
        let fds = [one.as_raw_fd(); 3];
        let control = [ControlMessage::ScmRights(&fds)];
        sendmsg::<()>(one.as_raw_fd(), &[IoSlice::new(b"x")], &control, MsgFlags::empty(), None).unwrap();
        drop(one);
        let kept = receive(&other, &mut [0]).unwrap();
        assert!(kept.is_some());
        // The other two copies of the peer's end were closed, so this one was the last.
        drop(kept);
        assert_eq!(receive(&other, &mut [0]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_silent_peer_is_an_error() {
        let (_one, other) = UnixStream::pair().unwrap();
        other.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert_eq!(receive(&other, &mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
