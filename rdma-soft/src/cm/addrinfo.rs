//! `rdma_getaddrinfo`: resolves names and numbers to addresses with the C library's `getaddrinfo`.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};
use rdma_sys::{RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, RAI_SA, ibv_qp_type, rdma_addrinfo, rdma_port_space};

use crate::engine::Errno;
use crate::verbs::call::{self, Argument, In, MinusOne, Text};

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

/// An `rdma_addrinfo` list of one element that C does not hold yet; freed when dropped.
///
/// The element and what it points to are memory of malloc(3), each for itself, as librdmacm's: a C
/// program may take an address out of the list and free it later, or put one of its own there.
#[derive(Debug)]
pub(super) struct List(*mut rdma_addrinfo);

// SAFETY: `Send` requires that another thread may own the list: nothing of it belongs to a thread,
// and nobody else holds the pointer.
unsafe impl Send for List {}

impl List {
    fn new(public: rdma_addrinfo) -> Result<Self, Errno> {
        // SAFETY: `malloc` requires nothing.
        let raw = unsafe { libc::malloc(size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
        if raw.is_null() {
            return Err(Errno::NOMEM);
        }
        // SAFETY: `write` requires space for the type, aligned: `malloc` returned as many bytes,
        // and aligns them for every type of C.
        unsafe { raw.write(public) };
        Ok(Self(raw))
    }

    fn public(&mut self) -> &mut rdma_addrinfo {
        // SAFETY: a reference requires a live value that nobody else uses: `new` wrote it, and C
        // does not hold the list, which is borrowed.
        unsafe { &mut *self.0 }
    }

    /// Gives the list a copy of a source address, unless `len` is 0.
    ///
    /// # Safety
    ///
    /// `address` is null, or valid for reads of `len` bytes.
    unsafe fn set_source(&mut self, address: *const sockaddr, len: socklen_t) -> Result<(), Errno> {
        if len > 0 {
            // SAFETY: `copied` has the same contract.
            self.public().ai_src_addr = unsafe { copied(address, len) }?;
            self.public().ai_src_len = len;
        }
        Ok(())
    }

    /// Gives the list a copy of a destination address, unless `len` is 0.
    ///
    /// # Safety
    ///
    /// As for [`set_source`](Self::set_source).
    unsafe fn set_destination(&mut self, address: *const sockaddr, len: socklen_t) -> Result<(), Errno> {
        if len > 0 {
            // SAFETY: `copied` has the same contract.
            self.public().ai_dst_addr = unsafe { copied(address, len) }?;
            self.public().ai_dst_len = len;
        }
        Ok(())
    }

    /// Passes the list to C, which frees it.
    pub(super) fn into_raw(self) -> *mut rdma_addrinfo {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: `free` requires a list of `malloc` that nobody uses: `into_raw` was not called,
        // so C does not hold the list.
        unsafe { free(self.0) };
    }
}

/// A list that C frees: null, or of [`resolve`], with pointers that are null or to memory of
/// malloc(3) (promise 1).
pub(super) struct OwnList(*mut rdma_addrinfo);

impl Argument for OwnList {
    type Raw = *mut rdma_addrinfo;

    unsafe fn from_c(raw: *mut rdma_addrinfo) -> Self {
        Self(raw)
    }
}

impl OwnList {
    pub(super) fn free(self) {
        // SAFETY: `free` requires null or a list of `malloc` that nobody uses afterwards: this
        // type's promise.
        unsafe { free(self.0) };
    }
}

/// Frees a list.
///
/// # Safety
///
/// `list` is null, or the first of a list of elements of `malloc`, whose pointers are null or to
/// memory of `malloc`. Nobody uses the list or that memory any more.
unsafe fn free(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: `read` requires a live element: the contract, and each is freed after this line.
        let element = unsafe { list.read() };
        let names = [element.ai_src_canonname, element.ai_dst_canonname].map(<*mut _>::cast);
        let addresses = [element.ai_src_addr, element.ai_dst_addr].map(<*mut _>::cast);
        for part in names.into_iter().chain(addresses).chain([element.ai_route, element.ai_connect, list.cast()]) {
            // SAFETY: `free` requires null or memory of `malloc` that nobody uses: the contract,
            // and the element was copied.
            unsafe { libc::free(part) };
        }
        list = element.ai_next;
    }
}

/// A copy of an address in memory of `malloc`. `EINVAL` for null.
///
/// # Safety
///
/// `address` is null, or valid for reads of `len` bytes.
unsafe fn copied(address: *const sockaddr, len: socklen_t) -> Result<*mut sockaddr, Errno> {
    if address.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: `malloc` requires nothing.
    let copy = unsafe { libc::malloc(len as usize) }.cast::<u8>();
    if copy.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: `copy_nonoverlapping` requires `len` readable bytes (the contract) and `len` writable
    // ones elsewhere (just allocated).
    unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), copy, len as usize) };
    Ok(copy.cast())
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
    if node.is_null() && service.is_null() {
        let (ai_flags, ai_family) = (hints.ai_flags, hints.ai_family);
        let (ai_qp_type, ai_port_space) = (hints.ai_qp_type, hints.ai_port_space);
        let public = rdma_addrinfo { ai_flags, ai_family, ai_qp_type, ai_port_space, ..rdma_addrinfo::default() };
        let mut list = List::new(public)?;
        // SAFETY: `set_destination` requires null, or as many bytes as the length says: promise 2
        // for the hints.
        unsafe { list.set_destination(hints.ai_dst_addr, hints.ai_dst_len) }?;
        // SAFETY: `set_source` requires null, or as many bytes as the length says: promise 2 for
        // the hints.
        unsafe { list.set_source(hints.ai_src_addr, hints.ai_src_len) }?;
        return Ok(list);
    }
    let wants_gid = RAI_FAMILY | RAI_NUMERICHOST;
    if hints.ai_family == libc::AF_IB && unsigned(hints.ai_flags) & wants_gid == wants_gid {
        // The connection manager connects to IP addresses alone.
        return Err(Failure::Resolver(libc::EAI_FAMILY));
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
    let mut list = List::new(public(&hints, first))?;
    // SAFETY: `name_of` requires an element of a `getaddrinfo` list that is alive: the first one of
    // `answer`.
    let name = unsafe { name_of(first) };
    if first.ai_flags & libc::AI_PASSIVE != 0 {
        list.public().ai_flags = signed(RAI_PASSIVE);
        list.public().ai_src_canonname = name;
        // SAFETY: `set_source` requires as many bytes as the length says: `getaddrinfo` made both.
        unsafe { list.set_source(first.ai_addr, first.ai_addrlen) }?;
    } else {
        list.public().ai_dst_canonname = name;
        // SAFETY: `set_destination` requires as many bytes as the length says: `getaddrinfo` made
        // both.
        unsafe { list.set_destination(first.ai_addr, first.ai_addrlen) }?;
        // SAFETY: `set_source` requires null, or as many bytes as the length says: promise 2 for
        // the hints.
        unsafe { list.set_source(hints.ai_src_addr, hints.ai_src_len) }?;
    }
    Ok(list)
}

/// A copy of the canonical name in memory of `malloc`; null if there is none.
///
/// # Safety
///
/// `answer` is an element of a live list from `getaddrinfo`.
unsafe fn name_of(answer: &addrinfo) -> *mut c_char {
    if answer.ai_canonname.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: `strdup` requires a C string: `getaddrinfo` made it, and it is not null.
    unsafe { libc::strdup(answer.ai_canonname) }
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
    // As in librdmacm, a program that asks for `AF_IB` without `RAI_FAMILY` gets an IP address.
    question.ai_family = if hints.ai_family == libc::AF_IB { libc::AF_UNSPEC } else { hints.ai_family };
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
