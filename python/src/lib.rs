//! The native module of the Python package `rdma_collectives`: the communicator, started
//! operations, and the memory of Python's objects. What has logic of its own is in
//! `rdma-collectives`, or in Python.
//!
//! An operation runs in the thread of a [`Queue`](rdma_collectives::Queue), which never attaches to
//! the interpreter. The caller waits without the interpreter's lock, in slices, between which
//! signals are handled: so Ctrl-C ends a wait, while the operation goes on and keeps its memory.
//!
//! # Safety
//!
//! Python's objects and their memory are used by these rules, which the SAFETY comments cite:
//!
//! 1. The memory of an operation is that of an exported buffer or of a DLPack tensor, which is held
//!    from the start of the operation until its end (`memory::Memory` owns the holds, and the
//!    queue owns the memory). The exporter keeps it valid and in place: that is the contract of
//!    `PyObject_GetBuffer` and of DLPack.
//! 2. A hold ends in `memory::release`, with the interpreter's lock, and never in the thread of
//!    a queue: a dropped hold only joins a list.
//! 3. No Rust reference to that memory exists: it is read and written by `rdma_mem`'s copies, as
//!    memory that others may access at any time. Threads of Python may write to it during an
//!    operation, and get elements that are old, new or mixed.

mod communicator;
mod error;
mod job;
mod memory;
mod wait;
mod work;

use pyo3::prelude::*;

/// The module `rdma_collectives._native`.
// Locks of Python's interpreter are relied on (2).
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<work::Work>()?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))
}
