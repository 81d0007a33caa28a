//! Descriptors that pass between processes over a Unix socket.
//!
//! A record is some bytes, and with its first byte perhaps a descriptor. Both sides know the length
//! of every record, since a stream has no boundaries. Who may pass memory to whom is the caller's
//! decision; [`SegmentView::map`](crate::SegmentView::map) checks what arrives.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;

use crate::os::{self, Message};

/// Sends a record, and with it perhaps a descriptor.
///
/// # Errors
///
/// Errors of sendmsg; `WouldBlock` if the socket has a timeout, and it passes.
pub fn send(socket: &UnixStream, record: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let descriptor: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
    let mut fds = &descriptor[..];
    let mut rest = record;
    while !rest.is_empty() {
        match os::send_some(socket, rest, fds) {
            Ok(sent) => {
                rest = &rest[sent..];
                fds = &[];
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Receives a record of the length of `record`, and the descriptor that came with it. Calls `pause`
/// whenever nothing has come yet, which waits as long as it likes, or ends the wait by an error.
///
/// # Errors
///
/// `UnexpectedEof` if the peer closed the socket; `EMFILE` if a descriptor came and this process
/// may have no more of them; other errors of recvmsg; those of `pause`.
pub fn receive<E: From<io::Error>>(
    socket: &UnixStream,
    record: &mut [u8],
    mut pause: impl FnMut() -> Result<(), E>,
) -> Result<Option<OwnedFd>, E> {
    let (mut descriptor, mut at) = (None, 0);
    while at < record.len() {
        match receive_some(socket.as_fd(), &mut record[at..], 1, true) {
            Ok(Received { len: 0, .. }) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(Received { fds, lacks_fds: true, .. }) if fds.is_empty() => {
                return Err(io::Error::from(Errno::EMFILE).into());
            }
            Ok(Received { len, fds, .. }) => {
                at += len;
                descriptor = descriptor.or(fds.into_iter().next());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => pause()?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(descriptor)
}

/// What one call of recvmsg has received.
#[derive(Debug)]
pub struct Received {
    /// Number of bytes; 0 if the peer has closed its end, or sent an empty packet.
    pub len: usize,
    /// Whether the packet was longer than the buffer.
    pub is_cut: bool,
    /// The descriptors that came with the bytes.
    pub fds: Vec<OwnedFd>,
    /// Whether more descriptors came: more than were asked for, or than this process may have.
    pub lacks_fds: bool,
}

/// Receives bytes of a stream, or a packet, with space for `fds` descriptors. Descriptors without
/// space are closed. With `never_waits` the call does not wait, whatever the socket's flags.
///
/// # Errors
///
/// Errors of recvmsg.
pub fn receive_some(socket: BorrowedFd<'_>, bytes: &mut [u8], fds: usize, never_waits: bool) -> io::Result<Received> {
    // Words, because control messages are aligned to words.
    let mut control =
        vec![0_usize; if fds == 0 { 0 } else { HEADER / WORD + (fds * size_of::<RawFd>()).div_ceil(WORD) }];
    let Message { len, control_len, flags } = os::recvmsg(socket, bytes, &mut control, never_waits)?;
    let has = |flag| flags & flag != 0;
    let fds = take_descriptors(&control, control_len);
    Ok(Received { len, is_cut: has(libc::MSG_TRUNC), fds, lacks_fds: has(libc::MSG_CTRUNC) })
}

const WORD: usize = size_of::<usize>();
const HEADER: usize = size_of::<libc::cmsghdr>();

/// Takes the descriptors out of the control messages of `recvmsg`, which wrote `len` bytes. Each
/// descriptor gets an owner, so that none leaks.
fn take_descriptors(control: &[usize], len: usize) -> Vec<OwnedFd> {
    // The walk of CMSG_FIRSTHDR, CMSG_DATA and CMSG_NXTHDR in cmsg(3), over words.
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect();
    let number = |bytes: &[u8]| bytes.try_into().map_or(-1, i32::from_ne_bytes);
    let mut rest = &bytes[..];
    let mut fds = Vec::new();
    while let Some((header, _)) = rest.split_at_checked(HEADER) {
        let (len, kind) = header.split_at(WORD);
        let len = usize::from_ne_bytes(len.try_into().unwrap_or_default());
        let Some(data) = rest.get(HEADER..len) else { break };
        let kind = kind.chunks_exact(size_of::<libc::c_int>()).map(number);
        if kind.eq([libc::SOL_SOCKET, libc::SCM_RIGHTS]) {
            for fd in data.chunks_exact(size_of::<RawFd>()).map(number) {
                // SAFETY: from_raw_fd requires an open descriptor that has no other owner: the
                // kernel made one for each of these numbers in this call of recvmsg, and each
                // number is read once.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        rest = rest.get(len.next_multiple_of(WORD)..).unwrap_or(&[]);
    }
    fds
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::io::IoSlice;

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

    use super::*;
    use crate::{Segment, SegmentView};

    /// Receives what has come already.
    fn receive(socket: &UnixStream, record: &mut [u8]) -> io::Result<Option<OwnedFd>> {
        super::receive(socket, record, || Err(io::ErrorKind::WouldBlock.into()))
    }

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
        // The other two copies of the peer's side were closed, so this one was the last.
        drop(kept);
        assert_eq!(receive(&other, &mut [0]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn the_caller_waits_between_the_bytes_of_a_record() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut left, mut record) = (b"bytes".as_slice(), [0; 5]);
        let mut pause = || {
            let (byte, rest) = left.split_at_checked(1).ok_or(io::ErrorKind::TimedOut)?;
            left = rest;
            send(&one, byte, None)
        };
        assert!(super::receive(&other, &mut record, &mut pause).unwrap().is_none());
        assert_eq!(&record, b"bytes");
        let silent = super::receive(&other, &mut record, &mut pause).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
    }
}
