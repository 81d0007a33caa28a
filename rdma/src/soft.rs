//! Controls of the software device.
//!
//! [`faults`] makes requests on `soft0` fail as they fail on a network, so that a program can test
//! how it handles errors:
//!
//! ```
//! use rdma::op;
//! use rdma::soft::faults;
//! use rdma::{DeviceSelector, InitOptions, QueuePair, RemoteAccess, WcStatus};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let opened = rdma::open(&"soft0".parse::<DeviceSelector>()?)?;
//! # let pd = opened.context.alloc_pd()?;
//! # let cq = opened.context.create_cq(64)?;
//! # let options = InitOptions::new().port(opened.port).remote_access(RemoteAccess::WRITE);
//! # let a = QueuePair::builder(&pd).cq(&cq).build()?.init(&options)?;
//! # let b = QueuePair::builder(&pd).cq(&cq).build()?.init(&options)?;
//! # let (mut a, _b) = rdma_testkit::join(a, b)?;
//! # let region = pd.allocate_exposed(64, RemoteAccess::WRITE)?;
//! // `a` is connected, and `region` is its peer's memory.
//! faults::inject(&"access:write:nth=2".parse()?)?;
//! let mut poller = cq.poller();
//! for expected in [Ok(()), Err(WcStatus::REM_ACCESS_ERR)] {
//!     a.post_send(op::write(pd.allocate(64)?, region.remote(..)?))?;
//!     let mut completion = poller.wait(None)?.expect("no time limit");
//!     assert_eq!(completion.status().map_err(|error| error.status), expected);
//!     // The buffer comes back in either case.
//!     assert!(completion.take_buffer().is_some());
//! }
//! assert_eq!(faults::report()?.injected(), 1);
//! faults::clear()?;
//! # Ok(()) }
//! ```
//!
//! [`counters`] says what the device did in this process.
//!
//! [`tcp`] takes the address and the key by which `soft0` reaches other hosts.
//!
//! The environment variable `RDMA_SOFT_FAULT` does the same for a program that is not changed, in
//! any language.

pub use rdma_soft::{Counters, counters, faults, tcp};
