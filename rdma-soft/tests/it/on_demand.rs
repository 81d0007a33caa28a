//! On-demand regions: memory that may be unmapped at any time, also while a request uses it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::*;
use rdma_test_support::passes_alone;

use crate::common::{ALL_ACCESS, Config, Request, Side, pair, verbs};

type Op = ibv_wr_opcode;
type Status = ibv_wc_status;

const PAGE: usize = 1 << 16;
const ON_DEMAND: u32 = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
const FLUSH: u32 = IBV_ADVISE_MR_FLAG_FLUSH;

/// Addresses of this process, whose pages a test maps and unmaps. The test and the device access
/// them through the kernel alone.
#[derive(Clone, Copy)]
struct Pages {
    address: usize,
    len: usize,
}

impl Pages {
    /// Maps anonymous pages.
    fn map(pages: usize) -> Self {
        let len = pages * PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, FLAGS, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        let pages = Self { address: address.expose_provenance(), len };
        pages.renew(0, len, libc::PROT_READ | libc::PROT_WRITE);
        pages
    }

    /// Replaces pages by new ones.
    fn renew(self, at: usize, len: usize, protection: i32) {
        assert!(at + len <= self.len);
        let address = ptr::with_exposed_provenance_mut(self.address + at);
        // SAFETY: the range is one of `map`, to which no reference exists.
        let mapped = unsafe { libc::mmap(address, len, protection, FLAGS | libc::MAP_FIXED, -1, 0) };
        assert_eq!(mapped, address);
    }

    /// Replaces a page by the map of a file.
    fn map_file(self, page: usize, file: &File) {
        assert!((page + 1) * PAGE <= self.len);
        let address = ptr::with_exposed_provenance_mut(self.address + page * PAGE);
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the range is one of `map`, to which no reference exists.
        let mapped = unsafe { libc::mmap(address, PAGE, access, flags, file.as_raw_fd(), 0) };
        assert_eq!(mapped, address);
    }

    /// Makes a page inaccessible. A hole might be taken by another thread's mapping.
    fn remove(self, page: usize) {
        self.renew(page * PAGE, PAGE, libc::PROT_NONE);
    }

    fn addr(self, at: usize) -> u64 {
        (self.address + at) as u64
    }

    fn put(self, at: usize, bytes: &[u8]) {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the kernel checks the addresses; the range is one of `map`.
        let moved = unsafe { libc::process_vm_writev(own_pid(), &raw const local, 1, &self.at(at, bytes.len()), 1, 0) };
        assert_eq!(usize::try_from(moved), Ok(bytes.len()));
    }

    fn get(self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
        // SAFETY: as in `put`; the bytes are valid for writes.
        let moved = unsafe { libc::process_vm_readv(own_pid(), &raw const local, 1, &self.at(at, len), 1, 0) };
        assert_eq!(usize::try_from(moved), Ok(len));
        bytes
    }

    fn at(self, at: usize, len: usize) -> libc::iovec {
        assert!(at + len <= self.len);
        libc::iovec { iov_base: ptr::without_provenance_mut(self.address + at), iov_len: len }
    }
}

const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// The process's own number.
fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

/// A region, deregistered at the end of a test; it keeps no memory mapped.
struct Region(*mut ibv_mr);

impl Region {
    fn new(side: &Side, addr: usize, len: usize, access: u32) -> Result<Self, i32> {
        let addr = ptr::without_provenance_mut(addr);
        // SAFETY: a live domain; an on-demand region may name any memory, and requests of these
        // tests access pages of `Pages` only.
        let region = unsafe { verbs().ibv_reg_mr(side.pd, addr, len, access | ON_DEMAND) };
        if region.is_null() { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(Self(region)) }
    }

    fn of(side: &Side, pages: Pages) -> Self {
        Self::new(side, pages.address, pages.len, ALL_ACCESS).unwrap()
    }

    fn key(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { (*self.0).lkey }
    }

    fn sge(&self, addr: u64, length: u32) -> ibv_sge {
        ibv_sge { addr, length, lkey: self.key() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: a live region, which nobody uses afterwards.
        assert_eq!(unsafe { (verbs().ibv_dereg_mr)(self.0) }, 0);
    }
}

/// A connection whose sides both have an on-demand region of four pages. The regions end before
/// the sides.
struct Rig {
    regions: [Region; 2],
    pages: [Pages; 2],
    a: Side,
    b: Side,
}

impl Rig {
    fn new() -> Self {
        let (a, b) = pair(Config::default());
        let pages = [Pages::map(4), Pages::map(4)];
        let regions = [Region::of(&a, pages[0]), Region::of(&b, pages[1])];
        Self { regions, pages, a, b }
    }

    /// Posts a request of `len` bytes between page `from` of one region and page `to` of the other.
    fn post(&self, op: Op, wr_id: u64, (from, to): (usize, usize), len: u32) {
        let list = [self.regions[0].sge(self.pages[0].addr(from * PAGE), len)];
        let request = Request::new(op, wr_id, &list).remote(self.pages[1].addr(to * PAGE), self.regions[1].key());
        assert_eq!(self.a.post(&request), 0);
    }

    fn receive(&self, wr_id: u64, page: usize, len: u32) {
        let list = [self.regions[1].sge(self.pages[1].addr(page * PAGE), len)];
        assert_eq!(self.b.post_recv(wr_id, &list), 0);
    }
}

const LONG: u32 = 150_000;

#[test]
fn messages_move_between_on_demand_regions() {
    let rig = Rig::new();
    let data: Vec<u8> = (0..=250).cycle().take(LONG as usize).collect();
    rig.pages[0].put(0, &data);
    rig.post(Op::IBV_WR_RDMA_WRITE, 1, (0, 0), LONG);
    rig.a.success(1);
    assert!(rig.pages[1].get(0, data.len()) == data);

    // New pages under the same region.
    rig.pages[0].renew(0, rig.pages[0].len, libc::PROT_READ | libc::PROT_WRITE);
    rig.post(Op::IBV_WR_RDMA_READ, 2, (0, 0), LONG);
    rig.a.success(2);
    assert!(rig.pages[0].get(0, data.len()) == data);

    rig.receive(3, 1, LONG);
    rig.post(Op::IBV_WR_SEND, 4, (0, 0), LONG);
    rig.a.success(4);
    rig.b.success(3);
    assert!(rig.pages[1].get(PAGE, data.len()) == data);
}

#[test]
fn an_implicit_region_is_all_memory() {
    let (a, b) = pair(Config::default());
    let regions = [&a, &b].map(|side| Region::new(side, 0, usize::MAX, ALL_ACCESS).unwrap());
    let pages = [Pages::map(1), Pages::map(1)];
    pages[0].put(0, b"anywhere");
    let write = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[regions[0].sge(pages[0].addr(0), 8)]);
    assert_eq!(a.post(&write.clone().remote(pages[1].addr(40), regions[1].key())), 0);
    a.success(1);
    assert_eq!(pages[1].get(40, 8), b"anywhere");
    // No page lies at address 0, and none at the end of the address space.
    assert_eq!(a.post(&write.remote(u64::MAX - 20, regions[1].key())), 0);
    a.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_region_may_have_addresses_of_its_own() {
    let (a, b) = pair(Config::default());
    let pages = Pages::map(1);
    let access = ALL_ACCESS | ON_DEMAND;
    let addr = ptr::without_provenance_mut(pages.address);
    // SAFETY: as in `Region::new`.
    let region = unsafe { verbs().ibv_reg_mr_iova(b.pd, addr, pages.len, 1 << 60, access) };
    assert!(!region.is_null());
    let region = Region(region);
    a.put(0, b"offset");
    let write = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[a.sge(0, 6)]);
    assert_eq!(a.post(&write.remote((1 << 60) + 9, region.key())), 0);
    a.success(1);
    assert_eq!(pages.get(9, 6), b"offset");
}

#[test]
fn a_page_that_is_missing_or_not_writable_is_an_access_error() {
    for (op, status) in [(Op::IBV_WR_RDMA_WRITE, 1), (Op::IBV_WR_RDMA_READ, 1), (Op::IBV_WR_SEND, 2)] {
        // At the requester: page 1 of two.
        let rig = Rig::new();
        rig.receive(7, 0, LONG);
        rig.pages[0].remove(1);
        rig.post(op, 1, (0, 0), LONG);
        rig.a.expect(1, Status::IBV_WC_LOC_PROT_ERR);
        // At the responder.
        let rig = Rig::new();
        rig.receive(7, 0, LONG);
        rig.pages[1].remove(1);
        rig.post(op, 1, (0, 0), LONG);
        if status == 1 {
            rig.a.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
        } else {
            rig.a.expect(1, Status::IBV_WC_REM_OP_ERR);
            rig.b.expect(7, Status::IBV_WC_LOC_PROT_ERR);
        }
    }
    let rig = Rig::new();
    rig.pages[1].renew(0, PAGE, libc::PROT_READ);
    rig.post(Op::IBV_WR_RDMA_READ, 1, (0, 0), 8);
    rig.a.success(1);
    rig.post(Op::IBV_WR_RDMA_WRITE, 2, (0, 0), 8);
    rig.a.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
}

/// Any process that has the file can shorten it.
#[test]
fn a_page_of_a_file_that_was_shortened_is_an_access_error() {
    let file = File::from(rdma_mem::shared::memfd(c"shortened").unwrap());
    for (end, status) in [(0, Status::IBV_WC_LOC_PROT_ERR), (1, Status::IBV_WC_REM_ACCESS_ERR)] {
        for op in [Op::IBV_WR_RDMA_WRITE, Op::IBV_WR_RDMA_READ] {
            let rig = Rig::new();
            file.set_len(PAGE as u64).unwrap();
            rig.pages[end].map_file(0, &file);
            rig.post(op, 1, (0, 0), 8);
            rig.a.success(1);
            file.set_len(0).unwrap();
            rig.post(op, 2, (0, 0), 8);
            rig.a.expect(2, status);
        }
    }
}

#[test]
fn atomics_on_an_on_demand_region_are_refused() {
    let rig = Rig::new();
    let (addr, key) = (rig.pages[1].addr(0), rig.regions[1].key());
    let add = Request::new(Op::IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &[rig.a.sge(0, 8)]).remote(addr, key);
    assert_eq!(rig.a.post(&add), 0);
    rig.a.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(rig.pages[1].get(0, 8), [0; 8]);
}

#[test]
fn pages_may_come_and_go_while_requests_use_them() {
    let stop = AtomicBool::new(false);
    let pages = [Pages::map(4), Pages::map(4)];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for of in pages {
                    of.remove(1);
                    of.renew(0, of.len, libc::PROT_READ | libc::PROT_WRITE);
                }
            }
        });
        for round in 0..20 {
            let (a, b) = pair(Config::default());
            let regions = [Region::of(&a, pages[0]), Region::of(&b, pages[1])];
            let op = if round % 2 == 0 { Op::IBV_WR_RDMA_WRITE } else { Op::IBV_WR_RDMA_READ };
            let list = [regions[0].sge(pages[0].addr(0), LONG)];
            for wr_id in 0..10 {
                let request = Request::new(op, wr_id, &list).remote(pages[1].addr(0), regions[1].key());
                assert_eq!(a.post(&request), 0);
                let status = a.wait().status;
                let expected = [Status::IBV_WC_SUCCESS, Status::IBV_WC_LOC_PROT_ERR, Status::IBV_WC_REM_ACCESS_ERR];
                assert!(expected.contains(&status), "{status:?}");
                if status != Status::IBV_WC_SUCCESS {
                    break;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let (a, _) = pair(Config::default());
    let attempt = |addr, len, access| Region::new(&a, addr, len, access).err();
    assert_eq!(attempt(1 << 20, 0, 1), Some(libc::EINVAL));
    assert_eq!(attempt(usize::MAX - 5, 100, 1), Some(libc::EINVAL));
    assert_eq!(attempt(1 << 20, usize::MAX, 1), Some(libc::EINVAL));
    assert_eq!(attempt(1 << 20, 10, 2), Some(libc::EINVAL), "a remote write needs a local one");
    assert_eq!(attempt(1 << 20, 10, 1), None, "nothing need be mapped");
}

#[test]
fn pages_can_be_prefetched() {
    let rig = Rig::new();
    let advise = |advice, flags, list: &mut [ibv_sge]| {
        let len = u32::try_from(list.len()).unwrap();
        // SAFETY: a live domain, and a list of this length.
        unsafe { ibv_advise_mr(rig.a.pd, advice, flags, list.as_mut_ptr(), len) }
    };
    let [region, _] = &rig.regions;
    let mut list = [0, 1].map(|page| region.sge(rig.pages[0].addr(page * PAGE), 100));
    let all =
        [IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT];
    for advice in all {
        assert_eq!(advise(advice, 0, &mut list), 0);
        assert_eq!(advise(advice, FLUSH, &mut list), 0);
        assert_eq!(advise(advice, FLUSH, &mut []), libc::EINVAL);
        assert_eq!(advise(advice, 1 << 5, &mut list), libc::EINVAL);
        // Not on demand.
        assert_eq!(advise(advice, 0, &mut [rig.a.sge(0, 8)]), libc::EFAULT);
        // Beyond the region.
        assert_eq!(advise(advice, 0, &mut [region.sge(rig.pages[0].addr(0) - 1, 8)]), libc::EFAULT);
    }
    rig.pages[0].remove(1);
    assert_eq!(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, FLUSH, &mut list), libc::EFAULT);
    assert_eq!(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &mut list), 0, "a request may need no such page");
    assert_eq!(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, FLUSH, &mut list), 0);
    rig.pages[0].renew(0, PAGE, libc::PROT_READ);
    assert_eq!(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, FLUSH, &mut list[..1]), libc::EFAULT);
    assert_eq!(advise(ib_uverbs_advise_mr_advice(9), 0, &mut list), libc::EOPNOTSUPP);
}

/// The capabilities of the first device.
fn capabilities(context: *mut ibv_context) -> ibv_odp_caps {
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: an open context, and a valid structure.
    assert_eq!(unsafe { verbs().ibv_query_device_ex(context, ptr::null(), &raw mut attr) }, 0);
    attr.odp_caps
}

#[test]
fn the_device_says_what_on_demand_regions_can_do() {
    let (a, _) = pair(Config::default());
    let caps = capabilities(a.context);
    assert_eq!(caps.general_caps, 3);
    let transports = caps.per_transport_caps;
    // Sends, receives, writes and reads, and shared receive queues.
    assert_eq!((transports.rc_odp_caps, transports.uc_odp_caps, transports.ud_odp_caps), (0x2f, 0, 0));
}

/// Lets `process_vm_readv` and `process_vm_writev` fail with `EPERM` in this thread and the
/// threads that it starts.
fn forbid_copies() {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SYS_process_vm_readv, SYS_process_vm_writev};
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let is = |number, jt, jf| step(BPF_JMP | BPF_JEQ | BPF_K, jt, jf, u32::try_from(number).unwrap());
    let mut filter = [
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        is(SYS_process_vm_readv, 1, 0),
        is(SYS_process_vm_writev, 0, 1),
        step(BPF_RET | BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(BPF_RET | BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 5, filter: filter.as_mut_ptr() };
    // SAFETY: `PR_SET_NO_NEW_PRIVS` takes numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: a filter of five steps, which the kernel copies.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }, 0);
}

#[test]
fn a_process_that_may_not_copy_its_memory() {
    passes_alone(&["on_demand::without_copies"], &[]);
}

#[test]
#[ignore = "changes its process; run by a_process_that_may_not_copy_its_memory"]
fn without_copies() {
    forbid_copies();
    let a = Side::new(Config::default());
    let caps = capabilities(a.context);
    assert_eq!((caps.general_caps, caps.per_transport_caps.rc_odp_caps), (0, 0));
    assert_eq!(Region::new(&a, 1 << 20, 10, 1).err(), Some(libc::EOPNOTSUPP));
}
