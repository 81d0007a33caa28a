//! Writes a tensor of PyTorch into another one by RDMA; `pytorch.py` beside this file calls it.
//!
//! `cargo build --release -p rdma-cuda --features dlpack --example pytorch`, then `python3
//! rdma-cuda/examples/pytorch/pytorch.py target/release/examples/libpytorch.so`.

use std::error::Error;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma::op;
use rdma::{ConnectOptions, DeviceSelector, InitOptions, QueuePair, RemoteAccess};
use rdma_cuda::interop::dlpack::{DLManagedTensor, ManagedTensor};
use rdma_cuda::{Gpu, GpuRegion, GpuSlice, Landed, Preference, Ready};

/// Writes the bytes of one tensor into another one, and prints the way that they took. Both have
/// elements of `f32`, as many, and are taken over. Returns 0, or 1 after it has printed an error.
///
/// # Safety
///
/// Both are tensors of DLPack that the caller gives away, whose memory no work of the GPU uses.
#[unsafe(no_mangle)]
unsafe extern "C" fn write_tensor(from: NonNull<DLManagedTensor>, to: NonNull<DLManagedTensor>) -> c_int {
    // SAFETY: from_raw requires a tensor that the caller gives away, as this function.
    let [from, to] = [from, to].map(|tensor| unsafe { ManagedTensor::from_raw(tensor) });
    match write(from, to) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

fn write(from: ManagedTensor, to: ManagedTensor) -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::new(from.tensor().device.device_id)?;
    let slice = |tensor: ManagedTensor| tensor.into_slice::<f32>(&gpu).map_err(|(error, _tensor)| error);
    let (from, to) = (slice(from)?, slice(to)?);

    // Both sides are here; a program with a peer sends it the endpoint and the remote slice.
    let opened = rdma::open(&DeviceSelector::Any)?;
    let (pd, cq) = (opened.context.alloc_pd()?, opened.context.create_cq(64)?);
    let options = InitOptions::new().port(opened.port);
    let end = || QueuePair::builder(&pd).cq(&cq).build()?.init(&options).map_err(|failed| failed.error);
    let (here, there) = (end()?, end()?);
    let (to_here, to_there) = (here.endpoint(), there.endpoint());
    let mut here = here.connect(&to_there, &ConnectOptions::new())?;
    let _there = there.connect(&to_here, &ConnectOptions::new())?;

    let register = |slice: &GpuSlice<f32>, access| {
        GpuRegion::register(&pd, Arc::clone(slice.memory()), access, Preference::default())
    };
    let (source, target) = (register(&from, RemoteAccess::empty())?, register(&to, RemoteAccess::WRITE)?);
    // PyTorch has waited for the work that wrote the tensor.
    let ready = Ready::assume(from.bytes());
    here.post_send(op::write(source.source(&ready)?, target.remote(&to.bytes())?))?;
    let mut poller = cq.poller();
    poller.wait(None)?.ok_or("no completion")?.status()?;
    let visible = Landed::new(to).visible()?;
    println!("{} bytes on {gpu}: {}", visible.get().size(), target.path());
    Ok(())
}
