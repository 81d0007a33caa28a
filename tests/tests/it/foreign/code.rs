//! Objects of other code: of a program in C, and of the raw functions, which are there on machines
//! without a C compiler.

use std::ffi::{c_int, c_void};
use std::ptr;

use libloading::Library;
use rdma::{Context, ProtectionDomain};
use rdma_sys::*;
use rdma_test_support::Compiler;

/// The functions of the provider that `objects.c` gets.
#[repr(C)]
pub(super) struct Table {
    create_cq: unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
    destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
    destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    create_srq: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq,
    destroy_srq: unsafe extern "C" fn(*mut ibv_srq) -> c_int,
    reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
    dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int,
}

impl Table {
    pub(super) fn of(context: &Context) -> Self {
        let table = context.table();
        Self {
            create_cq: table.ibv_create_cq,
            destroy_cq: table.ibv_destroy_cq,
            create_qp: table.ibv_create_qp,
            destroy_qp: table.ibv_destroy_qp,
            create_srq: table.ibv_create_srq,
            destroy_srq: table.ibv_destroy_srq,
            reg_mr: table.ibv_reg_mr,
            dereg_mr: table.ibv_dereg_mr,
        }
    }
}

/// What the other code has made.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Objects {
    pub(super) cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) qps: [*mut ibv_qp; 2],
    pub(super) mr: *mut ibv_mr,
}

// SAFETY: addresses; any thread may call the functions of these objects.
unsafe impl Send for Objects {}

type Make = unsafe extern "C" fn(*const Table, *mut ibv_pd, *mut c_void, usize, c_int, *mut Objects) -> c_int;
type PostReceive = unsafe extern "C" fn(*mut Objects, u64, usize, u32) -> c_int;
type Unmake = unsafe extern "C" fn(*const Table, *mut Objects) -> c_int;

/// Code that makes objects, posts receives, and destroys what it has made.
pub(super) struct Code {
    make: Make,
    post_receive: PostReceive,
    unmake: Unmake,
}

/// The raw functions.
pub(super) const RAW: Code = Code { make: make_raw, post_receive: post_raw_receive, unmake: unmake_raw };

impl Code {
    /// Compiles and loads `objects.c`; none, and the test is skipped, without a C compiler.
    pub(super) fn of_c(name: &str) -> Option<Self> {
        let compiler = Compiler::find(format!("{}/foreign-{name}", env!("CARGO_TARGET_TMPDIR")))?;
        let path = compiler.output("objects.so");
        let arguments = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", &path];
        let compiled = compiler.run("objects", include_str!("objects.c"), &arguments).unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        // SAFETY: `new` requires an object whose constructors may run: it has none.
        let library = unsafe { Library::new(&path) }.unwrap();
        // Its functions stay.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: `get` requires the type of the function.
        let make = unsafe { library.get::<Make>(b"make") }.unwrap();
        // SAFETY: `get` requires the type of the function.
        let post_receive = unsafe { library.get::<PostReceive>(b"post_receive") }.unwrap();
        // SAFETY: `get` requires the type of the function.
        let unmake = unsafe { library.get::<Unmake>(b"unmake") }.unwrap();
        Some(Self { make: *make, post_receive: *post_receive, unmake: *unmake })
    }

    /// Makes the objects, with a shared receive queue for the second queue pair if `shares`.
    pub(super) fn make(&self, pd: &ProtectionDomain, memory: &mut [u8], shares: bool) -> Objects {
        let table = Table::of(&pd.context());
        let mut objects =
            Objects { cq: ptr::null_mut(), srq: ptr::null_mut(), qps: [ptr::null_mut(); 2], mr: ptr::null_mut() };
        let (start, len) = (memory.as_mut_ptr().cast(), memory.len());
        // SAFETY: the function requires the functions of the domain's provider, a live domain,
        // memory that stays until it is deregistered, and space for the objects.
        let line = unsafe { (self.make)(&raw const table, pd.as_raw(), start, len, shares.into(), &raw mut objects) };
        assert_eq!(line, 0, "a line of objects.c");
        objects
    }

    /// Posts a receive of the other code.
    pub(super) fn post_receive(&self, objects: &mut Objects, wr_id: u64, offset: usize, len: usize) {
        let len = u32::try_from(len).unwrap();
        // SAFETY: the function requires live objects, and a range of their memory.
        let line = unsafe { (self.post_receive)(objects, wr_id, offset, len) };
        assert_eq!(line, 0, "a line of objects.c");
    }

    /// Destroys the objects. It fails for one that is gone, or that something uses.
    pub(super) fn unmake(&self, context: &Context, mut objects: Objects) {
        let table = Table::of(context);
        // SAFETY: the function requires the functions of the provider, and objects that nobody
        // uses.
        let line = unsafe { (self.unmake)(&raw const table, &raw mut objects) };
        assert_eq!(line, 0, "a line of objects.c");
    }
}

/// `make` of `objects.c`.
unsafe extern "C" fn make_raw(
    table: *const Table,
    pd: *mut ibv_pd,
    memory: *mut c_void,
    length: usize,
    shares: c_int,
    objects: *mut Objects,
) -> c_int {
    // SAFETY: the caller gives a table that lives during the call.
    let t = unsafe { &*table };
    // SAFETY: the caller gives space for the objects, initialised.
    let o = unsafe { &mut *objects };
    let name: *mut c_void = objects.cast();
    // SAFETY: the read requires a live domain: the caller's.
    let context = unsafe { (*pd).context };
    // SAFETY: ibv_create_cq requires an open context: the domain's.
    o.cq = unsafe { (t.create_cq)(context, 256, name, ptr::null_mut(), 0) };
    if shares != 0 {
        let attr = ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 };
        let mut srq = ibv_srq_init_attr { srq_context: name, attr };
        // SAFETY: ibv_create_srq requires a live domain, and attributes that live during the call.
        o.srq = unsafe { (t.create_srq)(pd, &raw mut srq) };
    }
    for (at, qp) in o.qps.iter_mut().enumerate() {
        let srq = if at == 1 { o.srq } else { ptr::null_mut() };
        let cap = ibv_qp_cap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq, qp_type) = (o.cq, o.cq, ibv_qp_type::IBV_QPT_RC);
        let mut init = ibv_qp_init_attr { qp_context: name, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all: 0 };
        // SAFETY: ibv_create_qp requires a domain and queues of one context, and attributes that
        // live during the call.
        *qp = unsafe { (t.create_qp)(pd, &raw mut init) };
    }
    // Local write, remote write, remote read.
    // SAFETY: ibv_reg_mr requires a live domain, and memory that stays while it is registered.
    o.mr = unsafe { (t.reg_mr)(pd, memory, length, 0b111) };
    let is_whole = !o.cq.is_null() && !o.mr.is_null() && o.qps.iter().all(|qp| !qp.is_null());
    c_int::from(!is_whole)
}

/// `post_receive` of `objects.c`.
unsafe extern "C" fn post_raw_receive(objects: *mut Objects, wr_id: u64, offset: usize, length: u32) -> c_int {
    // SAFETY: the caller gives live objects.
    let o = unsafe { &*objects };
    // SAFETY: the read requires a live region, whose fields are constant.
    let mr = unsafe { &*o.mr };
    let mut sge = ibv_sge { addr: (mr.addr.addr() + offset) as u64, length, lkey: mr.lkey };
    let mut wr = ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
    let mut bad = ptr::null_mut();
    if o.srq.is_null() {
        // SAFETY: ibv_post_recv requires a live queue pair and a chain of requests.
        unsafe { ibv_post_recv(o.qps[1], &raw mut wr, &raw mut bad) }
    } else {
        // SAFETY: ibv_post_srq_recv requires a live queue and a chain of requests.
        unsafe { ibv_post_srq_recv(o.srq, &raw mut wr, &raw mut bad) }
    }
}

/// `unmake` of `objects.c`.
unsafe extern "C" fn unmake_raw(table: *const Table, objects: *mut Objects) -> c_int {
    // SAFETY: the caller gives a table that lives during the call.
    let t = unsafe { &*table };
    // SAFETY: the caller gives live objects.
    let o = unsafe { &*objects };
    // SAFETY: ibv_destroy_qp requires a live queue pair that nobody uses.
    let mut failures = o.qps.map(|qp| unsafe { (t.destroy_qp)(qp) }).into_iter().filter(|&errno| errno != 0).count();
    if !o.srq.is_null() {
        // SAFETY: ibv_destroy_srq requires a live queue that nobody uses.
        failures += usize::from(unsafe { (t.destroy_srq)(o.srq) } != 0);
    }
    // SAFETY: ibv_destroy_cq requires a live queue that nobody uses.
    failures += usize::from(unsafe { (t.destroy_cq)(o.cq) } != 0);
    // SAFETY: ibv_dereg_mr requires a live region that nobody uses.
    failures += usize::from(unsafe { (t.dereg_mr)(o.mr) } != 0);
    c_int::try_from(failures).unwrap_or(c_int::MAX)
}
