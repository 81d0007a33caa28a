//! Memory that a device or another process may touch at any time.
//!
//! A peer may read or write a registered buffer at any time, so plain loads, `memcpy` and `&[u8]`
//! over such memory are data races. This crate is the one place where it is accessed:
//!
//! * [`copy()`] and [`copy_ordered`] move bytes as if each were a relaxed atomic access, at the
//!   speed of `memcpy`;
//! * [`word`] has aligned atomic words on raw memory;
//! * [`SharedMemory`] is memory that other processes may map, and [`Mapping`] is a peer's view of
//!   it;
//! * [`shared::find`] tells whether a range of addresses lies in a [`SharedMemory`] of this
//!   process.
//!
//! Nothing here knows about RDMA.

#[cfg(not(target_os = "linux"))]
compile_error!("rdma-mem needs Linux: memfd, seals and mremap");

mod copy;
pub mod shared;
pub mod word;

pub use copy::{copy, copy_ordered};
pub use shared::{Backing, Mapping, SharedMemory, SharedMemoryError};
