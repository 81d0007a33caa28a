//! A software RDMA device: libibverbs and librdmacm in Rust, between the processes of one host.
//!
//! [`ibverbs`] returns a table of functions with the names, signatures and conventions of
//! libibverbs. The objects are real verbs objects, with the op tables of `verbs.h` filled,
//! so every inline function of the header, in C or in Rust, works on them. The device is called
//! `soft0`. It needs no kernel module, no root and no daemon: processes of one user find each other
//! by the numbers of their queue pairs and exchange data through shared memory.
//!
//! # Features
//!
//! Reliable connections (RC): send, RDMA write (both also with immediate data), RDMA read,
//! compare-and-swap and fetch-and-add; inline data, gather and scatter lists, fences, solicited
//! events; completion channels and asynchronous events with descriptors that can be polled; the
//! extended interfaces `ibv_wr_*` and `ibv_cq_ex`. Errors, retries and timers are the
//! specification's.
//!
//! Unreliable datagrams (UD): address handles, also made of completions; sends with and without
//! immediate data, of up to 4096 bytes; the 40 bytes in front of each receive as the kernel's rxe
//! fills them; Q_Keys; multicast groups across processes. A datagram is lost, and its sender's
//! completion says success, if no queue pair has the number, the process is gone or does not make
//! room for 20 ms, no receive is posted, the Q_Key is another, or it is longer than the MTU.
//! Datagrams to a new process wait for the link, for 100 ms at most. A receive that is too small
//! fails with `IBV_WC_LOC_LEN_ERR` and takes its queue pair to the error state; a send that fails
//! takes it to SQE, where it still receives.
//!
//! Connections ([`rdmacm`]): everything of librdmacm but shared receive queues and `AF_IB`
//! addresses, to every address of this host, IPv4 and IPv6, with the events, states, private data,
//! times and retries of Linux on RoCE. Ports are names of abstract Unix sockets, so the kernel says
//! which process has them, and frees them when a process dies; the peer of a process that dies is
//! told the same as if the process had destroyed its ids.
//!
//! A forked child can open the device, also after its parent has opened it. The parent's objects
//! fail with `ENODEV` there.
//!
//! Missing features fail with `EOPNOTSUPP`: other transports, shared receive queues, memory
//! windows, device memory.
//!
//! # Environment
//!
//! | Variable | Meaning |
//! | --- | --- |
//! | `RDMA_SOFT=off` | the device list is empty |
//! | `RDMA_SOFT_LINK_LAYER` | `ethernet` (RoCE v2, a GID for each IPv4 address of the host; the default) or `infiniband` |
//! | `RDMA_SOFT_PTRACER=off` | does not ask Yama to let peers prove that they may trace this process |
//! | `RDMA_SOFT_CM_TIMEOUT` | milliseconds (1 to 60000) after which the connection manager asks again, instead of 6000; its other times shrink or grow with it |
//!
//! Another value of these is an error: the device list is NULL with `EINVAL`, and
//! [`check_environment`] says which variable it is.
//!
//! # Modules
//!
//! The `engine` is the device without input and output: queue pairs, regions, completion queues
//! and timers as a state machine. Around it are the links to other processes, the node that drives
//! both, and the verbs objects. The connection manager stands beside them and uses the verbs as an
//! application does.

mod cm;
mod engine;
mod link;
mod log;
mod node;
mod os;
mod verbs;

pub use cm::rdmacm;
pub use os::failed_call;
pub use verbs::{check_environment, ibverbs, is_soft};
