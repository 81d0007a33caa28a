//! A software RDMA device: libibverbs in Rust, between the processes of one host.
//!
//! [`ibverbs`] returns a table of functions with the names, signatures and conventions of libibverbs. What they hand out are real
//! verbs objects, with the op tables of `verbs.h` filled, so every inline function of the header, in C or in Rust, works on them.
//! The device is called `soft0`. It needs no kernel module, no root and no daemon: processes of one user find each other by the
//! numbers of their queue pairs and exchange data through shared memory.
//!
//! # What there is
//!
//! Reliable connections (RC): send, RDMA write (both also with immediate data), RDMA read, compare-and-swap and fetch-and-add;
//! inline data, gather and scatter lists, fences, solicited events; completion channels and asynchronous events with
//! descriptors that can be polled; the extended interfaces `ibv_wr_*` and `ibv_cq_ex`. Errors, retries and timers are the
//! specification's. What is missing fails with `EOPNOTSUPP`: other transports, shared receive queues, memory windows, address
//! handles, device memory.
//!
//! # Environment
//!
//! | Variable | Meaning |
//! | --- | --- |
//! | `RDMA_SOFT=off` | the device list is empty |
//! | `RDMA_SOFT_LINK_LAYER` | `ethernet` (RoCE v2, a GID for each IPv4 address of the host; the default) or `infiniband` |
//! | `RDMA_SOFT_PTRACER=off` | does not ask Yama to let peers prove that they may trace this process |
//!
//! # Modules
//!
//! The [`engine`] is the device without input and output: queue pairs, regions, completion queues and timers as a state machine.
//! Around it are the links to other processes, the node that drives both, and the verbs objects.

pub mod engine;
mod link;
mod node;
mod verbs;

pub use verbs::{ibverbs, is_soft};
