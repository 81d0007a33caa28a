//! The verbs of the device: the objects, the functions, and their conventions.
//!
//! The functions of this module are reached through the table that [`ibverbs`] returns, or through
//! the op tables inside the objects. They are safe functions; [`call`] makes the C functions of
//! `verbs.h` of them. Every caller of a verb, in C or Rust, makes the promises that the manual
//! pages ask for:
//!
//! 1. An object handed in is null or was made by this device, for that kind of argument, and is not
//!    destroyed meanwhile.
//! 2. A pointer to a structure is null or valid for the reads and writes that the verb makes, lists
//!    as long as they say, and nobody else writes to it meanwhile. The same holds of the objects
//!    and pointers in the structure.
//! 3. Registered memory stays mapped, with the rights it was registered with, until it is
//!    deregistered.
//! 4. No other thread uses a public field of an object during a call that reads or writes it.
//!
//! # Modules
//!
//! Each module imports only those above it:
//!
//! ```text
//!   errno, object, call     errors; objects that C points to; C functions of safe ones
//!   gate, event_queue, events, gid, device, strings, pages
//!   context                 an opened device, and the objects that live in it
//!   attr, pd, mr, ah, channel, cq, builder, qp
//!   post, mcast, async_event, cq_ex, qp_ex
//!   ops, table              the tables of functions
//! ```

mod ah;
mod async_event;
pub(crate) mod attr;
mod builder;
pub(crate) mod call;
mod channel;
pub(crate) mod context;
mod cq;
mod cq_ex;
pub(crate) mod device;
pub(crate) mod errno;
pub(crate) mod event_queue;
pub(crate) mod events;
mod gate;
pub(crate) mod gid;
mod mcast;
mod mr;
pub(crate) mod object;
pub(crate) mod ops;
mod pages;
mod pd;
mod post;
mod qp;
mod qp_ex;
mod qp_state;
mod strings;
mod table;

pub use device::{check_environment, is_soft};
pub use table::ibverbs;

use crate::engine::Errno;
