//! A software RDMA device: libibverbs and librdmacm in Rust, between the processes of one host, and
//! of several hosts over TCP.
//!
//! [`ibverbs`] returns a table of functions with the names, signatures and conventions of
//! libibverbs. The objects are real verbs objects with the op tables of `verbs.h` filled in, so
//! every inline function of the header works on them, in C and in Rust. The device is called
//! `soft0`; `RDMA_SOFT_DEVICES` adds `soft1` and so on, and `RDMA_SOFT_NAMES` gives other names.
//! The device needs no kernel module, no root and no daemon: processes of one user find each other
//! by queue pair number and exchange data through shared memory.
//!
//! # Features
//!
//! Reliable connections (RC): send and RDMA write, both with and without immediate data; RDMA read,
//! compare-and-swap and fetch-and-add; inline data, gather and scatter lists, fences, solicited
//! events; completion channels and asynchronous events with pollable descriptors; the extended
//! interfaces `ibv_wr_*` and `ibv_cq_ex`. Errors, retries and timers follow the specification.
//!
//! Unreliable connections (UC): sends and RDMA writes, with and without immediate data. A message
//! is lost without an error if no receive is posted, or if the link has no free space for a second.
//!
//! Unreliable datagrams (UD): address handles, also made from completions; sends of up to 4096
//! bytes with and without immediate data; a 40-byte GRH area in front of each receive, filled as
//! the kernel's rxe fills it; Q_Keys; multicast groups across processes. The sender's completion
//! reports success also if the datagram is lost, which happens if
//!
//! * no queue pair has the destination number,
//! * the destination process is gone, or its ring has no free space for 20 ms,
//! * no receive is posted,
//! * the Q_Key differs, or
//! * the datagram is longer than the MTU.
//!
//! Datagrams to a process without a link wait up to a second for the link. A receive that is too
//! small fails with `IBV_WC_LOC_LEN_ERR` and moves its queue pair to the error state; a failed send
//! moves the queue pair to SQE, where it still receives.
//!
//! Shared receive queues serve queue pairs of every transport. Regions can be on-demand
//! (`IBV_ACCESS_ON_DEMAND`, for reliable connections), also implicitly, for the whole address
//! space.
//!
//! Connections ([`rdmacm`]): all of librdmacm except `AF_IB` addresses, to every IPv4 and IPv6
//! address of this host, with the events, states, private data, times and retries of Linux on RoCE.
//! Ports are names of abstract Unix sockets, so the kernel decides which process has a port and
//! frees the port when the process dies. When a process dies, its peers get the same events as if
//! the process had destroyed its ids.
//!
//! Several devices of a host are ports of one network, like several NICs on one switch: queue pairs
//! of any two of them connect, also within a process. Each device has a name, a GUID, a GID and,
//! with the link layer InfiniBand, a LID of its own. `soft0` has the addresses of the host, and
//! `soft1` to `soft63` have only the loopback addresses 127.0.0.2 to 127.0.0.64, one each.
//!
//! The connection manager puts an id on the device that has its local address; `soft0` has those
//! that no other device has. A listener on a wildcard address takes requests to all devices. An id
//! that connects without a source address to a loopback address is on the device of that address,
//! because Linux chooses the same address as source.
//!
//! Memory that the processor cannot access, such as a GPU's, is registered with what copies it
//! ([`register_foreign`], [`CopierThreads`]): reliable connections send, write and read such memory
//! like any other, but atomics on it, and datagrams from and to it, fail. The copies run in a
//! thread of their own; while one runs, its queue pair waits, and other queue pairs go on. The end
//! of a region, and of a queue pair, waits up to 10 s for their copies, and then fails with
//! `EBUSY`.
//!
//! A forked child can open the device, also after its parent has opened it. In the child, the
//! parent's objects fail with `ENODEV`.
//!
//! Device memory is memory of the process. Timestamps of completions are nanoseconds of the
//! system's monotonic clock. Missing features fail with `EOPNOTSUPP`: other transports, memory
//! windows.
//!
//! # Environment
//!
//! | Variable | Meaning |
//! | --- | --- |
//! | `RDMA_SOFT=off` | the device list is empty |
//! | `RDMA_SOFT_DEVICES` | how many devices there are, 1 (the default) to 64; the same in all processes that connect to each other |
//! | `RDMA_SOFT_NAMES` | names of the devices, separated by commas, in place of `soft0`, `soft1` and so on; their number is that of the devices |
//! | `RDMA_SOFT_LINK_LAYER` | `ethernet` (RoCE v2, a GID for each IPv4 address of the host; the default) or `infiniband` |
//! | `RDMA_SOFT_PTRACER=off` | does not ask Yama to let peers prove that they may trace this process |
//! | `RDMA_SOFT_LOG` | what a program without a `tracing` subscriber prints on standard error: `off` (the default), `links` (errors, and why a link to another process was refused or has failed, once for each process and cause), or everything down to the level `error`, `warn`, `info`, `debug` or `trace` |
//! | `RDMA_SOFT_FAULT` | a plan of [`faults`], which are injected from the first open of a device |
//! | `RDMA_SOFT_TCP` | an IP address of this host, a network interface, or `auto` (the interface of the default route), with a port (4791 by default): `soft0` listens there, and reaches processes of other hosts that hold the same key; see below |
//! | `RDMA_SOFT_KEY`, `RDMA_SOFT_KEY_FD` | the key of `RDMA_SOFT_TCP`: a file that its owner alone can read (or a group, if root owns it), or the number of a descriptor |
//! | `RDMA_SOFT_TLS` | whether `soft0` encrypts and authenticates what it sends to other hosts: `on` (the default where the feature `tls` is compiled in) or `off`; the same on all hosts |
//! | `RDMA_SOFT_CM_TIMEOUT` | milliseconds (1 to 60000) after which the connection manager asks again, instead of 6000; its other times shrink or grow with it |
//!
//! Any other value of these variables is an error: the device list is NULL with `EINVAL`, and
//! [`check_environment`] names the variable.
//!
//! # Between hosts
//!
//! With `RDMA_SOFT_TCP`, or values of the program ([`tcp`]), queue pairs of `soft0` connect to
//! those of processes on other hosts, in other containers or of other users, over TCP: RC, UC and
//! UD with all operations. The address is the first GID; a GID that is not of this host leads to
//! that host. All hosts of a job use one port. Users and containers that share a network namespace
//! take an address each, such as 127.0.0.2 and 127.0.0.3.
//!
//! ```text
//! head -c 32 /dev/urandom | base64 >job.key; chmod 600 job.key        # once, then to each host
//! RDMA_SOFT_TCP=10.0.0.2 RDMA_SOFT_KEY=job.key soft-rdma ibv_rc_pingpong -g 0 10.0.0.1
//! ```
//!
//! Each side proves that it holds the key before anything else happens; a key that is missing,
//! short or readable by others is `EINVAL` at the first open of a device. A host that cannot be
//! reached, a number that no process has and a wrong key give `IBV_WC_RETRY_EXC_ERR`, and datagrams
//! are lost; the log says why. A host that is silent for 10 s counts as dead, and so does a process
//! that stands still for 10 s (in a debugger, or stopped) while frames wait for it.
//!
//! With the feature `tls`, which the programs of this workspace and `soft-rdma` have, all that
//! follows the proof is encrypted and authenticated by TLS 1.3, on processors with AES instructions
//! (on x86_64 also AVX2, BMI and ADX); on others the first open fails with `EINVAL` until
//! `RDMA_SOFT_TLS=off` is set. Two hosts of which one encrypts do not reach each other, and the
//! logs of both say why. Without the feature, or with `RDMA_SOFT_TLS=off`, nothing is encrypted:
//! use a network that you trust, or WireGuard.
//! The connection manager reaches the other hosts, too. Multicast stays within a host.
//!
//! # Platforms
//!
//! Linux, with glibc or musl. On macOS the crate compiles, and its list of devices is empty.
//!
//! # Modules
//!
//! The `engine` is the device without input and output: queue pairs, regions, completion queues and
//! timers as a state machine. Around the engine are the links to other processes, the node that
//! drives the engine and the links, and the verbs objects. The connection manager uses the verbs as
//! an application does.

// Files. Larger folders have a map of their own in `mod.rs`.
//
//   cm/        librdmacm, on the verbs of this device as an application is
//   verbs/     the verbs: C objects, checks of attributes, channels and event descriptors
//   parts.rs   the verbs that wait, in parts, for the drop-in library
//   copier.rs  threads that copy memory which the engine does not access
//   faults.rs, counters.rs, tcp.rs
//              the public interfaces of the plan of faults, the counters, and the links to other
//              hosts
//   node/      the engine, its links and the agent thread behind one lock
//   link/      rings in shared memory, doorbells, the handshake of two processes
//   engine/    the device without input and output
//   log.rs     the queue of log events, which the agent emits
//   os/        system calls
//   elsewhere.rs
//              takes the place of all but the engine on systems other than Linux

#[cfg(target_os = "linux")]
mod cm;
#[cfg(target_os = "linux")]
mod copier;
mod counters;
#[cfg(any(test, not(target_os = "linux")))]
#[cfg_attr(test, allow(dead_code, unreachable_pub, reason = "a stand-in that a test uses in part"))]
mod elsewhere;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, unused_imports, reason = "nothing drives it"))]
mod engine;
pub mod faults;
#[cfg(target_os = "linux")]
mod link;
#[cfg(target_os = "linux")]
mod log;
#[cfg(target_os = "linux")]
mod node;
#[cfg(target_os = "linux")]
mod os;
#[cfg(target_os = "linux")]
pub mod parts;
#[cfg(target_os = "linux")]
pub mod tcp;
#[cfg(target_os = "linux")]
mod threads;
#[cfg(target_os = "linux")]
mod verbs;

#[cfg(not(target_os = "linux"))]
use elsewhere::{cm, copier, node, os, verbs};

pub use cm::rdmacm;
pub use copier::CopierThreads;
pub use counters::{Counters, counters};
#[cfg(not(target_os = "linux"))]
pub use elsewhere::tcp;
pub use os::failed_call;
#[cfg(target_os = "linux")]
pub use verbs::{check_device_names, device_names};
pub use verbs::{check_environment, ibverbs, register_foreign};

/// The programs of the README are doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
