//! Memory that a device or another process may access at any time.
//!
//! A peer may read or write a registered buffer at any time, so plain loads, `memcpy` and `&[u8]`
//! over such memory are data races. All access to such memory goes through this crate:
//!
//! * [`copy()`] and [`copy_ordered`] move bytes as if each were a relaxed atomic access, at the
//!   speed of `memcpy`; [`copy_for_peer`] moves them to memory that another core reads next, and
//!   [`copy_from_peer`] from memory that another core has just written;
//! * [`word`] has aligned atomic words at raw addresses;
//! * [`SharedMemory`] is memory that other processes may map, and [`Mapping`] is a peer's view of
//!   it;
//! * [`Segment`] is memory that other processes may map to read, and [`SegmentView`] is a peer's
//!   view of it; [`SharedSlice`] is a bounds-checked range of such memory;
//! * [`process`] tells a process from its children, which must not use its mappings;
//! * [`pass`] moves a segment's descriptor to another process;
//! * [`reduce()`] combines the elements of several such ranges in one pass;
//! * [`Copier`] is the interface of what copies memory that the processor cannot access;
//! * [`shared::find`] returns the [`SharedMemory`] of this process that contains a range of
//!   addresses.
//!
//! This crate has no knowledge of RDMA.
//!
//! # Platforms
//!
//! Linux, with glibc or musl. On macOS the crate compiles: copies, words, slices and reductions
//! work, and whatever shares memory or a descriptor fails with `ENOSYS`.

// Files:
//
//   word.rs             aligned atomic words
//   copy.rs, copy/      copies: in assembly (`machine`) or as atomics (`portable`)
//   slice.rs            bounds-checked ranges of shared memory, behind safe functions
//   shared.rs, shared/  `SharedMemory` and `Mapping`; `segment` has memory that its owner alone
//                       can write
//   process.rs          tells a process from its children; functions that run around a fork
//   reduce.rs, reduce/  reductions: `element` has the arithmetic, `kernel` the loops, in assembly
//                       and vectors (`vectors`) or in Rust (`portable`)
//   pass.rs             descriptors that pass over a Unix socket
//   copier.rs           the interface of copiers
//   os.rs, os/          calls that only Linux has: on Linux, elsewhere

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!("rdma-mem needs Linux: memfd, seals and mremap (on macOS it compiles, and shares no memory)");

mod copier;
mod copy;
mod error;
#[cfg_attr(not(target_os = "linux"), path = "os/elsewhere.rs")]
mod os;
pub mod pass;
pub mod process;
pub mod reduce;
pub mod shared;
mod slice;
pub mod word;

pub use copier::{Copier, CopyFailed};
pub use copy::{copy, copy_for_peer, copy_from_peer, copy_ordered};
pub use error::SharedMemoryError;
pub use reduce::{Operation, Scalar, Stores, reduce};
pub use shared::{Backing, Mapping, Segment, SegmentView, SharedMemory, page_size};
pub use slice::{SharedSlice, SharedSliceMut, SliceError};

/// The programs of the README are doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
