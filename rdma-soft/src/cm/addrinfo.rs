//! `rdma_getaddrinfo`: resolves names and numbers to addresses with the C library's `getaddrinfo`.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_int};
use std::net::SocketAddr;
use std::ptr;

use libc::{addrinfo, sockaddr, sockaddr_storage, socklen_t};
use rdma_sys::{RAI_NUMERICHOST, RAI_PASSIVE, RAI_SA, ibv_qp_type, rdma_addrinfo, rdma_port_space};

use super::address;
use crate::engine::Errno;
use crate::verbs::call::{self, In, MinusOne, Text};
use crate::verbs::object::{Object, Public, set_field};

/// Converts a hint; a negative one becomes 0, which means "not given".
fn unsigned(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn signed(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(0)
}

/// Error of an address resolution: an errno, or a code of `getaddrinfo`, which C receives
/// unchanged.
pub(super) enum Failure {
    Errno(Errno),
    Resolver(c_int),
}

impl call::Answer for Result<(), Failure> {
    type Raw = c_int;

    fn into_c(self) -> c_int {
        match self {
            Err(Failure::Resolver(code)) => code,
            Err(Failure::Errno(errno)) => call::Answer::into_c(Err::<(), _>(MinusOne(errno))),
            Ok(()) => 0,
        }
    }
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Errno(errno) => errno,
            Failure::Resolver(code) => Self(code),
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Private part of an `rdma_addrinfo`: the memory behind its pointers, source first, destination
/// second.
pub(crate) struct Parts {
    addresses: [UnsafeCell<sockaddr_storage>; 2],
    names: [Option<CString>; 2],
}

// SAFETY: `Sync` requires that shared references allow no data race: no code of the device accesses
// the addresses after C has them, and the names never change.
unsafe impl Sync for Parts {}

impl Public for rdma_addrinfo {
    const MARK: u64 = 0x7264_6d61_5f61_6464;
    type Private = Parts;
}

/// An `rdma_addrinfo` list of one element that C does not hold yet; freed when dropped.
#[derive(Debug)]
pub(super) struct List(*mut rdma_addrinfo);

// SAFETY: `Send` requires that another thread may own the list: nothing of it belongs to a thread,
// and nobody else holds the pointer.
unsafe impl Send for List {}

impl List {
    /// Passes the list to C, which frees it.
    pub(super) fn into_raw(self) -> *mut rdma_addrinfo {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: `Object::free` requires a live object that nobody uses: `into_raw` was not
        // called, so C does not hold the list.
        let _freed = unsafe { Object::free(self.0) };
    }
}

/// One end of an `rdma_addrinfo`: its address, the length of the C structure, and its canonical
/// name.
type End = Option<(SocketAddr, socklen_t, Option<CString>)>;

impl List {
    /// Makes a list from its other fields and its two ends.
    fn new(public: rdma_addrinfo, src: End, dst: End) -> Self {
        let none = SocketAddr::from(([0, 0, 0, 0], 0));
        let addresses = [&src, &dst].map(|end| end.as_ref().map_or(none, |(address, ..)| *address));
        let addresses = addresses.map(|address| UnsafeCell::new(address::storage(address)));
        let lens = [&src, &dst].map(|end| end.as_ref().map_or(0, |(_, len, _)| *len));
        let names = [src, dst].map(|end| end.and_then(|(.., name)| name));
        let raw = Object::create(public, Parts { addresses, names });
        // SAFETY: `Object::get` requires a live object: made on the line above.
        if let Ok(list) = unsafe { Object::get(raw) } {
            let parts: &Parts = list;
            let address = |end: usize| if lens[end] == 0 { ptr::null_mut() } else { parts.addresses[end].get().cast() };
            let name = |end: usize| parts.names[end].as_ref().map_or(ptr::null_mut(), |name| name.as_ptr().cast_mut());
            set_field!(list, ai_src_addr, address(0));
            set_field!(list, ai_src_len, lens[0]);
            set_field!(list, ai_src_canonname, name(0));
            set_field!(list, ai_dst_addr, address(1));
            set_field!(list, ai_dst_len, lens[1]);
            set_field!(list, ai_dst_canonname, name(1));
        }
        Self(raw)
    }
}

/// A list from `getaddrinfo`, freed when dropped.
struct Answer(*mut addrinfo);

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: `freeaddrinfo` requires a list from `getaddrinfo`, once: `resolve` stores only
        // such lists here, and `drop` runs once.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

/// `rdma_getaddrinfo`.
pub(super) fn resolve(node: &Text, service: &Text, hints: &In<rdma_addrinfo>) -> Result<List, Failure> {
    let given = hints.optional();
    let (node, service) = (node.raw(), service.raw());
    if node.is_null() && service.is_null() && given.is_none() {
        return Err(Errno::INVAL.into());
    }
    let hints = given.copied().unwrap_or_default();
    if unsigned(hints.ai_flags) & RAI_SA != 0 {
        // The device has no subnet administrator to query.
        return Err(Errno::OPNOTSUPP.into());
    }
    // SAFETY: `given_end` requires null, or an address that is valid for its family: promise 2 for
    // the hints.
    let src = unsafe { given_end(hints.ai_src_addr, hints.ai_src_len) };
    if node.is_null() && service.is_null() {
        // SAFETY: `given_end` requires null, or an address that is valid for its family: promise 2
        // for the hints.
        let dst = unsafe { given_end(hints.ai_dst_addr, hints.ai_dst_len) };
        let (ai_flags, ai_family) = (hints.ai_flags, hints.ai_family);
        let (ai_qp_type, ai_port_space) = (hints.ai_qp_type, hints.ai_port_space);
        let public = rdma_addrinfo { ai_flags, ai_family, ai_qp_type, ai_port_space, ..rdma_addrinfo::default() };
        return Ok(List::new(public, src?, dst?));
    }
    let asked = given.map(question);
    let mut answer: *mut addrinfo = ptr::null_mut();
    let asked = asked.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `getaddrinfo` requires C strings or null (`Text`, promise 2), hints that are valid or
    // null (`asked` borrows a local) and an out parameter (a local).
    let code = unsafe { libc::getaddrinfo(node, service, asked, &raw mut answer) };
    if code != 0 {
        return Err(Failure::Resolver(code));
    }
    let answer = Answer(answer);
    // SAFETY: a reference requires a live value: on success `getaddrinfo` returns at least one
    // element, which lives as long as `answer`.
    let first = unsafe { &*answer.0 };
    let public = public(&hints, first);
    // SAFETY: `found_end` requires an element of a `getaddrinfo` list that is alive: the first one
    // of `answer`.
    let end = unsafe { found_end(first) }?;
    if first.ai_flags & libc::AI_PASSIVE != 0 {
        return Ok(List::new(rdma_addrinfo { ai_flags: signed(RAI_PASSIVE), ..public }, end, None));
    }
    Ok(List::new(public, src?, end))
}

/// The end that the caller gave in its hints; `None` for length 0.
///
/// # Safety
///
/// `address` is null, or valid for reads of the structure of its family.
unsafe fn given_end(address: *const sockaddr, len: socklen_t) -> Result<End, Errno> {
    if len == 0 {
        return Ok(None);
    }
    // SAFETY: `read` has the same contract.
    unsafe { address::read(address) }.map(|address| Some((address, len, None)))
}

/// The end that `getaddrinfo` found.
///
/// # Safety
///
/// `answer` is an element of a live list from `getaddrinfo`.
unsafe fn found_end(answer: &addrinfo) -> Result<End, Errno> {
    // SAFETY: `read` requires an address that is valid for its family: `getaddrinfo` made it.
    let address = unsafe { address::read(answer.ai_addr) }?;
    let name = (!answer.ai_canonname.is_null()).then(|| {
        // SAFETY: `CStr::from_ptr` requires a C string: `getaddrinfo` made it, and it is not null.
        unsafe { CStr::from_ptr(answer.ai_canonname) }.to_owned()
    });
    Ok(Some((address, answer.ai_addrlen, name)))
}

/// Translates the hints into hints for `getaddrinfo`.
fn question(hints: &rdma_addrinfo) -> addrinfo {
    type Qp = ibv_qp_type;
    type Ps = rdma_port_space;
    // SAFETY: `zeroed` requires that all-zero bytes are a valid value: `addrinfo` consists of
    // integers and raw pointers.
    let mut question: addrinfo = unsafe { std::mem::zeroed() };
    let flags = unsigned(hints.ai_flags);
    question.ai_flags = if flags & RAI_PASSIVE != 0 { libc::AI_PASSIVE } else { 0 }
        | if flags & RAI_NUMERICHOST != 0 { libc::AI_NUMERICHOST } else { 0 };
    question.ai_family = hints.ai_family;
    question.ai_socktype = match ibv_qp_type(unsigned(hints.ai_qp_type)) {
        Qp::IBV_QPT_RC | Qp::IBV_QPT_UC | Qp::IBV_QPT_XRC_SEND | Qp::IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        Qp::IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    question.ai_protocol = match (rdma_port_space(unsigned(hints.ai_port_space)), question.ai_socktype) {
        (Ps::RDMA_PS_TCP, _) | (Ps::RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (Ps::RDMA_PS_UDP | Ps::RDMA_PS_IPOIB, _) | (Ps::RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    question
}

/// Translates a `getaddrinfo` element into an `rdma_addrinfo`, without the addresses and names.
fn public(hints: &rdma_addrinfo, answer: &addrinfo) -> rdma_addrinfo {
    let qp_type = match answer.ai_socktype {
        libc::SOCK_STREAM => ibv_qp_type::IBV_QPT_RC.0,
        libc::SOCK_DGRAM => ibv_qp_type::IBV_QPT_UD.0,
        _ => 0,
    };
    let port_space = match answer.ai_protocol {
        libc::IPPROTO_TCP => rdma_port_space::RDMA_PS_TCP.0,
        libc::IPPROTO_UDP => rdma_port_space::RDMA_PS_UDP.0,
        _ => 0,
    };
    rdma_addrinfo {
        ai_family: answer.ai_family,
        ai_qp_type: if hints.ai_qp_type != 0 { hints.ai_qp_type } else { signed(qp_type) },
        ai_port_space: if hints.ai_port_space != 0 { hints.ai_port_space } else { signed(port_space) },
        ..rdma_addrinfo::default()
    }
}
