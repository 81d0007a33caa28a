//! Wire formats: advertisements of memory, and the text of a ping.

use rdma::RemoteSlice;

use crate::Failure;

/// Bytes of every message.
pub(super) const MESSAGE: usize = 16;

/// An advertisement of a range of the client's memory: address, rkey and length, each in network
/// byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advert {
    address: u64,
    rkey: u32,
    size: u32,
}

impl Advert {
    /// Advertises a range.
    ///
    /// # Errors
    /// If the range is longer than 32 bits can say.
    pub fn of(slice: &RemoteSlice) -> Result<Self, Failure> {
        let size = u32::try_from(slice.len()).map_err(|_| Failure::new("a ping of 4 GiB cannot be told of"))?;
        Ok(Self { address: slice.address(), rkey: slice.rkey(), size })
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    /// Decodes a message.
    #[must_use]
    pub fn from_bytes(bytes: [u8; MESSAGE]) -> Self {
        let number = u128::from_be_bytes(bytes);
        #[allow(clippy::cast_possible_truncation, reason = "cut into its parts")]
        let (address, rkey, size) = ((number >> 64) as u64, (number >> 32) as u32, number as u32);
        Self { address, rkey, size }
    }

    /// The advertised range, which must have at least `least` bytes; more than `most` bytes are
    /// refused.
    ///
    /// # Errors
    /// If the range is too short, too long, or wraps around the address space.
    pub fn slice(self, least: usize, most: usize) -> Result<RemoteSlice, Failure> {
        let Self { address, rkey, size } = self;
        let nonsense = |why: String| Failure::new(format!("the client tells of {size} bytes at {address:#x}: {why}"));
        let length = size as usize;
        if length > most {
            return Err(nonsense(format!("a ping has at most {most}")));
        }
        if length < least {
            return Err(nonsense(format!("there is no room for {least}")));
        }
        if address.checked_add(size.into()).is_none() {
            return Err(nonsense("no memory is there".to_owned()));
        }
        Ok(RemoteSlice::new(address, size.into(), rkey))
    }
}

/// The letters of the text: the bytes from `A` to `z`.
const LETTERS: std::ops::RangeInclusive<u8> = 65..=122;

/// The text of a ping with its closing NUL: its number, and letters that start with a different one
/// each time.
pub(super) fn ping_text(number: u64, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{number}: ").into_bytes();
    let first = usize::try_from(number % LETTERS.len() as u64).unwrap_or(0);
    text.extend(LETTERS.cycle().skip(first).take(size.saturating_sub(text.len())));
    text.truncate(size);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

/// The part of the text before the first NUL; the whole text if there is none.
pub(super) fn until_nul(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertisement_is_in_network_byte_order() {
        let slice = RemoteSlice::new(0x0102_0304_0506_0708, 0x2122_2324, 0x1112_1314);
        let bytes = Advert::of(&slice).unwrap().to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24]);
        assert_eq!(Advert::from_bytes(bytes).slice(1, usize::MAX).unwrap(), slice);
        assert!(Advert::of(&RemoteSlice::new(0, 1 << 32, 0)).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        let advert = |address, size| Advert { address, rkey: 7, size };
        assert!(advert(0x1000, 64).slice(1, 64).is_ok());
        for (address, size) in [(0x1000, 65), (0x1000, 0), (u64::MAX, 64), (0x1000, u32::MAX)] {
            assert!(advert(address, size).slice(1, 64).is_err(), "{address:#x} {size}");
        }
        assert!(advert(0x1000, 10).slice(11, 64).is_err());
    }

    #[test]
    fn texts_are_those_of_rdmacm_utils() {
        assert_eq!(ping_text(0, 30), b"rdma-ping-0: ABCDEFGHIJKLMNOP\0");
        assert_eq!(ping_text(57, 30), b"rdma-ping-57: zABCDEFGHIJKLMN\0");
        assert_eq!(ping_text(58, 30), b"rdma-ping-58: ABCDEFGHIJKLMNO\0");
        assert_eq!(ping_text(u64::MAX, 26), b"rdma-ping-184467440737095\0");
        assert_eq!(ping_text(3, 65536).len(), 65536);
        assert_eq!(until_nul(&ping_text(3, 26)), b"rdma-ping-3: DEFGHIJKLMNO");
        assert_eq!((until_nul(b""), until_nul(b"no end")), (&b""[..], &b"no end"[..]));
    }
}
