//! Remote slices: ranges of a peer's exposed memory, or of ours for a peer.

use std::ops::RangeBounds;

use super::buffer::resolve;
use crate::types::wire::{self, MEMORY, WireError};

/// A range of a peer's memory, with the key that gives access to it.
///
/// A remote slice is plain data: [`to_bytes`](Self::to_bytes) and [`from_bytes`](Self::from_bytes)
/// carry it over any channel. Using a wrong one is safe: the peer's device checks key, bounds and
/// rights, and refuses.
///
/// # Examples
///
/// ```
/// use rdma::RemoteSlice;
///
/// let whole = RemoteSlice::new(0x1000, 64, 7);
/// let part = whole.slice(8..16)?;
/// assert_eq!((part.address(), part.len()), (0x1008, 8));
/// assert!(whole.slice(60..65).is_err());
/// assert_eq!(RemoteSlice::from_bytes(&whole.to_bytes())?, whole);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSlice {
    address: u64,
    len: u64,
    rkey: u32,
}

impl RemoteSlice {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 21;
    /// The version of the format.
    const VERSION: u8 = MEMORY | 1;

    /// Makes a slice from its parts, for example as another program sent them.
    #[must_use]
    pub const fn new(address: u64, len: u64, rkey: u32) -> Self {
        Self { address, len, rkey }
    }

    /// The bytes to send: version, address, length and key. Numbers are in network byte order.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use rdma::{RemoteAccess, RemoteSlice};
    ///
    /// let region = pd.allocate_exposed(4096, RemoteAccess::READ)?;
    /// let slice = region.remote(..)?;
    /// assert_eq!(RemoteSlice::from_bytes(&slice.to_bytes())?, slice);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = Self::VERSION;
        bytes[1..9].copy_from_slice(&self.address.to_be_bytes());
        bytes[9..17].copy_from_slice(&self.len.to_be_bytes());
        bytes[17..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Decodes the bytes that a peer's [`to_bytes`](Self::to_bytes) made.
    ///
    /// # Errors
    ///
    /// The bytes have the wrong length or version, or are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let bytes: &[u8; Self::LEN] = wire::whole(bytes, Self::VERSION)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(word)
        };
        let rkey = u32::from_be_bytes([bytes[17], bytes[18], bytes[19], bytes[20]]);
        Ok(Self { address: word(1), len: word(9), rkey })
    }

    /// The address of the first byte, in the peer's address space.
    #[inline]
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The number of bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether the slice has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The remote key.
    #[inline]
    #[must_use]
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// A part of the slice.
    ///
    /// # Errors
    ///
    /// If the range does not lie in the slice.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use rdma::RemoteAccess;
    ///
    /// let region = pd.allocate_exposed(4096, RemoteAccess::READ)?;
    /// let all = region.remote(..)?;
    /// assert_eq!(all.slice(64..128)?.len(), 64);
    /// assert!(all.slice(..4097).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, RemoteSliceError> {
        let error = RemoteSliceError { len: self.len };
        let len = usize::try_from(self.len).map_err(|_| error)?;
        let range = resolve(range, len).ok_or(error)?;
        let address = self.address.checked_add(range.start as u64).ok_or(error)?;
        Ok(Self { address, len: range.len() as u64, rkey: self.rkey })
    }
}

/// The error of a range that does not lie in its [`RemoteSlice`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the range does not lie in the remote slice of {len} bytes")]
pub struct RemoteSliceError {
    len: u64,
}

debug_is_display!(RemoteSliceError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_format_is_fixed() {
        let slice = RemoteSlice::new(0x0102_0304_0506_0708, 0x1112_1314_1516_1718, 0x2122_2324);
        let wire =
            [0x41, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24];
        assert_eq!(slice.to_bytes(), wire);
        assert_eq!(RemoteSlice::from_bytes(&wire), Ok(slice));
    }

    #[test]
    fn other_bytes_are_refused() {
        let good = RemoteSlice::new(1, 2, 3).to_bytes();
        assert_eq!(RemoteSlice::from_bytes(&good[..20]), Err(WireError::Length { expected: 21, len: 20 }));
        assert_eq!(RemoteSlice::from_bytes(&[]), Err(WireError::Length { expected: 21, len: 0 }));
        let of_first = |first| {
            let mut bytes = good;
            bytes[0] = first;
            RemoteSlice::from_bytes(&bytes).unwrap_err().to_string()
        };
        assert!(of_first(0x42).contains("version 2, ours is 1"), "{}", of_first(0x42));
        assert!(of_first(1).contains("an endpoint of a connection, not a slice of remote memory"));
        assert!(of_first(0x81).contains("an endpoint for datagrams"));
    }

    #[test]
    fn parts_stay_inside() {
        let slice = RemoteSlice::new(100, 10, 1);
        assert_eq!(slice.slice(..).unwrap(), slice);
        assert_eq!(slice.slice(10..).unwrap(), RemoteSlice::new(110, 0, 1));
        assert!(slice.slice(..=10).is_err());
        assert!(slice.slice(..=usize::MAX).is_err());
        #[allow(clippy::reversed_empty_ranges, reason = "that is what is tested")]
        let reversed = slice.slice(5..4);
        assert!(reversed.is_err());
        assert!(slice.slice(..10).unwrap().slice(3..).unwrap().slice(8..).is_err());
        // An invalid slice of a peer, past the end of the address space.
        let nonsense = RemoteSlice::new(u64::MAX - 1, 100, 1);
        assert!(nonsense.slice(5..6).is_err());
    }
}
