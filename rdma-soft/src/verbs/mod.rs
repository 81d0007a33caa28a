//! The verbs of the device: its objects, its functions and their calling conventions.
//!
//! Callers reach the functions of this module through the table that [`ibverbs`] returns, or
//! through the op tables inside the objects. The functions are safe; [`call`] turns each of them
//! into the C function that `verbs.h` declares. Every caller of a verb, in C or Rust, makes the
//! promises that the manual pages demand:
//!
//! 1. A pointer to an object is null, or points to an object of the argument's type that this
//!    device made and that nobody destroys during the call.
//! 2. A pointer to a structure is null, or valid for the reads and writes that the verb makes; a
//!    list has as many entries as its length argument says; nobody else writes to the structure or
//!    list during the call. Promises 1 and 2 hold for the objects and pointers in the structure
//!    too.
//! 3. Registered memory stays mapped, with the access rights of its registration, until it is
//!    deregistered. The memory of an on-demand region may be unmapped at any time; a request may
//!    access whatever memory is mapped at the addresses that it names in the region.
//! 4. No other thread uses a public field of an object during a call that reads or writes it.
//! 5. A descriptor that C imports is not negative only if it is open, and the caller's own.
//!
//! # Modules
//!
//! One file for each verbs object, with its verbs as safe functions of typed arguments. Each row
//! imports only itself and those above it:
//!
//! ```text
//!   errno, object, call     errors; objects that C points to; C functions of safe ones
//!   gate, event_queue, events, gid, device, strings, pages, on_demand, commands
//!   context                 an opened device, and the objects that live in it
//!   attr, pd, mr, ah, channel, cq, srq, qp_state, builder, qp
//!   post, mcast, async_event, cq_ex, qp_ex
//!   ops, table              the tables of functions
//! ```
//!
//! # A new object
//!
//! For a memory window, a flow and the like, in this order; each step with its tests:
//!
//! 1. In the engine a table of its own beside `cq.rs` and `mr.rs`, held by `Tables`; the interface
//!    in `engine/objects.rs` names it by an id type of `types.rs`.
//! 2. Here a file with the C object ([`object::Public`]), its create and destroy functions, and
//!    their entries in `table.rs` and `ops.rs`. Its limits stand in `engine/limits.rs`, and
//!    `attr.rs` reports them.
//! 3. In `rdma` a room with the name of the object, whose C pointer a `Handle` owns: close, drop,
//!    leak and the check for forks. An object that a request in flight uses lives as long as the
//!    request: the slot keeps an `Arc` of it (`KeepAlive` in `ring`), as of an address handle.
//! 4. In `rdma-testkit/src/table.rs`, so that a test can make its create and destroy fail.
//!    SAFETY.md gets its invariants.

mod ah;
mod async_event;
pub(crate) mod attr;
mod builder;
pub(crate) mod call;
mod channel;
mod commands;
pub(crate) mod context;
mod cq;
mod cq_ex;
pub(crate) mod device;
mod dm;
pub(crate) mod errno;
pub(crate) mod event_queue;
pub(crate) mod events;
mod gate;
pub(crate) mod gid;
mod mcast;
mod mr;
mod names;
pub(crate) mod object;
mod on_demand;
pub(crate) mod ops;
mod pages;
pub(crate) mod pd;
mod post;
mod qp;
mod qp_ex;
mod qp_state;
mod srq;
mod strings;
mod table;

pub use call::READ;
pub use device::{check_environment, device_names};
pub use mr::register_foreign;
pub use names::check_device_names;
pub(crate) use table::{GET_ASYNC_EVENT, GET_CQ_EVENT};
pub use table::{GetAsyncEvent, GetCqEvent, ibverbs};

use crate::engine::Errno;
