//! Memory that a device or another process may touch at any time.
//!
//! A buffer that a peer may read or write over RDMA changes under our feet: plain loads, `memcpy` and `&[u8]` over it
//! are data races. This crate is the one place where such memory is accessed:
//!
//! * [`copy()`] and [`copy_ordered`] move bytes as if each were a relaxed atomic access, at `memcpy` speed;
//! * [`word`] has aligned atomic words on raw memory;
//! * [`SharedMemory`] is memory that other processes may map, and [`Mapping`] is such a process's view of it;
//! * [`shared::find`] tells whether a range of addresses lies in a [`SharedMemory`] of this process.
//!
//! Nothing here knows about RDMA.

#[cfg(not(target_os = "linux"))]
compile_error!("rdma-mem needs Linux: memfd, seals and mremap");

mod copy;
pub mod shared;
pub mod word;

pub use copy::{copy, copy_ordered};
pub use shared::{Backing, Mapping, SharedMemory};
