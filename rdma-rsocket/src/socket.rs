//! [`Socket`], the safe interface.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::ManuallyDrop;
use std::net::{self, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;

use libc::{c_int, c_short};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown};

use crate::buffers::{Sink, Source};
use crate::datagram::Datagram;
use crate::settings::Settings;
use crate::stream::Stream;
use crate::verbs::Libraries;
use crate::wait::{Bell, Polled};

/// A socket over RDMA. Dropping it closes it.
///
/// All methods take `&self`: one thread may receive while another sends.
///
/// # Examples
///
/// ```no_run
/// use std::io::{Read, Write};
/// use rdma_rsocket::{Libraries, Socket};
///
/// let mut socket = Socket::stream(Libraries::system()?)?;
/// socket.connect("192.0.2.1:7000".parse()?)?;
/// socket.write_all(b"hello")?;
/// let mut answer = [0; 5];
/// socket.read_exact(&mut answer)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Socket(Kind);

#[derive(Debug)]
enum Kind {
    Stream(Arc<Stream>),
    Datagram(Arc<Datagram>),
}

/// Calls a method that both kinds of sockets have.
macro_rules! either {
    ($socket:expr, $inner:ident => $call:expr) => {
        match &$socket.0 {
            Kind::Stream($inner) => $call,
            Kind::Datagram($inner) => $call,
        }
    };
}

impl Socket {
    /// A stream socket: `rsocket` with `SOCK_STREAM`.
    ///
    /// # Errors
    ///
    /// The connection manager is missing, or a system limit.
    #[doc(alias = "rsocket")]
    pub fn stream(libraries: Libraries) -> io::Result<Self> {
        Ok(Self::new_stream(libraries, Settings::default())?)
    }

    pub(crate) fn new_stream(libraries: Libraries, settings: Settings) -> Result<Self, Errno> {
        Ok(Self(Kind::Stream(Arc::new(Stream::new(libraries, settings)?))))
    }

    /// A datagram socket for addresses of one family: `rsocket` with `SOCK_DGRAM`.
    ///
    /// Datagrams may be lost, also between two sockets of one host.
    ///
    /// # Errors
    ///
    /// A system limit.
    #[doc(alias = "rsocket")]
    pub fn datagram(libraries: Libraries, is_v6: bool) -> io::Result<Self> {
        Ok(Self::new_datagram(libraries, is_v6, Settings::default())?)
    }

    pub(crate) fn new_datagram(libraries: Libraries, is_v6: bool, settings: Settings) -> Result<Self, Errno> {
        Ok(Self(Kind::Datagram(Arc::new(Datagram::new(libraries, is_v6, settings)?))))
    }

    /// The socket's number in `rsocket.h`.
    #[must_use]
    pub fn number(&self) -> RawFd {
        either!(self, socket => socket.fd())
    }

    fn as_stream(&self) -> Result<&Arc<Stream>, Errno> {
        match &self.0 {
            Kind::Stream(stream) => Ok(stream),
            Kind::Datagram(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Binds the socket to an address.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EINVAL` if the socket is bound already.
    #[doc(alias = "rbind")]
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        Ok(either!(self, socket => socket.bind(address))?)
    }

    /// Begins to listen. The backlog bounds the connections that nobody has accepted, but is at
    /// least 128.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the socket is connected; `EADDRINUSE`.
    #[doc(alias = "rlisten")]
    pub fn listen(&self, backlog: c_int) -> io::Result<()> {
        Ok(self.as_stream()?.listen(backlog)?)
    }

    /// Takes a connection, which inherits the listener's options. Its calls wait, whatever the mode
    /// of the listener.
    ///
    /// # Errors
    ///
    /// `EAGAIN` in non-blocking mode, `EINVAL` if the socket does not listen.
    #[doc(alias = "raccept")]
    pub fn accept(&self) -> io::Result<(Self, SocketAddr)> {
        let stream = self.as_stream()?.accept()?;
        let peer = stream.peer_address()?;
        Ok((Self(Kind::Stream(stream)), peer))
    }

    /// Connects to a listener, or chooses the peer of a datagram socket.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED`, `ETIMEDOUT` and the like; `EINPROGRESS` in non-blocking mode, where
    /// `POLLOUT` reports the end.
    #[doc(alias = "rconnect")]
    pub fn connect(&self, address: SocketAddr) -> io::Result<()> {
        Ok(either!(self, socket => socket.connect(address))?)
    }

    /// Sends bytes with flags of send(2), of which `MSG_DONTWAIT` has an effect. A blocking call
    /// sends fewer bytes only if an error or a signal comes in between.
    ///
    /// # Errors
    ///
    /// `EAGAIN`, `EINTR`, `ENOTCONN`, `EPIPE`, `ECONNRESET`.
    #[doc(alias = "rsend")]
    #[doc(alias = "rsendmsg")]
    pub fn send(&self, buffers: &[IoSlice<'_>], flags: c_int) -> io::Result<usize> {
        Ok(self.send_source(&mut Source::new(buffers), flags)?)
    }

    /// Sends one datagram to an address.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` for more than a packet of the network, or about 2000 bytes; `EAGAIN`, `EINTR`;
    /// `EISCONN` for a stream; `ENODEV` if the way to the address is not over an RDMA device.
    #[doc(alias = "rsendto")]
    pub fn send_to(&self, buffers: &[IoSlice<'_>], address: SocketAddr, flags: c_int) -> io::Result<usize> {
        let Kind::Datagram(datagram) = &self.0 else { return Err(Errno::EISCONN.into()) };
        Ok(datagram.send(&mut Source::new(buffers), Some(address), MsgFlags::from_bits_truncate(flags))?)
    }

    /// Whether it is a stream socket.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.0, Kind::Stream(_))
    }

    fn send_source(&self, source: &mut Source<'_, '_>, flags: c_int) -> Result<usize, Errno> {
        let flags = MsgFlags::from_bits_truncate(flags);
        match &self.0 {
            Kind::Stream(stream) => stream.send(source, flags),
            Kind::Datagram(datagram) => datagram.send(source, None, flags),
        }
    }

    /// Receives bytes with flags of recv(2), of which `MSG_DONTWAIT`, `MSG_PEEK` and `MSG_WAITALL`
    /// have an effect. 0 is the end of the stream.
    ///
    /// # Errors
    ///
    /// `EAGAIN`, `EINTR`, `ENOTCONN`, `ECONNRESET`; `EPROTO` if the peer broke the protocol.
    #[doc(alias = "rrecv")]
    #[doc(alias = "rrecvmsg")]
    pub fn receive(&self, buffers: &mut [IoSliceMut<'_>], flags: c_int) -> io::Result<usize> {
        Ok(self.receive_from(buffers, flags)?.0)
    }

    /// Receives as [`Self::receive`], and returns the sender too: for a stream, its peer. Of a
    /// datagram that is longer than the buffers, the rest is lost. With `MSG_TRUNC`, the length is
    /// that of the whole datagram.
    ///
    /// # Errors
    ///
    /// Those of [`Self::receive`]; `ECONNREFUSED` if the peer's port is closed.
    #[doc(alias = "rrecvfrom")]
    pub fn receive_from(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: c_int,
    ) -> io::Result<(usize, Option<SocketAddr>)> {
        let (mut sink, flags) = (Sink::new(buffers), MsgFlags::from_bits_truncate(flags));
        match &self.0 {
            Kind::Stream(stream) => {
                let len = stream.receive(&mut sink, flags)?;
                Ok((len, stream.peer_address().ok().filter(|_| len > 0)))
            }
            Kind::Datagram(datagram) => {
                let (len, source) = datagram.receive(&mut sink, flags)?;
                Ok((len, Some(source)))
            }
        }
    }

    /// Maps memory: registers it, and lets the peer write it with [`Self::write_mapped`] at an
    /// offset if it is shared. Without an offset, the offset is the address. Returns the offset.
    ///
    /// The peer learns of the mapping before it gets data that is sent after this call.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`; `ENOMEM` if the peer has no entry left, of those that it has set with
    /// [`RDMA_IOMAPSIZE`](crate::RDMA_IOMAPSIZE); `EINVAL` for 4 GiB or more; the reasons of
    /// `ibv_reg_mr`.
    ///
    /// # Safety
    ///
    /// Until [`Self::unmap`] or the end of the socket, the memory stays valid for reads and writes.
    /// If it is shared, the peer may write it at any time: access it as memory that others write.
    #[doc(alias = "riomap")]
    pub unsafe fn map(&self, memory: *mut u8, len: usize, is_shared: bool, offset: Option<u64>) -> io::Result<u64> {
        let offset = offset.unwrap_or_else(|| memory.addr() as u64);
        // SAFETY: `map` requires memory that stays valid, this function's condition.
        unsafe { self.as_stream()?.map((memory, len), is_shared, offset) }?;
        Ok(offset)
    }

    /// Ends a mapping of [`Self::map`], named by its memory. If the peer writes to it later, the
    /// connection ends.
    ///
    /// # Errors
    ///
    /// `EINVAL` if this memory is not mapped.
    #[doc(alias = "riounmap")]
    pub fn unmap(&self, memory: *mut u8, len: usize) -> io::Result<()> {
        Ok(self.as_stream()?.unmap(memory, len)?)
    }

    /// Writes bytes to the memory that the peer has mapped at an offset, up to the end of its
    /// mappings: 0 bytes if nothing is mapped there. The peer gets no notice of the write. The
    /// flags are those of [`Self::send`].
    ///
    /// # Errors
    ///
    /// `EAGAIN`, `EINTR`, `ENOTCONN`, `EPIPE`, `ECONNRESET`.
    #[doc(alias = "riowrite")]
    pub fn write_mapped(&self, bytes: &[u8], offset: u64, flags: c_int) -> io::Result<usize> {
        let buffers = [IoSlice::new(bytes)];
        let flags = MsgFlags::from_bits_truncate(flags);
        Ok(self.as_stream()?.write_mapped(&mut Source::new(&buffers), offset, flags)?)
    }

    /// Ends one direction or both.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`; `EAGAIN` if the peer takes no message for the time of `SO_LINGER`.
    #[doc(alias = "rshutdown")]
    pub fn shutdown(&self, how: net::Shutdown) -> io::Result<()> {
        let how = match how {
            net::Shutdown::Read => Shutdown::Read,
            net::Shutdown::Write => Shutdown::Write,
            net::Shutdown::Both => Shutdown::Both,
        };
        Ok(self.as_stream()?.shut_down(how)?)
    }

    /// Ends the socket. Calls of other threads fail with `EBADF`.
    ///
    /// # Errors
    ///
    /// `EBADF` if the socket is closed already.
    #[doc(alias = "rclose")]
    pub fn close(&self) -> io::Result<()> {
        Ok(either!(self, socket => socket.close())?)
    }

    /// The address of the socket; `None` before it has one.
    ///
    /// # Errors
    ///
    /// `EBADF` after a close.
    #[doc(alias = "rgetsockname")]
    pub fn local_address(&self) -> io::Result<Option<SocketAddr>> {
        Ok(either!(self, socket => socket.local_address())?)
    }

    /// The address of the peer.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`.
    #[doc(alias = "rgetpeername")]
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        Ok(either!(self, socket => socket.peer_address())?)
    }

    /// Sets an option, by its numbers and bytes in C.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for an unknown option, `EINVAL` for a wrong length.
    #[doc(alias = "rsetsockopt")]
    pub fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
        Ok(either!(self, socket => socket.set_option(level, name, value))?)
    }

    /// The bytes in C of an option.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for an unknown option.
    #[doc(alias = "rgetsockopt")]
    pub fn option(&self, level: c_int, name: c_int) -> io::Result<Vec<u8>> {
        Ok(either!(self, socket => socket.option(level, name))?)
    }

    /// Whether calls fail with `EAGAIN` instead of waiting.
    ///
    /// # Errors
    ///
    /// `EBADF` after a close.
    #[doc(alias = "rfcntl")]
    pub fn is_nonblocking(&self) -> io::Result<bool> {
        Ok(either!(self, socket => socket.is_nonblocking())?)
    }

    /// Lets calls fail with `EAGAIN` instead of waiting, or not.
    ///
    /// # Errors
    ///
    /// `EBADF` after a close.
    #[doc(alias = "rfcntl")]
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        Ok(either!(self, socket => socket.set_nonblocking(is_nonblocking))?)
    }

    /// The flags of `F_GETFD`, which have no effect; sets them if new ones are given.
    pub(crate) fn descriptor_flags(&self, new: Option<c_int>) -> Result<c_int, Errno> {
        either!(self, socket => socket.descriptor_flags(new))
    }

    pub(crate) fn ready(&self, events: c_short) -> c_short {
        either!(self, socket => socket.ready(events))
    }

    pub(crate) fn prepare_sleep(&self, events: c_short, bell: &Arc<Bell>, sources: &mut Vec<Polled>) -> bool {
        either!(self, socket => socket.prepare_sleep(events, bell, sources))
    }

    pub(crate) fn end_sleep(&self, bell: &Arc<Bell>) {
        either!(self, socket => socket.end_sleep(bell));
    }
}

fn leak<T>(shared: &Arc<T>) {
    let _leaked = ManuallyDrop::new(Arc::clone(shared));
}

impl Drop for Socket {
    fn drop(&mut self) {
        if either!(self, socket => socket.is_inherited()) {
            // The objects are the parent's. Destroying a copy of them would end its connection.
            either!(self, socket => leak(socket));
            return;
        }
        // Fails only if the socket is closed already.
        let _closed = self.close();
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(&mut [IoSliceMut::new(buffer)], 0)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.receive(buffers, 0)
    }
}

impl Write for &Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(buffer)], 0)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(buffers, 0)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        (&*self).write(buffer)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
