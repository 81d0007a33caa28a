//! The wire format of rsocket streams, as librdmacm speaks it: connection data, messages in
//! immediate data, and the entries that peers write into each other's lists.
//!
//! Everything decoded here is from a peer and may hold any value.

use nix::errno::Errno;

/// The only version of the protocol.
const VERSION: u8 = 1;
/// Flag of connection data: the sender is big-endian.
const FLAG_BIG_ENDIAN: u8 = 1;
/// Flag of connection data: the field with the number of I/O maps is valid.
const FLAG_IO_MAPS: u8 = 2;
/// Bytes of connection data.
pub(crate) const CONNECT_DATA_LEN: usize = 40;
/// Entries of the list in which a peer announces receive buffers.
pub(crate) const TARGETS: u32 = 2;
/// The largest number of I/O maps that connection data can express.
pub(crate) const MAX_IO_MAPS: u16 = 127 << 8;

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IO_MAP: u32 = 6;
const CONTROL: u32 = 7;
const OPERATION_SHIFT: u32 = 29;
const ARGUMENT: u32 = (1 << OPERATION_SHIFT) - 1;

const DISCONNECT: u32 = 0;
const KEEP_ALIVE: u32 = 1;
const SHUTDOWN: u32 = 2;

/// A message in the immediate data of an RDMA write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// So many bytes were written to the receive buffer.
    Data(u32),
    /// The peer may send data until its count of data messages, modulo 2^16, is this number; an
    /// entry of the target list may have changed.
    Credits(u16),
    /// This entry of the list of I/O maps has changed.
    IoMap(u32),
    /// The peer neither sends nor receives any more.
    Disconnect,
    /// Nothing: shows that the connection works.
    KeepAlive,
    /// The peer sends no more data.
    Shutdown,
}

impl Message {
    /// The immediate data, in the host's byte order.
    pub(crate) fn encode(self) -> u32 {
        let (operation, argument) = match self {
            Self::Data(len) => (DATA, len),
            Self::Credits(limit) => (CREDITS, limit.into()),
            Self::IoMap(index) => (IO_MAP, index),
            Self::Disconnect => (CONTROL, DISCONNECT),
            Self::KeepAlive => (CONTROL, KEEP_ALIVE),
            Self::Shutdown => (CONTROL, SHUTDOWN),
        };
        operation << OPERATION_SHIFT | argument & ARGUMENT
    }

    /// Decodes immediate data. `EPROTO` for an operation that the protocol does not define.
    pub(crate) fn decode(immediate: u32) -> Result<Self, Errno> {
        let argument = immediate & ARGUMENT;
        match (immediate >> OPERATION_SHIFT, argument) {
            (DATA, len) => Ok(Self::Data(len)),
            #[allow(clippy::cast_possible_truncation, reason = "librdmacm's sum may have 17 bits")]
            (CREDITS, limit) => Ok(Self::Credits(limit as u16)),
            (IO_MAP, index) => Ok(Self::IoMap(index)),
            (CONTROL, DISCONNECT) => Ok(Self::Disconnect),
            (CONTROL, SHUTDOWN) => Ok(Self::Shutdown),
            // Librdmacm ignores the control messages that it does not know.
            (CONTROL, _) => Ok(Self::KeepAlive),
            _ => Err(Errno::EPROTO),
        }
    }
}

/// A range of registered memory of a peer, or of ours for the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) len: u32,
}

impl Range {
    /// Bytes of an encoded range.
    pub(crate) const LEN: usize = 16;

    /// The entry of a target list, for a peer of our byte order, or of the other one.
    pub(crate) fn encode(self, swapped: bool) -> [u8; Self::LEN] {
        let range = if swapped { self.swap_bytes() } else { self };
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&range.address.to_ne_bytes());
        bytes[8..12].copy_from_slice(&range.key.to_ne_bytes());
        bytes[12..].copy_from_slice(&range.len.to_ne_bytes());
        bytes
    }

    /// Decodes an entry of our own target list, which the peer has written in our byte order.
    pub(crate) fn decode(bytes: [u8; Self::LEN]) -> Self {
        let [address, rest] = halves(bytes);
        let [key, len] = words(rest);
        Self { address: u64::from_ne_bytes(address), key: u32::from_ne_bytes(key), len: u32::from_ne_bytes(len) }
    }

    fn swap_bytes(self) -> Self {
        Self { address: self.address.swap_bytes(), key: self.key.swap_bytes(), len: self.len.swap_bytes() }
    }

    fn to_network(self) -> [u8; Self::LEN] {
        self.encode(cfg!(target_endian = "little"))
    }

    fn from_network(bytes: [u8; Self::LEN]) -> Self {
        let range = Self::decode(bytes);
        if cfg!(target_endian = "little") { range.swap_bytes() } else { range }
    }
}

/// An entry of the list of I/O maps: memory that the other side may write, at an offset that the
/// owner of the memory has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoMap {
    pub(crate) offset: u64,
    pub(crate) range: Range,
}

impl IoMap {
    /// Bytes of an encoded entry.
    pub(crate) const LEN: usize = 8 + Range::LEN;

    /// The entry for a peer of our byte order, or of the other one.
    pub(crate) fn encode(self, swapped: bool) -> [u8; Self::LEN] {
        let offset = if swapped { self.offset.swap_bytes() } else { self.offset };
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&offset.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.range.encode(swapped));
        bytes
    }

    /// Decodes an entry of our own list, which the peer has written in our byte order.
    pub(crate) fn decode(bytes: [u8; Self::LEN]) -> Self {
        let (mut offset, mut range) = ([0; 8], [0; Range::LEN]);
        offset.copy_from_slice(&bytes[..8]);
        range.copy_from_slice(&bytes[8..]);
        Self { offset: u64::from_ne_bytes(offset), range: Range::decode(range) }
    }

    /// The memory from an offset on, at least one byte. `None` if the entry does not contain it.
    pub(crate) fn at(self, offset: u64) -> Option<Range> {
        let skipped = offset.checked_sub(self.offset)?;
        let len = u64::from(self.range.len).checked_sub(skipped).filter(|len| *len > 0)?;
        let address = self.range.address.wrapping_add(skipped);
        Some(Range { address, len: u32::try_from(len).ok()?, ..self.range })
    }
}

/// The private data of a connection request and of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectData {
    /// Data messages that the receiver of this may send at first.
    pub(crate) credits: u16,
    /// The sender's target list: its address and key, and the number of its entries.
    pub(crate) targets: Range,
    /// Entries of the list of I/O maps behind the target list.
    pub(crate) io_maps: u16,
    /// The first receive buffer.
    pub(crate) buffer: Range,
    /// Whether the sender's byte order is not ours.
    pub(crate) is_swapped: bool,
}

impl ConnectData {
    /// The data as bytes. The byte order that they announce is the host's.
    pub(crate) fn encode(&self) -> [u8; CONNECT_DATA_LEN] {
        let mut bytes = [0; CONNECT_DATA_LEN];
        bytes[0] = VERSION;
        bytes[1] = FLAG_IO_MAPS | if cfg!(target_endian = "big") { FLAG_BIG_ENDIAN } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = to_scale(self.io_maps);
        bytes[8..24].copy_from_slice(&self.targets.to_network());
        bytes[24..].copy_from_slice(&self.buffer.to_network());
        bytes
    }

    /// Decodes a peer's data, which the connection manager may have padded. `EPROTO` for a wrong
    /// length or version, and for a target list that is too short for the protocol.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Errno> {
        let bytes: &[u8; CONNECT_DATA_LEN] = bytes.first_chunk().ok_or(Errno::EPROTO)?;
        let range = |at: usize| {
            let mut range = [0; Range::LEN];
            range.copy_from_slice(&bytes[at..at + Range::LEN]);
            Range::from_network(range)
        };
        let (flags, targets) = (bytes[1], range(8));
        if bytes[0] != VERSION || targets.len < TARGETS {
            return Err(Errno::EPROTO);
        }
        Ok(Self {
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            io_maps: if flags & FLAG_IO_MAPS == 0 { 0 } else { from_scale(bytes[7]) },
            targets,
            buffer: range(24),
            is_swapped: (flags & FLAG_BIG_ENDIAN != 0) != cfg!(target_endian = "big"),
        })
    }
}

/// A number of I/O maps in eight bits, rounded down: up to 128 as it is, more in units of 256.
#[allow(clippy::cast_possible_truncation, reason = "both arms are below 256")]
pub(crate) fn to_scale(value: u16) -> u8 {
    if value <= 128 { value as u8 } else { 128 | (value.min(MAX_IO_MAPS) >> 8) as u8 }
}

/// The number of I/O maps that eight bits stand for.
pub(crate) fn from_scale(scale: u8) -> u16 {
    if scale <= 128 { scale.into() } else { u16::from(scale & 127) << 8 }
}

fn halves(bytes: [u8; 16]) -> [[u8; 8]; 2] {
    let (mut first, mut second) = ([0; 8], [0; 8]);
    first.copy_from_slice(&bytes[..8]);
    second.copy_from_slice(&bytes[8..]);
    [first, second]
}

fn words([a, b, c, d, e, f, g, h]: [u8; 8]) -> [[u8; 4]; 2] {
    [[a, b, c, d], [e, f, g, h]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_range()(address: u64, key: u32, len: u32) -> Range {
            Range { address, key, len }
        }
    }

    proptest! {
        #[test]
        fn any_immediate_data_is_a_message_or_an_error(immediate: u32) {
            if let Ok(message) = Message::decode(immediate) {
                prop_assert_eq!(Message::decode(message.encode()), Ok(message));
            }
        }

        #[test]
        fn connection_data_survives_the_wire(
            credits: u16, targets in any_range(), buffer in any_range(), scale: u8, padding in 0..16_usize,
        ) {
            let targets = Range { len: targets.len.max(TARGETS), ..targets };
            let data = ConnectData { credits, targets, io_maps: from_scale(scale), buffer, is_swapped: false };
            let mut bytes = data.encode().to_vec();
            bytes.resize(CONNECT_DATA_LEN + padding, 0);
            prop_assert_eq!(ConnectData::decode(&bytes), Ok(data));
        }

        #[test]
        fn any_bytes_are_connection_data_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(data) = ConnectData::decode(&bytes) {
                prop_assert!(data.targets.len >= TARGETS);
            }
        }

        #[test]
        fn entries_survive_the_wire(range in any_range()) {
            prop_assert_eq!(Range::decode(range.encode(false)), range);
            prop_assert_eq!(Range::decode(range.encode(true)), range.swap_bytes());
        }

        #[test]
        fn io_maps_survive_the_wire(offset: u64, range in any_range()) {
            let map = IoMap { offset, range };
            prop_assert_eq!(IoMap::decode(map.encode(false)), map);
            let swapped = IoMap { offset: offset.swap_bytes(), range: range.swap_bytes() };
            prop_assert_eq!(IoMap::decode(map.encode(true)), swapped);
        }

        #[test]
        fn any_io_map_yields_only_its_own_memory(offset: u64, range in any_range(), ahead in 0..u64::from(u32::MAX), at: u64) {
            let map = IoMap { offset, range };
            for at in [at, offset.wrapping_add(ahead), offset.wrapping_add(range.len.into())] {
                let Some(part) = map.at(at) else { continue };
                let skipped = part.address.wrapping_sub(range.address);
                prop_assert!(part.len > 0 && part.key == range.key);
                prop_assert_eq!(skipped + u64::from(part.len), range.len.into());
                prop_assert_eq!(offset + skipped, at);
            }
        }

        #[test]
        fn numbers_of_maps_are_rounded_down(value: u16) {
            let rounded = from_scale(to_scale(value));
            prop_assert!(rounded <= value && to_scale(rounded) == to_scale(value));
        }
    }

    #[test]
    fn the_bytes_are_those_of_librdmacm() {
        let range = |address, key, len| Range { address, key, len };
        let (targets, buffer) = (range(0x0102_0304_0506_0708, 0x1112_1314, 2), range(0x2122, 0x3132, 65536));
        let data = ConnectData { credits: 384, targets, io_maps: 16, buffer, is_swapped: false };
        let expected = [
            [1, FLAG_IO_MAPS | u8::from(cfg!(target_endian = "big")), 1, 128, 0, 0, 0, 16],
            [1, 2, 3, 4, 5, 6, 7, 8],
            [0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2],
            [0, 0, 0, 0, 0, 0, 0x21, 0x22],
            [0, 0, 0x31, 0x32, 0, 1, 0, 0],
        ];
        assert_eq!(data.encode().as_slice(), expected.concat());
        assert_eq!(Message::Data(5).encode(), 5);
        assert_eq!(Message::Credits(0xffff).encode(), 0x8000_ffff);
        assert_eq!(Message::IoMap(3).encode(), 0xc000_0003);
        assert_eq!(Message::Shutdown.encode(), 0xe000_0002);
    }
}
