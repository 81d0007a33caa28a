//! Options of a socket, in the form of rsetsockopt and rgetsockopt.

use std::time::Duration;

use libc::c_int;
use nix::errno::Errno;

use crate::wire;

/// The option level of rsockets.
pub const SOL_RDMA: c_int = 0x10000;
/// Option of [`SOL_RDMA`]: requests of the send queue.
pub const RDMA_SQSIZE: c_int = 0;
/// Option of [`SOL_RDMA`]: requests of the receive queue.
pub const RDMA_RQSIZE: c_int = 1;
/// Option of [`SOL_RDMA`]: bytes that are sent inline.
pub const RDMA_INLINE: c_int = 2;
/// Option of [`SOL_RDMA`]: I/O maps that the peer may make.
pub const RDMA_IOMAPSIZE: c_int = 3;
/// Option of [`SOL_RDMA`]: the path records of the connection.
pub const RDMA_ROUTE: c_int = 4;

/// How long the close of a socket waits for its data if `SO_LINGER` is not set.
const LINGER: Duration = Duration::from_secs(10);
/// The largest buffer: messages and list entries have 29 and 32 bits for a length.
const LARGEST_BUFFER: u32 = 1 << 28;
const LEAST_BUFFER: u32 = 4096;
/// Seconds after which a silent connection is probed.
const KEEP_ALIVE: u32 = 7200;

/// The options and flags of a socket. Accepted sockets inherit the options of their listener.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) is_nonblocking: bool,
    /// The flags of `F_SETFD`, which have no effect.
    pub(crate) descriptor_flags: c_int,
    pub(crate) send_depth: u16,
    pub(crate) receive_depth: u16,
    pub(crate) inline: u16,
    pub(crate) io_maps: u16,
    send_buffer: u32,
    receive_buffer: u32,
    linger: Option<Duration>,
    pub(crate) keep_alive: bool,
    keep_alive_seconds: u32,
    reuse_address: bool,
    out_of_band_inline: bool,
    no_delay: bool,
    only_ipv6: bool,
    type_of_service: c_int,
    /// Path records for the connection, in place of those that the connection manager finds.
    pub(crate) route: Vec<u8>,
}

impl Default for Settings {
    /// The defaults of librdmacm.
    fn default() -> Self {
        Self {
            is_nonblocking: false,
            descriptor_flags: 0,
            send_depth: 384,
            receive_depth: 384,
            inline: 64,
            io_maps: 0,
            send_buffer: 1 << 17,
            receive_buffer: 1 << 17,
            linger: None,
            keep_alive: false,
            keep_alive_seconds: KEEP_ALIVE,
            reuse_address: false,
            out_of_band_inline: false,
            no_delay: false,
            only_ipv6: false,
            type_of_service: 0,
            route: Vec::new(),
        }
    }
}

/// Whether an option changes more than the [`Settings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// The option of a connection identifier with this number, for the same value.
    Identifier(u32),
}

impl Settings {
    /// Bytes of the receive ring: a multiple of 32, so that both halves end on a word.
    pub(crate) fn receive_size(&self) -> usize {
        size(self.receive_buffer).next_multiple_of(32)
    }

    /// Bytes of the send ring.
    pub(crate) fn send_size(&self) -> usize {
        size(self.send_buffer).next_multiple_of(32)
    }

    /// The settings of a listener's connection: its options, but not its flags.
    pub(crate) fn for_accepted(&self) -> Self {
        Self { is_nonblocking: false, descriptor_flags: 0, ..self.clone() }
    }

    /// How long the close waits for data that is not sent.
    pub(crate) fn linger(&self) -> Duration {
        self.linger.unwrap_or(LINGER)
    }

    /// The interval of probes of a silent connection.
    pub(crate) fn probe_interval(&self) -> Option<Duration> {
        self.keep_alive.then(|| Duration::from_secs(self.keep_alive_seconds.into()))
    }

    /// Sets an option. The queues' and buffers' sizes cannot change once the socket `is_open`.
    pub(crate) fn set(&mut self, level: c_int, name: c_int, value: &[u8], is_open: bool) -> Result<Effect, Errno> {
        if level == SOL_RDMA && is_open {
            return Err(Errno::EINVAL);
        }
        if (level, name) == (SOL_RDMA, RDMA_ROUTE) {
            self.route = value.to_vec();
            return Ok(Effect::None);
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            return self.set_linger(value);
        }
        let number = value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)?;
        self.set_number(level, name, number, is_open)
    }

    fn set_linger(&mut self, value: &[u8]) -> Result<Effect, Errno> {
        let (on, seconds) = value.split_at_checked(size_of::<c_int>()).ok_or(Errno::EINVAL)?;
        let [on, seconds] = [on, seconds].map(|bytes| bytes.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)));
        let (on, seconds) = on.zip(seconds).ok_or(Errno::EINVAL)?;
        let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        self.linger = (on != 0).then_some(seconds);
        Ok(Effect::None)
    }

    fn set_number(&mut self, level: c_int, name: c_int, number: c_int, is_open: bool) -> Result<Effect, Errno> {
        let flag = number != 0;
        let depth = u16::try_from(number.max(0)).unwrap_or(u16::MAX).min(0xfffe);
        let buffer = u32::try_from(number.max(0)).unwrap_or_default().saturating_mul(2);
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
                self.reuse_address = flag;
                return Ok(Effect::Identifier(rdma_sys::RDMA_OPTION_ID_REUSEADDR));
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                self.type_of_service = number;
                return Ok(Effect::Identifier(rdma_sys::RDMA_OPTION_ID_TOS));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                self.only_ipv6 = flag;
                return Ok(Effect::Identifier(rdma_sys::RDMA_OPTION_ID_AFONLY));
            }
            // As in librdmacm, the buffers of an open socket keep their size.
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) if is_open => (),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.receive_buffer = buffer.clamp(LEAST_BUFFER, LARGEST_BUFFER),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.send_buffer = buffer.clamp(LEAST_BUFFER, LARGEST_BUFFER),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keep_alive = flag,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.out_of_band_inline = flag,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.no_delay = flag,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => match u32::try_from(number) {
                Ok(seconds) if seconds > 0 => self.keep_alive_seconds = seconds,
                _ => return Err(Errno::EINVAL),
            },
            // The transport decides these.
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => (),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG | libc::TCP_CONGESTION) => (),
            (SOL_RDMA, RDMA_SQSIZE) => self.send_depth = depth,
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_depth = depth,
            (SOL_RDMA, RDMA_INLINE) => self.inline = depth,
            (SOL_RDMA, RDMA_IOMAPSIZE) => self.io_maps = wire::from_scale(wire::to_scale(depth)),
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(Effect::None)
    }

    /// The value of an option that the settings hold.
    pub(crate) fn get(&self, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address.into(),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keep_alive.into(),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.out_of_band_inline.into(),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => to_int(self.receive_buffer),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => to_int(self.send_buffer),
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = self.linger.map_or(0, |linger| c_int::try_from(linger.as_secs()).unwrap_or(c_int::MAX));
                return Ok([c_int::from(self.linger.is_some()), seconds].map(c_int::to_ne_bytes).concat());
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => self.type_of_service,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.no_delay.into(),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => to_int(self.keep_alive_seconds),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_CONGESTION) => 1,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => 2048,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.only_ipv6.into(),
            (SOL_RDMA, RDMA_SQSIZE) => self.send_depth.into(),
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_depth.into(),
            (SOL_RDMA, RDMA_INLINE) => self.inline.into(),
            (SOL_RDMA, RDMA_IOMAPSIZE) => self.io_maps.into(),
            (SOL_RDMA, RDMA_ROUTE) => return Ok(self.route.clone()),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        Ok(number.to_ne_bytes().to_vec())
    }
}

fn size(bytes: u32) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn to_int(number: u32) -> c_int {
    number.try_into().unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: c_int) -> [u8; 4] {
        value.to_ne_bytes()
    }

    #[test]
    fn an_option_is_read_back() {
        let mut settings = Settings::default();
        let set = [
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1, 1),
            (libc::SOL_SOCKET, libc::SO_RCVBUF, 8192, 16384),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, -1, 4096),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 7, 1),
            (SOL_RDMA, RDMA_SQSIZE, 1 << 20, 0xfffe),
            (SOL_RDMA, RDMA_IOMAPSIZE, 300, 256),
        ];
        for (level, name, value, expected) in set {
            assert_eq!(settings.set(level, name, &number(value), false), Ok(Effect::None));
            assert_eq!(settings.get(level, name).unwrap(), number(expected));
        }
        let linger = [number(1), number(3)].concat();
        settings.set(libc::SOL_SOCKET, libc::SO_LINGER, &linger, true).unwrap();
        assert_eq!(settings.get(libc::SOL_SOCKET, libc::SO_LINGER).unwrap(), linger);
        assert_eq!(settings.linger(), Duration::from_secs(3));
    }

    #[test]
    fn a_short_or_unknown_option_is_an_error() {
        let mut settings = Settings::default();
        let short = settings.set(libc::SOL_SOCKET, libc::SO_LINGER, &number(1)[..3], false);
        assert_eq!(short, Err(Errno::EINVAL));
        assert_eq!(settings.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, &[], false), Err(Errno::EINVAL));
        assert_eq!(settings.set(libc::SOL_SOCKET, libc::SO_DEBUG, &number(1), false), Err(Errno::EOPNOTSUPP));
        assert_eq!(settings.set(SOL_RDMA, RDMA_SQSIZE, &number(9), true), Err(Errno::EINVAL));
        assert_eq!(settings.get(libc::SOL_SOCKET, libc::SO_DEBUG), Err(Errno::EOPNOTSUPP));
    }
}
