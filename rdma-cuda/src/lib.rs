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
//! # Memory
//!
//! A [`GpuBuffer`] is memory that a NIC can access where the GPU allows it. The processor cannot
//! read it: there is no `&[T]` of a [`GpuSlice`], and copies on a [`Stream`] bring elements from
//! and to the host. Work keeps what it uses until it is done, so any handle can be dropped at any
//! time. An asynchronous copy owns its host memory, a [`PinnedBuffer`], until the copy is done.
//!
//! ```no_run
//! use rdma_cuda::{Gpu, GpuBuffer, Stream};
//!
//! # fn main() -> rdma_cuda::Result<()> {
//! let gpu = Gpu::new(0)?;
//! let stream = Stream::new(&gpu)?;
//! let buffer = GpuBuffer::<f32>::new(&gpu, 4)?;
//! stream.upload(&buffer.slice(), &[1.0, 2.0, 3.0, 4.0])?;
//! let part = buffer.slice().range(1..3)?;
//! let mut elements = [0.0; 2];
//! stream.download(&part, &mut elements)?;
//! assert_eq!(elements, [2.0, 3.0]);
//! # Ok(()) }
//! ```
//!
//! Memory that another crate has allocated implements [`DeviceMemory`].
//!
//! # The order between GPU and NIC
//!
//! | Direction | Type | How it is made |
//! | --- | --- | --- |
//! | GPU to NIC | [`Ready`] | by [`Stream::ready`], which waits for the work that writes the slice; [`Stream::ready_later`] can be polled or awaited |
//! | NIC to GPU | [`Landed`], then [`Visible`] | by [`GpuRegion::landed`] of what a completion returns, then by [`Landed::visible`], which does what this GPU needs: nothing, a flush, or a read by the NIC ([`ReadBack`]) |
//!
//! # The path between GPU and NIC
//!
//! [`GpuRegion::register`] registers memory with a NIC: by a dma-buf, or else by the kernel's peer
//! memory (`nvidia-peermem`). Where neither works, or GPU and NIC are far apart, bytes are staged
//! in host memory, if the program's [`Policy`] allows it. [`GpuRegion::path`] says which path is
//! used and why; each [`Cause`] against the direct path says what to do about it.
//!
//! The software device cannot access a GPU's memory: the GPU's driver copies for it, on a stream of
//! its own, for any memory that the driver can copy. So requests on GPU memory, and peers' access
//! to it, run on one host without a NIC. Atomics on such memory are refused.
//!
//! # Messages
//!
//! A [`GpuEndpoint`] sends messages from the memory of one GPU to that of another, in chunks. The
//! NIC reads and writes the GPU's memory where there is a direct path; else chunks go through
//! pinned host memory, so that copies and transfer overlap. [`GpuEndpoint::path`] says which, and
//! why. Each side chooses for itself. There are messages only: a peer cannot read or write memory
//! that its NIC cannot reach.
//!
//! ```no_run
//! use std::io::{self, Read, Write};
//! use std::net::TcpStream;
//!
//! use rdma::{ConnectOptions, Endpoint, InitOptions};
//! use rdma_cuda::{Gpu, GpuBuffer, GpuEndpoint, GpuEndpointOptions, Stream};
//!
//! fn exchange(peer: &mut TcpStream, own: &Endpoint) -> io::Result<Endpoint> {
//!     peer.write_all(&own.to_bytes())?;
//!     let mut bytes = [0; Endpoint::LEN];
//!     peer.read_exact(&mut bytes)?;
//!     Endpoint::from_bytes(&bytes).map_err(io::Error::other)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut socket = TcpStream::connect("peer.example:7471")?;
//! let opened = rdma::open(&rdma::DeviceSelector::Any)?;
//! let pd = opened.context.alloc_pd()?;
//! let (gpu, init) = (Gpu::new(0)?, InitOptions::new().port(opened.port));
//! let end = GpuEndpoint::prepare(&gpu, &pd, &init, GpuEndpointOptions::new())?;
//! let peer = exchange(&mut socket, &end.endpoint())?;
//! let mut end = end.connect(&peer, &ConnectOptions::new())?;
//! println!("{}", end.path());
//!
//! let (stream, buffer) = (Stream::new(&gpu)?, GpuBuffer::<u8>::new(&gpu, 1 << 20)?);
//! stream.fill(&buffer.slice(), 7)?;
//! end.send(&stream.ready(buffer.slice())?)?;
//! let received = end.recv(&buffer.slice())?;
//! println!("{received} bytes");
//! # Ok(()) }
//! ```
//!
//! # Reductions
//!
//! A [`Reducer`] has kernels that reduce slices of one GPU, for collectives: sum, product, minimum
//! and maximum of ten types. They are PTX in this crate, which the driver compiles.
//!
//! # Other GPUs, processes and files
//!
//! [`Stream::copy`] copies between GPUs of this host: directly where [`Gpu::can_access`] says so,
//! else the driver goes through host memory. [`GpuBuffer::new_shareable`] allocates memory that
//! another process of this host imports by a descriptor ([`GpuBuffer::share`],
//! [`GpuBuffer::import`]).
//!
//! NVIDIA calls three things GPUDirect: RDMA, between a GPU and a NIC, which this crate is about;
//! P2P, between GPUs, which the copies above use; and Storage, between a GPU and files, which is
//! NVIDIA's library cuFile and no part of this crate. To use both, give [`GpuSlice::address`] and
//! [`GpuSlice::size`] to `cuFileBufRegister`, keep the slice until after `cuFileBufDeregister`, and
//! take a [`Landed`] slice through [`Landed::visible`] before a file is written from it.
//!
//! Slices and tensors are exchanged with other libraries without a copy: with cudarc and, by
//! DLPack, with PyTorch, JAX and CuPy (features `cudarc` and `dlpack`, module [`interop`]).
//!
//! # Environment
//!
//! `RDMA_LIBCUDA_PATH` names a library to load in place of `libcuda.so.1`. `RDMA_CUDA_PATH`
//! (`direct`, `prefer`, `staged`) and `RDMA_CUDA_LEVEL` (`LOC`, `PIX`, `PXB`, `PHB`, `SYS`)
//! override a program's [`Preference`].

// Files:
//
//   region/                         `GpuRegion` registers GPU memory with a NIC
//   path.rs, detect/, topology/     the way taken; why a NIC cannot access a GPU's memory; how
//                                   far they are apart
//   endpoint/                       messages in chunks: `landing` (the path and its memory),
//                                   `sources`, `ring` (slots), `slot`
//   pinned_region.rs, read_back.rs  pinned host memory that peers access; reads by the NIC itself
//   reduce/                         kernels of reductions: `ptx` generates them, `mod` checks and
//                                   launches
//   interop/                        DLPack, cudarc
//   order.rs, flush.rs              `Ready`, `Landed`, `Visible`: the order between GPU and NIC;
//                                   what makes writes visible
//   memory/                         buffers and slices, dma-bufs, pinned host memory,
//                                   `SYNC_MEMOPS`
//   stream.rs, event.rs, pending.rs, waker.rs
//                                   work in streams; futures of its end
//   host_function.rs                host functions of streams, in which no call of the driver is
//                                   allowed
//   gpu.rs, gpu_name.rs, attribute.rs, context.rs
//                                   GPUs, their names and attributes; the current context of one
//                                   call
//   driver/, cuda_error.rs, error.rs
//                                   the functions of libcuda, and their results
//   hardware/                       tests of what only a real driver and GPU can show, for GPU.md
//   ../stand-in/                    a driver of memory files for tests; `knobs.rs` lists what a
//                                   test can change

mod attribute;
mod context;
mod cuda_error;
mod detect;
mod driver;
mod endpoint;
mod error;
mod event;
mod flush;
mod gpu;
mod gpu_name;
#[cfg(test)]
mod hardware;
mod host_function;
pub mod interop;
mod memory;
mod order;
mod panics;
mod path;
mod pending;
mod pinned_region;
mod read_back;
mod reduce;
mod region;
mod stream;
#[cfg(test)]
mod testing;
mod topology;
mod waker;

pub use attribute::DeviceAttribute;
pub use detect::{Cause, Facts, GpuFacts, HostFacts, MemoryFacts, MemoryKind, NicFacts};
pub use driver::{Attempt, Driver, DriverVersion, NoDriver};
pub use endpoint::{GpuEndpoint, GpuEndpointOptions, PreparedGpuEndpoint};
pub use error::{CudaError, Error, NotExportable, Result};
pub use event::Event;
pub use flush::FlushMethod;
pub use gpu::Gpu;
pub use gpu_name::{GpuName, InvalidGpuName, Uuid};
pub use memory::{
    AllocationKind, DeviceMemory, DmaBuf, GpuBuffer, GpuSlice, MemoryType, PinnedBuffer, PointerAttributes, SyncMemops,
};
pub use order::{Landed, NotVisible, OnGpu, Ready, Visible};
pub use path::{InvalidVariable, Path, Policy, Preference, Reason, Way};
pub use pending::Pending;
pub use pinned_region::PinnedRegion;
pub use rdma_mem::{Operation, Scalar};
pub use read_back::ReadBack;
pub use reduce::Reducer;
pub use region::{GpuRegion, RegionError};
pub use stream::Stream;
pub use topology::{Distance, Level, ParseLevelError, Topology};

/// The programs of the README are doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
