//! Memory that only a copier can access, such as a GPU's.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::panic::panic_any;
use std::sync::{Arc, Condvar, Mutex};

use rdma_mem::{Copier, CopyFailed};
use rdma_soft::CopierThreads;
use rdma_sys::*;

use crate::common::{Config, Request, Side, pair, verbs};

type Op = ibv_wr_opcode;

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
/// An address that no processor could access.
const ADDRESS: u64 = 0x7000_0000_0000_0000;
const LEN: usize = 1 << 20;
/// The first address whose copies are never held back.
const FREE: u64 = ADDRESS + LEN as u64 / 2;
const READ_AND_WRITE: u32 = 7;

/// Memory of a device, whose copies can be held back.
#[derive(Default)]
struct Device {
    bytes: Mutex<Vec<u8>>,
    /// Whether copies are held back, and how many have come.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Device {
    fn new() -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(vec![0; LEN]), ..Self::default() })
    }

    fn hold(&self, hold: bool) {
        self.state.lock().unwrap().0 = hold;
        self.changed.notify_all();
    }

    /// Waits until copies are held back.
    fn wait_for_copies(&self, count: usize) {
        let _held = self.changed.wait_while(self.state.lock().unwrap(), |state| state.1 < count).unwrap();
    }

    /// Lets a copy begin.
    fn pass(&self, address: u64) {
        if address >= FREE {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.0).unwrap();
        state.1 -= 1;
    }
}

/// The place of bytes in a device's memory.
fn range(address: u64, bytes: &[u8]) -> Range<usize> {
    let start = usize::try_from(address - ADDRESS).unwrap();
    start..start + bytes.len()
}

struct Copies(Arc<Device>);

impl Copier for Copies {
    unsafe fn read(&self, address: u64, mut bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        self.0.pass(address);
        let range = range(address, &bytes);
        bytes.copy_from_slice(&self.0.bytes.lock().unwrap()[range]);
        Ok(bytes)
    }

    unsafe fn write(&self, address: u64, bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        self.0.pass(address);
        self.0.bytes.lock().unwrap()[range(address, &bytes)].copy_from_slice(&bytes);
        Ok(bytes)
    }
}

/// Registers the memory of a device in the domain of one side.
fn register(side: &Side, device: &Arc<Device>) -> *mut ibv_mr {
    register_with(side, &CopierThreads::start(Copies(Arc::clone(device))).unwrap())
}

fn register_with(side: &Side, copier: &CopierThreads) -> *mut ibv_mr {
    // SAFETY: `register_foreign` requires a live domain, and memory that the copier may access: the
    // copier checks each address.
    let region = unsafe { rdma_soft::register_foreign(side.pd, copier, ADDRESS, LEN, READ_AND_WRITE) };
    assert!(!region.is_null(), "{}", std::io::Error::last_os_error());
    region
}

/// Two connected sides, of which the first writes to a device's memory at the second; the copy is
/// held back.
fn held_back() -> (Side, Side, Arc<Device>, *mut ibv_mr) {
    let device = Device::new();
    let (a, b, region) = held_back_by(&device, &CopierThreads::start(Copies(Arc::clone(&device))).unwrap());
    (a, b, device, region)
}

fn held_back_by(device: &Arc<Device>, copier: &CopierThreads) -> (Side, Side, *mut ibv_mr) {
    let (a, b) = pair(Config::default());
    let region = register_with(&b, copier);
    device.hold(true);
    let write = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[a.sge(0, 100)]);
    assert_eq!(a.post(&write.remote(ADDRESS, key(region)).flags(SIGNALED)), 0);
    device.wait_for_copies(1);
    (a, b, region)
}

fn key(region: *mut ibv_mr) -> u32 {
    // SAFETY: the region is alive.
    unsafe { (*region).rkey }
}

fn deregister(region: *mut ibv_mr) -> i32 {
    // SAFETY: the region is alive, and the callers do not use it afterwards.
    unsafe { (verbs().ibv_dereg_mr)(region) }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

#[test]
fn a_peer_writes_reads_and_sends() {
    let (a, b) = pair(Config { memory: LEN, ..Config::default() });
    let device = Device::new();
    let region = register(&b, &device);
    let data = pattern(700_000);
    a.put(0, &data);
    let write = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[a.sge(0, 700_000)]);
    assert_eq!(a.post(&write.remote(ADDRESS + 10, key(region)).flags(SIGNALED)), 0);
    a.success(1);
    assert!(device.bytes.lock().unwrap()[10..700_010] == data);

    a.put(0, &vec![0; 700_000]);
    let read = Request::new(Op::IBV_WR_RDMA_READ, 2, &[a.sge(0, 700_000)]);
    assert_eq!(a.post(&read.remote(ADDRESS + 10, key(region)).flags(SIGNALED)), 0);
    a.success(2);
    assert!(a.peek(0, 700_000) == data);

    assert_eq!(b.post_recv(3, &[ibv_sge { addr: ADDRESS, length: 4, lkey: key(region) }]), 0);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 4, &[a.sge(0, 4)]).flags(SIGNALED)), 0);
    a.success(4);
    b.success(3);
    assert_eq!(device.bytes.lock().unwrap()[..4], data[..4]);
    assert_eq!(deregister(region), 0);
}

#[test]
fn a_copy_that_is_held_back_holds_up_nobody_else_and_a_deregistration() {
    let (a, _b, device, region) = held_back();
    let (c, d) = pair(Config::default());

    for wr_id in 0..100 {
        assert_eq!(d.post_recv(wr_id, &[d.sge(0, 64)]), 0);
        assert_eq!(c.post(&Request::new(Op::IBV_WR_SEND, wr_id, &[c.sge(0, 64)]).flags(SIGNALED)), 0);
        c.success(wr_id);
        d.success(wr_id);
    }
    assert!(a.poll().is_none());

    let address = region.expose_provenance();
    let ending = std::thread::spawn(move || deregister(std::ptr::with_exposed_provenance_mut(address)));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!ending.is_finished(), "a copy accesses the memory");
    device.hold(false);
    assert_eq!(ending.join().unwrap(), 0);
    a.success(1);
}

#[test]
fn copies_of_several_queue_pairs_run_at_once() {
    let device = Device::new();
    let copier = CopierThreads::start(Copies(Arc::clone(&device))).unwrap();
    let held: Vec<_> = (1..=6)
        .map(|count| {
            let held = held_back_by(&device, &copier);
            device.wait_for_copies(count);
            held
        })
        .collect();

    // The copies of another queue pair pass those, and its region ends without them.
    let (c, d) = pair(Config::default());
    let region = register_with(&d, &copier);
    c.put(0, &pattern(64));
    for wr_id in 0..20 {
        let write = Request::new(Op::IBV_WR_RDMA_WRITE, wr_id, &[c.sge(0, 64)]);
        assert_eq!(c.post(&write.remote(FREE, key(region)).flags(SIGNALED)), 0);
        c.success(wr_id);
    }
    assert_eq!(device.bytes.lock().unwrap()[LEN / 2..][..64], pattern(64));
    assert_eq!(deregister(region), 0);
    assert!(held.iter().all(|(a, ..)| a.poll().is_none()));

    device.hold(false);
    for (a, _b, region) in &held {
        a.success(1);
        assert_eq!(deregister(*region), 0);
    }
}

#[test]
fn a_queue_pair_waits_for_its_copies_before_it_ends() {
    let (_a, b, device, region) = held_back();
    let other = Arc::clone(&device);
    let releasing = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        other.hold(false);
    });
    assert_eq!(b.set_state(ibv_qp_state::IBV_QPS_RESET), 0);
    releasing.join().unwrap();
    assert_eq!(device.state.lock().unwrap().1, 0, "the copy has ended");
    assert_eq!(deregister(region), 0);
}

#[test]
fn what_cannot_be_registered_is_refused() {
    let (a, _) = pair(Config::default());
    let copier = CopierThreads::start(Copies(Device::new())).unwrap();
    let attempt = |address, len, access| {
        // SAFETY: as in `register`; the registrations fail.
        let region = unsafe { rdma_soft::register_foreign(a.pd, &copier, address, len, access) };
        assert!(region.is_null());
        std::io::Error::last_os_error().raw_os_error()
    };
    assert_eq!(attempt(ADDRESS, 0, 7), Some(libc::EINVAL));
    assert_eq!(attempt(u64::MAX, 2, 7), Some(libc::EINVAL));
    assert_eq!(attempt(ADDRESS, 2, 2), Some(libc::EINVAL), "a remote write needs a local one");
    assert_eq!(attempt(ADDRESS, 2, 15), Some(libc::EOPNOTSUPP), "atomics");
}

/// A copier that keeps the bytes, against the contract.
struct Keeper;

impl Copier for Keeper {
    unsafe fn read(&self, _: u64, _: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        Ok(Vec::new())
    }

    unsafe fn write(&self, _: u64, bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        Ok(bytes[..bytes.len() / 2].to_vec())
    }
}

#[test]
fn a_copier_that_returns_another_length_fails_the_request() {
    let copier = CopierThreads::start(Keeper).unwrap();
    for op in [Op::IBV_WR_RDMA_WRITE, Op::IBV_WR_RDMA_READ] {
        let (a, b) = pair(Config::default());
        // SAFETY: `register_foreign` requires a live domain, and memory that the copier may access:
        // the copier accesses none.
        let region = unsafe { rdma_soft::register_foreign(b.pd, &copier, ADDRESS, LEN, READ_AND_WRITE) };
        let request = Request::new(op, 1, &[a.sge(0, 100)]).remote(ADDRESS, key(region));
        assert_eq!(a.post(&request.flags(SIGNALED)), 0);
        assert_ne!(a.wait().status, ibv_wc_status::IBV_WC_SUCCESS);
        assert_eq!(deregister(region), 0);
    }
}

/// The payload of a panic, which panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("expected by the test");
    }
}

struct Panics;

impl Copier for Panics {
    unsafe fn read(&self, _: u64, _: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        panic_any(Bomb)
    }

    unsafe fn write(&self, _: u64, _: Vec<u8>) -> Result<Vec<u8>, CopyFailed> {
        panic_any(Bomb)
    }
}

#[test]
fn a_copier_that_panics_fails_the_request_whatever_its_payload_does() {
    let copier = CopierThreads::start(Panics).unwrap();
    for op in [Op::IBV_WR_RDMA_WRITE, Op::IBV_WR_RDMA_READ] {
        let (a, b) = pair(Config::default());
        // The end of the copy is unknown, so these objects stay for ever.
        let b = ManuallyDrop::new(b);
        // SAFETY: `register_foreign` requires a live domain, and memory that the copier may access:
        // the copier accesses none.
        let region = unsafe { rdma_soft::register_foreign(b.pd, &copier, ADDRESS, LEN, READ_AND_WRITE) };
        let request = Request::new(op, 1, &[a.sge(0, 100)]).remote(ADDRESS, key(region));
        assert_eq!(a.post(&request.flags(SIGNALED)), 0);
        assert_ne!(a.wait().status, ibv_wc_status::IBV_WC_SUCCESS);
    }
}
