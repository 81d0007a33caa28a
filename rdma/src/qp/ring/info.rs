//! The information in a slot about its request, in one word, so that one test recognises the common
//! case.

use crate::types::Opcode;

const COUNT: u64 = 0xffff;
const RUN_SHIFT: u32 = 16;
const RUN: u64 = 0x3fff_ffff;
const KEEPING: u64 = 1 << 46;
const SCOPED: u64 = 1 << 47;
const OPCODE_SHIFT: u32 = 48;
const FORCED: u64 = 1 << 56;
const DATAGRAM: u64 = 1 << 57;
/// The number of bits above those that describe how the request's memory comes back.
const REST: u32 = 16;

/// A description of a slot's request, in one word.
///
/// | bits | meaning |
/// | --- | --- |
/// | 0..16 | number of segments parked; 0 when scoped |
/// | 16..46 | number of slots directly before this one whose unsignaled or failed requests this one's completion releases |
/// | 46 | a keep-alive is parked (A1 of [`posting`](crate::qp::posting)) |
/// | 47 | the memory is lent by a scope |
/// | 48..56 | opcode |
/// | 56 | the ring signaled the request although it was posted unsignaled |
/// | 57 | a receive of a datagram queue pair |
#[derive(Clone, Copy)]
pub(crate) struct Info(u64);

#[allow(clippy::cast_possible_truncation, reason = "fields are cut out of the word")]
impl Info {
    /// A description of a request with `run` unsignaled requests before it and `count` segments. A
    /// run is shorter than a ring, which has at most 2^16 slots. A slot has room for no more
    /// segments than a list has elements, which is less than 2^16.
    #[inline(always)]
    pub(crate) const fn new(run: u32, count: usize, opcode: Opcode) -> Self {
        Self((run as u64) << RUN_SHIFT | count as u64 & COUNT | (opcode as u64) << OPCODE_SHIFT)
    }

    /// Sets the number of segments, which must be 0 before.
    #[inline(always)]
    pub(crate) const fn with_count(self, count: usize) -> Self {
        Self(self.0 | count as u64 & COUNT)
    }

    #[inline(always)]
    pub(crate) const fn scoped(self, scoped: bool) -> Self {
        Self(if scoped { self.0 | SCOPED } else { self.0 })
    }

    #[inline(always)]
    pub(crate) const fn forced(self, forced: bool) -> Self {
        Self(if forced { self.0 | FORCED } else { self.0 })
    }

    #[inline(always)]
    pub(crate) const fn keeping(self) -> Self {
        Self(self.0 | KEEPING)
    }

    /// The same information without the keep-alive, after that was taken out.
    #[inline]
    pub(crate) const fn without_keep_alive(self) -> Self {
        Self(self.0 & !KEEPING)
    }

    #[inline(always)]
    pub(crate) const fn datagram(self, datagram: bool) -> Self {
        Self(if datagram { self.0 | DATAGRAM } else { self.0 })
    }

    /// Whether the request has one segment, and no run, keep-alive or scope.
    #[inline(always)]
    pub(crate) const fn is_single(self) -> bool {
        self.0 << REST == 1 << REST
    }

    /// Whether the request has at most one segment, and no run, keep-alive or scope.
    #[inline(always)]
    pub(crate) const fn is_at_most_single(self) -> bool {
        self.0 << REST <= 1 << REST
    }

    /// Whether the request has no segment, run, keep-alive or scope.
    #[inline(always)]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 << REST == 0
    }

    #[inline]
    pub(crate) const fn run(self) -> u32 {
        (self.0 >> RUN_SHIFT & RUN) as u32
    }

    #[inline]
    pub(crate) const fn count(self) -> u16 {
        (self.0 & COUNT) as u16
    }

    #[inline]
    pub(crate) const fn opcode(self) -> Opcode {
        Opcode::from_u8((self.0 >> OPCODE_SHIFT) as u8)
    }

    pub(crate) const fn is_scoped(self) -> bool {
        self.0 & SCOPED != 0
    }

    pub(crate) const fn is_keeping(self) -> bool {
        self.0 & KEEPING != 0
    }

    pub(crate) const fn is_datagram(self) -> bool {
        self.0 & DATAGRAM != 0
    }

    pub(crate) const fn is_forced(self) -> bool {
        self.0 & FORCED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch() {
        for opcode in [Opcode::Send, Opcode::Write, Opcode::Read, Opcode::CompareSwap, Opcode::FetchAdd, Opcode::Recv] {
            for (run, count) in [(0, 0), (0, 1), (0xffff, 0), (7, 2), (0, 0xffff)] {
                for (scoped, forced) in [(false, false), (true, false), (false, true), (true, true)] {
                    let info = Info::new(run, count, opcode).scoped(scoped).forced(forced);
                    assert_eq!((info.run(), usize::from(info.count()), info.opcode()), (run, count, opcode));
                    assert_eq!((info.is_scoped(), info.is_forced()), (scoped, forced));
                    assert_eq!(info.is_single(), run == 0 && count == 1 && !scoped);
                    assert_eq!(info.is_empty(), run == 0 && count == 0 && !scoped);
                    assert_eq!(info.is_at_most_single(), info.is_single() || info.is_empty());
                    assert!(!info.is_keeping() && !info.is_datagram());
                    // The datagram bit changes nothing for the memory; a keep-alive must be taken
                    // out too.
                    let datagram = info.datagram(true);
                    assert_eq!((datagram.is_single(), datagram.is_empty()), (info.is_single(), info.is_empty()));
                    let keeping = datagram.keeping();
                    assert!(keeping.is_keeping() && keeping.is_datagram());
                    assert!(!keeping.is_single() && !keeping.is_empty());
                    assert_eq!((keeping.run(), usize::from(keeping.count())), (run, count));
                    assert_eq!((keeping.opcode(), keeping.is_forced()), (opcode, forced));
                    assert!(!keeping.without_keep_alive().is_keeping());
                    assert_eq!(keeping.without_keep_alive().is_single(), info.is_single());
                }
            }
        }
    }
}
