//! A stand-in for NVIDIA's `libcuda.so.1`: GPUs whose memory is in memory files, for tests on
//! machines without a GPU.
//!
//! It implements the functions of the driver API that `rdma-cuda` calls, by the same names, and is
//! loaded like the real library. It differs from a simulator in two ways that find mistakes:
//!
//! * **A device address is never readable.** Device addresses lie in a `PROT_NONE` reservation,
//!   and the bytes in memory files that are mapped elsewhere: code that dereferences a device
//!   pointer on the CPU ends with SIGSEGV.
//! * **Streams run late.** Each stream is a thread that begins its work after a delay, so code that
//!   does not wait for a copy reads old bytes.
//!
//! The kernels of `rdma-cuda` are known by name and done by the processor; other kernels cannot be
//! launched.
//!
//! The "dma-buf" of an export is a new open file description of the memory file, whose *file
//! position* is the start of the exported range, so that a fake NIC can map the range.
//!
//! # GPUs
//!
//! | Ordinal | Like | Writes ordering | Flush | dma-buf | VMM capable | GPUDirect RDMA |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | Hopper | all | host | yes | yes | yes |
//! | 1 | Ampere | none | host | yes | yes | yes |
//! | 2 | GeForce | none | none | no | no | no |
//! | 3 | Volta with an old driver | none | none | no | no | yes |
//!
//! # Environment
//!
//! | Variable | Meaning |
//! | --- | --- |
//! | `STAND_IN_GPUS` | number of GPUs, 0 to 4 |
//! | `STAND_IN_ATTRIBUTES` | `0:124=0,*:118=100`: values of attributes, by GPU or for all |
//! | `STAND_IN_VERSION` | the driver's version, such as 11040 |
//! | `STAND_IN_FAIL` | `cuInit=999,cuMemCreate=9999`: functions that always fail, and their codes |
//! | `STAND_IN_COPY_RATE` | MB/s of asynchronous copies, so that their time does not depend on the processor |
//! | `STAND_IN_DELAY_US` | how late an idle stream begins its work, in microseconds |
//!
//! [`Control`] makes single calls fail, and [`without`] makes a library that lacks functions.

#[allow(non_snake_case, reason = "CUDA's names")]
mod api;
mod codes;
mod control;
mod entry;
mod gpus;
mod knobs;
mod space;
mod work;

pub use control::{Control, path, without};
