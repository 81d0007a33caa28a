//! The libibverbs face of the device: the objects, the functions, and their conventions.
//!
//! The functions of this module have the signatures of `verbs.h` and are reached through the table that
//! [`ibverbs`] returns, or through the op tables inside the objects. "C's promise" in the reasoning for their
//! `unsafe` blocks is what the manual pages ask of every caller of a verb, in C or Rust:
//!
//! 1. an object handed in was made by this device, for that kind of argument, and is not destroyed meanwhile;
//! 2. a pointer to a structure is valid for the reads and writes that the verb makes, lists as long as they say, and nobody
//!    else writes to it meanwhile; an out parameter is valid for writes;
//! 3. registered memory stays mapped, with the rights it was registered with, until it is deregistered.

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
