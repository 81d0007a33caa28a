//! The information in a slot about its request. One comparison with a constant recognises the
//! common case.

use crate::types::Opcode;

const RUN: u32 = 0xffff;
const COUNT_SHIFT: u32 = 16;
const COUNT: u32 = 0x1fff;
const ROUTED: u32 = 1 << 29;
const KEEPING: u32 = 1 << 30;
const SCOPED: u32 = 1 << 31;
/// `memory` of a request with one segment that belongs to a poller, without run and keep-alive.
const SINGLE: u32 = 1 << COUNT_SHIFT;
const DATAGRAM: u32 = 1 << 8;

/// The most segments of a request that a description can hold.
pub(crate) const MAX_SEGMENTS: usize = COUNT as usize;

/// A description of a slot's request.
///
/// | bits of `memory` | meaning |
/// | --- | --- |
/// | 0..16 | number of slots directly before this one whose unsignaled or failed requests this one's completion releases |
/// | 16..29 | number of segments parked; 0 when scoped |
/// | 29 | the completion goes to the queue's results |
/// | 30 | a keep-alive is parked (A1 of [`posting`](crate::qp::posting)) |
/// | 31 | the memory is lent by a scope |
///
/// | bits of `request` | meaning |
/// | --- | --- |
/// | 0..8 | opcode |
/// | 8 | a receive of a datagram queue pair |
#[derive(Clone, Copy)]
pub(crate) struct Info {
    memory: u32,
    request: u32,
}

#[allow(clippy::cast_possible_truncation, reason = "fields are cut out of the words")]
impl Info {
    /// A description of a request with `run` unsignaled requests before it and `count` segments. A
    /// run is shorter than a ring, which has at most 2^16 slots. A slot has space for no more
    /// segments than a list has elements, which is at most [`MAX_SEGMENTS`].
    #[inline(always)]
    pub(crate) const fn new(run: u32, count: usize, opcode: Opcode) -> Self {
        debug_assert!(run <= RUN);
        Self { memory: run, request: opcode as u32 }.with_count(count)
    }

    /// Sets the number of segments, which must be 0 before.
    #[inline(always)]
    pub(crate) const fn with_count(self, count: usize) -> Self {
        Self { memory: self.memory | (count as u32 & COUNT) << COUNT_SHIFT, ..self }
    }

    #[inline(always)]
    pub(crate) const fn scoped(self, scoped: bool) -> Self {
        Self { memory: if scoped { self.memory | SCOPED } else { self.memory }, ..self }
    }

    #[inline(always)]
    pub(crate) const fn routed(self, routed: bool) -> Self {
        Self { memory: if routed { self.memory | ROUTED } else { self.memory }, ..self }
    }

    #[inline(always)]
    pub(crate) const fn keeping(self) -> Self {
        Self { memory: self.memory | KEEPING, ..self }
    }

    /// The same information without the keep-alive, after that was taken out.
    #[inline]
    pub(crate) const fn without_keep_alive(self) -> Self {
        Self { memory: self.memory & !KEEPING, ..self }
    }

    #[inline(always)]
    pub(crate) const fn datagram(self, datagram: bool) -> Self {
        Self { request: if datagram { self.request | DATAGRAM } else { self.request }, ..self }
    }

    /// Whether the request has one segment, and no run, keep-alive or scope.
    #[inline(always)]
    pub(crate) const fn is_single(self) -> bool {
        self.memory == SINGLE
    }

    /// Whether the request has at most one segment, and no run, keep-alive or scope.
    #[inline(always)]
    pub(crate) const fn is_at_most_single(self) -> bool {
        self.memory & !SINGLE == 0
    }

    /// Whether the request has no segment, run, keep-alive or scope.
    #[inline(always)]
    pub(crate) const fn is_empty(self) -> bool {
        self.memory == 0
    }

    #[inline]
    pub(crate) const fn run(self) -> u32 {
        self.memory & RUN
    }

    #[inline]
    pub(crate) const fn count(self) -> u16 {
        (self.memory >> COUNT_SHIFT & COUNT) as u16
    }

    #[inline]
    pub(crate) const fn opcode(self) -> Opcode {
        Opcode::from_u8(self.request as u8)
    }

    pub(crate) const fn is_scoped(self) -> bool {
        self.memory & SCOPED != 0
    }

    pub(crate) const fn is_routed(self) -> bool {
        self.memory & ROUTED != 0
    }

    /// Whether the request is routed and has one segment, and no run, keep-alive or scope.
    #[cfg(feature = "aio")]
    #[inline(always)]
    pub(crate) const fn is_routed_single(self) -> bool {
        self.memory == ROUTED | SINGLE
    }

    pub(crate) const fn is_keeping(self) -> bool {
        self.memory & KEEPING != 0
    }

    pub(crate) const fn is_datagram(self) -> bool {
        self.request & DATAGRAM != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch() {
        for opcode in [Opcode::Send, Opcode::Write, Opcode::Read, Opcode::CompareSwap, Opcode::FetchAdd, Opcode::Recv] {
            for (run, count) in [(0, 0), (0, 1), (0xffff, 0), (7, 2), (0, MAX_SEGMENTS)] {
                for scoped in [false, true] {
                    let info = Info::new(run, count, opcode).scoped(scoped);
                    assert_eq!((info.run(), usize::from(info.count()), info.opcode()), (run, count, opcode));
                    assert_eq!(info.is_scoped(), scoped);
                    assert_eq!(info.is_single(), run == 0 && count == 1 && !scoped);
                    assert_eq!(info.is_empty(), run == 0 && count == 0 && !scoped);
                    assert_eq!(info.is_at_most_single(), info.is_single() || info.is_empty());
                    assert!(!info.is_keeping() && !info.is_datagram());
                    let routed = info.routed(true);
                    assert!(routed.is_routed() && !info.is_routed());
                    assert!(!routed.is_at_most_single() && !routed.keeping().without_keep_alive().is_at_most_single());
                    assert_eq!((routed.run(), usize::from(routed.count())), (run, count));
                    // The datagram bit changes nothing for the memory; a keep-alive must be taken
                    // out too.
                    let datagram = info.datagram(true);
                    assert_eq!((datagram.is_single(), datagram.is_empty()), (info.is_single(), info.is_empty()));
                    let keeping = datagram.keeping();
                    assert!(keeping.is_keeping() && keeping.is_datagram());
                    assert!(!keeping.is_single() && !keeping.is_empty());
                    assert_eq!((keeping.run(), usize::from(keeping.count())), (run, count));
                    assert_eq!(keeping.opcode(), opcode);
                    assert!(!keeping.without_keep_alive().is_keeping());
                    assert_eq!(keeping.without_keep_alive().is_single(), info.is_single());
                }
            }
        }
    }
}
