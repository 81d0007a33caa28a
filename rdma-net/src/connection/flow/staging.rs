//! Exposed memory of a connection into which long messages are copied, for the peer to read.

use std::io::IoSlice;
use std::ops::Range;

use rdma::{Error, ErrorKind, ExposedRegion, ProtectionDomain, RemoteAccess, RemoteSlice, Result, Verb};

/// Alignment of the messages in bytes.
const ALIGN: usize = 64;
/// Messages of the longest length so far for which the region has space.
const MESSAGES: usize = 2;

/// A region with the messages that the peer has yet to read.
///
/// The region exists from the first message on. It grows for a longer message once the peer has
/// read all others, so the messages bound its length.
#[derive(Debug, Default)]
pub(super) struct Staging {
    region: Option<ExposedRegion>,
    /// The messages, by their offsets: as many as offers may be open.
    used: Vec<Range<usize>>,
}

impl Staging {
    fn capacity(&self) -> usize {
        self.region.as_ref().map_or(0, ExposedRegion::len)
    }

    /// The offset of a gap of `len` bytes.
    fn gap(&self, len: usize) -> Option<usize> {
        let mut at = 0;
        for used in &self.used {
            if used.start - at >= len {
                return Some(at);
            }
            at = used.end.next_multiple_of(ALIGN);
        }
        at.checked_add(len).filter(|&end| end <= self.capacity()).map(|_| at)
    }

    /// Whether [`put`](Self::put) has space for `len` bytes.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.used.is_empty() || self.gap(len).is_some()
    }

    /// Copies a message, the first `len` bytes of the slices: at most `longest` bytes, for which
    /// there is space. Returns its offset and the slice for the peer, and the region that a longer
    /// one has replaced.
    pub(super) fn put(
        &mut self,
        pd: &ProtectionDomain,
        slices: &[IoSlice<'_>],
        len: usize,
        longest: usize,
    ) -> Result<(usize, RemoteSlice, Option<ExposedRegion>)> {
        let mut replaced = None;
        if self.capacity() < len {
            let room = len.next_power_of_two().min(longest).next_multiple_of(ALIGN);
            let region = pd.allocate_exposed(MESSAGES * room, RemoteAccess::READ)?;
            replaced = self.region.replace(region);
        }
        let offset = self.gap(len).unwrap_or(0);
        let end = offset + len;
        let no_region = Error::new(Verb::Allocate, ErrorKind::OutOfMemory);
        let region = self.region.as_ref().ok_or(no_region)?;
        let mut at = offset;
        for slice in slices {
            let part = &slice[..slice.len().min(end - at)];
            region.copy_in_for_peer(at, part)?;
            at += part.len();
        }
        let slice = region.remote(offset..end)?;
        let place = self.used.partition_point(|used| used.start < offset);
        self.used.insert(place, offset..end);
        Ok((offset, slice, replaced))
    }

    /// Frees the memory of the message at an offset.
    pub(super) fn free(&mut self, offset: usize) {
        self.used.retain(|used| used.start != offset);
    }

    /// Takes the region, for the end of the connection.
    pub(super) fn take(&mut self) -> Option<ExposedRegion> {
        self.region.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pd() -> ProtectionDomain {
        rdma::open(&"soft0".parse().unwrap()).unwrap().context.alloc_pd().unwrap()
    }

    fn put(
        staging: &mut Staging,
        pd: &ProtectionDomain,
        message: &[u8],
        longest: usize,
    ) -> Result<(usize, RemoteSlice, Option<ExposedRegion>)> {
        staging.put(pd, &[IoSlice::new(message)], message.len(), longest)
    }

    #[test]
    fn messages_lie_apart_and_their_memory_is_used_again() {
        let (pd, mut staging) = (pd(), Staging::default());
        let (first, slice, _) = put(&mut staging, &pd, &[1; 1000], 1 << 20).unwrap();
        assert_eq!((first, slice.len()), (0, 1000));
        let (second, other, _) = put(&mut staging, &pd, &[2; 1000], 1 << 20).unwrap();
        assert!(other.address() >= slice.address() + 1000);
        assert!(!staging.has_room(1000));
        staging.free(first);
        assert!(staging.has_room(1000));
        assert_eq!(put(&mut staging, &pd, &[3; 900], 1 << 20).unwrap().0, first);
        staging.free(second);
        assert!(staging.has_room(1000) && !staging.has_room(5000));
    }

    #[test]
    fn a_message_is_the_first_bytes_of_its_slices() {
        let (pd, mut staging) = (pd(), Staging::default());
        let slices = [&[1_u8; 60][..], &[], &[2; 60], &[3; 60]].map(IoSlice::new);
        let (offset, slice, _) = staging.put(&pd, &slices, 100, 1 << 20).unwrap();
        let mut copied = [0; 101];
        staging.region.as_ref().unwrap().copy_out(offset, &mut copied).unwrap();
        assert_eq!((slice.len(), &copied[..60], &copied[60..100], copied[100]), (100, &[1; 60][..], &[2; 40][..], 0));
    }

    #[test]
    fn the_region_grows_once_the_peer_has_read_all() {
        let (pd, mut staging) = (pd(), Staging::default());
        let (offset, ..) = put(&mut staging, &pd, &[1; 100], 5000).unwrap();
        assert!(!staging.has_room(5000));
        staging.free(offset);
        assert!(staging.has_room(5000));
        let (.., replaced) = put(&mut staging, &pd, &[2; 5000], 5000).unwrap();
        assert!(replaced.is_some());
        assert_eq!(staging.capacity(), MESSAGES * 5056, "the longest message bounds the region");
    }
}
