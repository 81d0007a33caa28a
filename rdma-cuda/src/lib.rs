//! GPU memory for RDMA.
//!
//! This crate loads CUDA's driver library, `libcuda.so.1`, when a program first asks for a GPU.
//! Building it needs no CUDA toolkit, and on a machine without a driver each entry point returns
//! [`NoDriver`], which says what was tried.
//!
//! ```
//! use rdma_cuda::Gpu;
//!
//! match Gpu::all() {
//!     Ok(gpus) => gpus.iter().for_each(|gpu| println!("{} at {}", gpu.name(), gpu.pci_id())),
//!     Err(error) => println!("no GPU: {error}"),
//! }
//! ```
//!
//! # Environment
//!
//! `RDMA_LIBCUDA_PATH` names a library to load in place of `libcuda.so.1`.

mod attribute;
mod context;
mod detect;
mod driver;
mod error;
mod gpu;
#[cfg(test)]
mod testing;
mod topology;

pub use attribute::DeviceAttribute;
pub use detect::{Cause, Facts, GpuFacts, HostFacts, MemoryFacts, MemoryKind, NicFacts};
pub use driver::{Attempt, Driver, DriverVersion, NoDriver};
pub use error::{CudaError, Error, Result};
pub use gpu::{Gpu, Uuid};
pub use topology::{Distance, Level, ParseLevelError, Topology};
