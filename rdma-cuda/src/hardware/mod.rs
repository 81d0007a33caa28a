//! Tests of what only a real driver and GPU can show; they are skipped elsewhere.
//!
//! `cargo test -p rdma-cuda hardware -- --nocapture` prints the findings, which `GPU.md` has for
//! the GPUs that we could use.

mod memory;
mod spin;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma::{InitOptions, QueuePair, RemoteAccess, op};
use rdma_test_support::say;

use crate::hardware::spin::Spinning;
use crate::{DeviceAttribute, FlushMethod, GpuBuffer, GpuRegion, Landed, Policy, Preference, Stream, testing};

/// Long enough that a request which does not wait has completed.
const MOMENT: Duration = Duration::from_millis(50);

#[test]
fn the_driver_has_every_function_and_knows_every_attribute() {
    let Some(gpu) = testing::hardware() else { return };
    say(&format!("{:?}, {gpu}, capability {:?}", gpu.driver(), gpu.compute_capability().unwrap()));
    assert_eq!(gpu.driver().missing(), [""; 0]);
    for (name, attribute) in [
        ("INTEGRATED", DeviceAttribute::INTEGRATED),
        ("CAN_FLUSH_REMOTE_WRITES", DeviceAttribute::CAN_FLUSH_REMOTE_WRITES),
        ("VIRTUAL_MEMORY_MANAGEMENT", DeviceAttribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
        ("POSIX_FILE_DESCRIPTOR", DeviceAttribute::POSIX_FILE_DESCRIPTOR_SUPPORTED),
        ("GPU_DIRECT_RDMA_WITH_CUDA_VMM", DeviceAttribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
        ("MEMORY_POOLS", DeviceAttribute(115)),
        ("GPU_DIRECT_RDMA", DeviceAttribute::GPU_DIRECT_RDMA_SUPPORTED),
        ("FLUSH_WRITES_OPTIONS", DeviceAttribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
        ("WRITES_ORDERING", DeviceAttribute::GPU_DIRECT_RDMA_WRITES_ORDERING),
        ("DMA_BUF", DeviceAttribute::DMA_BUF_SUPPORTED),
        ("HOST_ALLOC_DMA_BUF", DeviceAttribute::HOST_ALLOC_DMA_BUF_SUPPORTED),
    ] {
        say(&format!("attribute {name} ({}): {:?}", attribute.0, gpu.attribute(attribute)));
    }
    say(&format!("flush: {}", gpu.flush_method()));
}

#[test]
fn a_flush_succeeds_where_the_driver_says_so() {
    let Some(gpu) = testing::hardware() else { return };
    let start = Instant::now();
    let flushed = gpu.flush_rdma_writes();
    let first = start.elapsed();
    let start = Instant::now();
    let again = (0..100).all(|_| gpu.flush_rdma_writes().is_ok());
    say(&format!("cuFlushGPUDirectRDMAWrites: {flushed:?}, first {first:?}, then {:?} a call", start.elapsed() / 100));
    let can = gpu.attribute(DeviceAttribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS).unwrap() & 1 != 0;
    assert_eq!((flushed.is_ok(), again), (can, can));
    let slice = GpuBuffer::<u8>::new(&gpu, 64).unwrap().slice();
    let visible = Landed::new(slice).visible();
    assert_eq!(visible.is_ok(), gpu.flush_method() != FlushMethod::ReadBack);
}

#[test]
fn a_spinning_kernel_holds_back_what_is_sent_and_nothing_else() {
    let Some(gpu) = testing::hardware() else { return };
    let opened = rdma::open(&"soft0".parse().unwrap()).unwrap();
    let pd = opened.context.alloc_pd().unwrap();
    let required = Preference { policy: Policy::RequireDirect, ..Preference::default() };
    let [late, early, target] = [(); 3].map(|()| GpuBuffer::<u8>::new(&gpu, 100_000).unwrap());
    let register =
        |buffer: &GpuBuffer<u8>| GpuRegion::register(&pd, buffer.memory(), RemoteAccess::WRITE, required).unwrap();
    let regions = [&late, &early, &target].map(register);
    let (cq, peer_cq) = (opened.context.create_cq(64).unwrap(), opened.context.create_cq(64).unwrap());
    let options = InitOptions::new().port(opened.port);
    let [a, b] = [&cq, &peer_cq].map(|cq| QueuePair::builder(&pd).cq(cq).build().unwrap().init(&options).unwrap());
    let (mut qp, _peer) = rdma_testkit::join(a, b).unwrap();
    let mut poller = cq.poller();

    let (stream, other) = (Stream::new(&gpu).unwrap(), Stream::new(&gpu).unwrap());
    other.fill(&late.slice(), 1).unwrap();
    other.fill(&early.slice(), 2).unwrap();
    other.synchronize().unwrap();
    // What the kernel's stream writes afterwards is not ready as long as the kernel spins.
    let spinning = Spinning::start(&stream);
    stream.fill(&late.slice(), 3).unwrap();
    let mut pending = stream.ready_later(late.slice()).unwrap();
    std::thread::sleep(MOMENT);
    assert!(pending.poll().unwrap().is_none() && !stream.is_done().unwrap());

    // Other memory of the GPU is sent meanwhile.
    let content = |stream: &Stream| {
        let mut bytes = vec![0; target.len()];
        stream.download(&target.slice(), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "the bytes of one fill");
        bytes[0]
    };
    let remote = || regions[2].remote(&target.slice()).unwrap();
    let ready = other.ready(early.slice()).unwrap();
    qp.post_send(op::write(regions[1].source(&ready).unwrap(), remote())).unwrap();
    poller.wait(None).unwrap().unwrap().status().unwrap();
    assert_eq!(content(&other), 2);
    assert!(pending.poll().unwrap().is_none(), "the kernel still spins");

    spinning.end();
    let ready = pending.wait().unwrap();
    qp.post_send(op::write(regions[0].source(&ready).unwrap(), remote())).unwrap();
    poller.wait(None).unwrap().unwrap().status().unwrap();
    assert_eq!(content(&other), 3);
}

#[test]
fn a_forked_child_gets_errors_and_drops_what_it_has() {
    if testing::hardware().is_some() {
        rdma_test_support::passes_alone(&["hardware::process_that_forks"], &[]);
    }
}

#[test]
#[ignore = "run by a_forked_child_gets_errors_and_drops_what_it_has"]
fn process_that_forks() {
    let gpu = testing::driver().gpu(0).unwrap();
    let (stream, buffer) = (Stream::new(&gpu).unwrap(), GpuBuffer::<u32>::new(&gpu, 1000).unwrap());
    stream.fill(&buffer.slice(), 1).unwrap();
    stream.synchronize().unwrap();
    // SAFETY: fork requires that the child calls only what another thread cannot hold: no thread of
    // this process allocates or writes now, and a child that waits for ever is ended by the alarm.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            // SAFETY: alarm takes any number.
            unsafe { libc::alarm(20) };
            let result = stream.fill(&buffer.slice(), 2).and_then(|()| stream.synchronize());
            drop((stream, buffer));
            let code = result.err().and_then(|error| error.cuda().map(|error| error.code()));
            // SAFETY: _exit takes any number.
            unsafe { libc::_exit(if code.is_some() { 0 } else { 9 }) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).unwrap();
            say(&format!("a forked child: {status:?}"));
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    let mut numbers = vec![0; 1000];
    stream.download(&buffer.slice(), &mut numbers).unwrap();
    assert_eq!(numbers, [0x0101_0101; 1000]);
}

#[test]
fn a_dropped_buffer_of_a_running_kernel_stays() {
    let Some(gpu) = testing::hardware() else { return };
    let (stream, buffer) = (Stream::new(&gpu).unwrap(), GpuBuffer::<u8>::new(&gpu, 1 << 20).unwrap());
    let memory = Arc::downgrade(&buffer.memory());
    let spinning = Spinning::start(&stream);
    stream.fill(&buffer.slice(), 1).unwrap();
    drop(buffer);
    assert!(memory.upgrade().is_some());
    spinning.end();
    stream.synchronize().unwrap();
    assert!(memory.upgrade().is_none());
}
