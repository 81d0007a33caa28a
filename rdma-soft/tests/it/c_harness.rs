//! A consumer compiled from C drives the device through nothing but `verbs.h`.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use rdma_sys::*;

use crate::common::{open, verbs};

/// `struct table` of the harness.
#[repr(C)]
struct Table {
    alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd,
    dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int,
    reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
    dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    create_comp_channel: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel,
    destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int,
    create_cq: unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
    destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    get_cq_event: unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
    ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, c_uint),
    create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
    modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    qp_to_qp_ex: unsafe extern "C" fn(*mut ibv_qp) -> *mut ibv_qp_ex,
    query_gid: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int,
}

type Harness = unsafe extern "C" fn(*const Table, *mut ibv_context) -> c_int;

/// Loads a shared object, never unloads it, and looks up the harness in it.
fn load(path: &str) -> Harness {
    let path = CString::new(path).unwrap();
    // SAFETY: a C string; the object was just compiled and has no constructors.
    let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if object.is_null() {
        // SAFETY: after a failure there is a message, a C string.
        let message: *const c_char = unsafe { libc::dlerror() };
        // SAFETY: the harness returns a C string that lives as long as the process.
        panic!("{}", unsafe { CStr::from_ptr(message) }.to_string_lossy());
    }
    // SAFETY: an open object, a C string.
    let symbol = unsafe { libc::dlsym(object, c"harness".as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: the symbol is the function, of this type, in an object that is never closed.
    unsafe { std::mem::transmute::<*mut c_void, Harness>(symbol) }
}

#[test]
fn c_code_that_uses_the_header_only() {
    let Some(compiler) = rdma_test_support::Compiler::find(concat!(env!("CARGO_TARGET_TMPDIR"), "/harness")) else {
        return;
    };
    let path = compiler.output("harness.so");
    let source = include_str!("c_harness/harness.c");
    let arguments = ["-shared", "-fPIC", "-O1", "-Wall", "-Wno-deprecated-declarations", "-o", &path];
    let compiled = compiler.run("harness", source, &arguments).unwrap();
    let messages = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{messages}");
    let v = verbs();
    let table = Table {
        alloc_pd: v.ibv_alloc_pd,
        dealloc_pd: v.ibv_dealloc_pd,
        reg_mr: v.ibv_reg_mr,
        dereg_mr: v.ibv_dereg_mr,
        create_comp_channel: v.ibv_create_comp_channel,
        destroy_comp_channel: v.ibv_destroy_comp_channel,
        create_cq: v.ibv_create_cq,
        destroy_cq: v.ibv_destroy_cq,
        get_cq_event: v.ibv_get_cq_event,
        ack_cq_events: v.ibv_ack_cq_events,
        create_qp: v.ibv_create_qp,
        modify_qp: v.ibv_modify_qp,
        destroy_qp: v.ibv_destroy_qp,
        qp_to_qp_ex: v.ibv_qp_to_qp_ex,
        query_gid: v.ibv_query_gid,
    };
    let harness = load(&path);
    let context = open();
    // SAFETY: a table of the layout that the harness has, an open context.
    let line = unsafe { harness(&raw const table, context) };
    assert_eq!(line, 0, "harness.c:{line}");
    // SAFETY: an open context without objects.
    assert_eq!(unsafe { (v.ibv_close_device)(context) }, 0);
}
