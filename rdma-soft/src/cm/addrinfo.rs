//! `rdma_getaddrinfo`: names and numbers to addresses, by the C library's resolver; and the calls that do it for an id.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};
use rdma_sys::{
    RAI_NUMERICHOST, RAI_PASSIVE, RAI_SA, ibv_qp_type, rdma_addrinfo, rdma_cm_event_type, rdma_cm_id, rdma_port_space,
};

use super::events;
use super::id::{self, Resolved};
use super::service::Service;
use crate::engine::Errno;
use crate::verbs::errno::minus_one;

/// A number that fits, or 0 as "not said".
fn unsigned(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn signed(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(0)
}

/// What went wrong: here, or in the C library's resolver, whose numbers are returned as they are.
enum Failure {
    Errno(Errno),
    Resolver(c_int),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// `rdma_getaddrinfo`.
pub(super) unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: C's promises about the arguments.
    match unsafe { resolve(node, service, hints) } {
        Ok(list) => {
            // SAFETY: C's promise: valid for writes.
            unsafe { res.write(list) };
            0
        }
        Err(Failure::Errno(errno)) => minus_one(Err(errno)),
        Err(Failure::Resolver(code)) => code,
    }
}

/// # Safety
///
/// C's promises about the arguments; each may be null.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, Failure> {
    if node.is_null() && service.is_null() && hints.is_null() {
        return Err(Errno::INVAL.into());
    }
    Service::get()?;
    // SAFETY: the caller's promise: null, or valid for reads.
    let given = unsafe { hints.as_ref() };
    let nothing = rdma_addrinfo::default();
    let hints = given.unwrap_or(&nothing);
    if unsigned(hints.ai_flags) & RAI_SA != 0 {
        // There is no subnet administrator to ask.
        return Err(Errno::OPNOTSUPP.into());
    }
    // Owned by the guard until it is whole.
    let mut made = Guard(Box::default());
    if node.is_null() && service.is_null() {
        made.0.ai_flags = hints.ai_flags;
        made.0.ai_family = hints.ai_family;
        made.0.ai_qp_type = hints.ai_qp_type;
        made.0.ai_port_space = hints.ai_port_space;
        if hints.ai_dst_len != 0 {
            // SAFETY: the caller's promise: so many bytes.
            let copy = unsafe { duplicate(hints.ai_dst_addr.cast(), hints.ai_dst_len) }?;
            (made.0.ai_dst_addr, made.0.ai_dst_len) = (copy.cast(), hints.ai_dst_len);
        }
    } else {
        let asked = question(hints);
        let asked = if given.is_some() { &raw const asked } else { ptr::null() };
        let mut answer: *mut addrinfo = ptr::null_mut();
        // SAFETY: C strings or null, hints that live, an out parameter.
        let code = unsafe { libc::getaddrinfo(node, service, asked, &raw mut answer) };
        if code != 0 {
            return Err(Failure::Resolver(code));
        }
        // SAFETY: the resolver's list, which has a first element.
        let filled = unsafe { fill(&mut made.0, hints, answer) };
        // SAFETY: the resolver's list, not used below.
        unsafe { libc::freeaddrinfo(answer) };
        filled?;
    }
    if made.0.ai_src_len == 0 && hints.ai_src_len != 0 {
        // SAFETY: the caller's promise: so many bytes.
        let copy = unsafe { duplicate(hints.ai_src_addr.cast(), hints.ai_src_len) }?;
        (made.0.ai_src_addr, made.0.ai_src_len) = (copy.cast(), hints.ai_src_len);
    }
    let whole = std::mem::take(&mut made.0);
    Ok(Box::into_raw(whole))
}

/// A result in the making; what it has is freed if it is not finished.
struct Guard(Box<rdma_addrinfo>);

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: the parts were made here, and nobody else has them.
        unsafe { free_parts(&self.0) };
    }
}

/// The C library's question for ours.
fn question(hints: &rdma_addrinfo) -> addrinfo {
    let flags = unsigned(hints.ai_flags);
    let mut ai_flags = 0;
    if flags & RAI_PASSIVE != 0 {
        ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        ai_flags |= libc::AI_NUMERICHOST;
    }
    let socktype = match ibv_qp_type(unsigned(hints.ai_qp_type)) {
        ibv_qp_type::IBV_QPT_RC
        | ibv_qp_type::IBV_QPT_UC
        | ibv_qp_type::IBV_QPT_XRC_SEND
        | ibv_qp_type::IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        ibv_qp_type::IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    let protocol = match rdma_port_space(unsigned(hints.ai_port_space)) {
        rdma_port_space::RDMA_PS_TCP => libc::IPPROTO_TCP,
        rdma_port_space::RDMA_PS_UDP | rdma_port_space::RDMA_PS_IPOIB => libc::IPPROTO_UDP,
        rdma_port_space::RDMA_PS_IB if socktype == libc::SOCK_STREAM => libc::IPPROTO_TCP,
        rdma_port_space::RDMA_PS_IB if socktype == libc::SOCK_DGRAM => libc::IPPROTO_UDP,
        _ => 0,
    };
    // SAFETY: `addrinfo` is plain data, valid when zero.
    let mut question: addrinfo = unsafe { std::mem::zeroed() };
    question.ai_flags = ai_flags;
    question.ai_family = hints.ai_family;
    question.ai_socktype = socktype;
    question.ai_protocol = protocol;
    question
}

/// Takes the first answer of the C library.
///
/// # Safety
///
/// `answer` is an element of a list that the C library made.
unsafe fn fill(made: &mut rdma_addrinfo, hints: &rdma_addrinfo, answer: *const addrinfo) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let answer = unsafe { &*answer };
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
    made.ai_qp_type = if hints.ai_qp_type != 0 { hints.ai_qp_type } else { signed(qp_type) };
    made.ai_port_space = if hints.ai_port_space != 0 { hints.ai_port_space } else { signed(port_space) };
    made.ai_family = answer.ai_family;
    // SAFETY: the resolver's address has the length that it says.
    let address = unsafe { duplicate(answer.ai_addr.cast(), answer.ai_addrlen) }?.cast::<sockaddr>();
    let name = if answer.ai_canonname.is_null() {
        ptr::null_mut()
    } else {
        // SAFETY: a C string of the resolver's.
        unsafe { libc::strdup(answer.ai_canonname) }
    };
    if answer.ai_flags & libc::AI_PASSIVE != 0 {
        made.ai_flags = signed(RAI_PASSIVE);
        (made.ai_src_addr, made.ai_src_len, made.ai_src_canonname) = (address, answer.ai_addrlen, name);
    } else {
        (made.ai_dst_addr, made.ai_dst_len, made.ai_dst_canonname) = (address, answer.ai_addrlen, name);
    }
    Ok(())
}

/// A copy in memory of C's.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes.
unsafe fn duplicate(from: *const c_void, len: socklen_t) -> Result<*mut c_void, Errno> {
    let len = usize::try_from(len).unwrap_or(0);
    if from.is_null() || len == 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: malloc has no conditions.
    let to = unsafe { libc::malloc(len) };
    if to.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: `to` is new and of `len` bytes; `from` by the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len) };
    Ok(to)
}

/// # Safety
///
/// The parts are null or came from malloc, and are not used below.
unsafe fn free_parts(info: &rdma_addrinfo) {
    let parts: [*mut c_void; 6] = [
        info.ai_src_addr.cast(),
        info.ai_dst_addr.cast(),
        info.ai_src_canonname.cast(),
        info.ai_dst_canonname.cast(),
        info.ai_route,
        info.ai_connect,
    ];
    for part in parts {
        // SAFETY: the caller's promise.
        unsafe { libc::free(part) };
    }
}

/// Frees a list.
///
/// # Safety
///
/// Null, or what [`resolve`] returned, and it is not used below.
pub(super) unsafe fn free(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: the caller's promise: made of a box.
        let info = unsafe { Box::from_raw(list) };
        list = info.ai_next;
        // SAFETY: the parts are the list's own.
        unsafe { free_parts(&info) };
    }
}

/// `rdma_freeaddrinfo`.
pub(super) unsafe extern "C" fn freeaddrinfo(res: *mut rdma_addrinfo) {
    // SAFETY: C's promise.
    unsafe { free(res) };
}

/// `rdma_resolve_addrinfo`: the answer comes at once, but by an event.
pub(super) unsafe extern "C" fn resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: C's promises about the arguments.
    match unsafe { resolve_for(id, node, service, hints) } {
        Ok(()) => 0,
        Err(Failure::Errno(errno)) => minus_one(Err(errno)),
        Err(Failure::Resolver(code)) => code,
    }
}

/// # Safety
///
/// C's promises about the arguments.
unsafe fn resolve_for(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<(), Failure> {
    type Event = rdma_cm_event_type;
    // SAFETY: the caller's promise.
    let state = unsafe { id::get(id) }?;
    // SAFETY: the caller's promise: null, or valid for reads.
    if unsafe { hints.as_ref() }.is_some_and(|hints| unsigned(hints.ai_flags) & RAI_SA != 0) {
        return Err(Errno(libc::ENOTSUP).into());
    }
    if std::mem::replace(&mut state.lock().resolving, true) {
        return Err(Errno::BUSY.into());
    }
    // SAFETY: the caller's promise.
    let list = unsafe { resolve(node, service, hints) };
    let list = list.inspect_err(|_| state.lock().resolving = false)?;
    state.lock().resolved = Resolved(list);
    let resolved = u64::from(Event::RDMA_CM_EVENT_ADDRINFO_RESOLVED.0);
    let key = state.subject.key;
    Service::get()?.with(|service| {
        service.entry(key).map(|entry| entry.write_event(Event::RDMA_CM_EVENT_INTERNAL, 0, resolved))
    })?;
    // SAFETY: the caller's promise.
    unsafe { events::complete(id) }?;
    Ok(())
}

/// `rdma_query_addrinfo`.
pub(super) unsafe extern "C" fn query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { id::get(id) }.and_then(|state| {
        if info.is_null() {
            return Err(Errno::INVAL);
        }
        let mut inner = state.lock();
        if !inner.resolving || inner.resolved.0.is_null() {
            return Err(Errno(libc::ENOENT));
        }
        inner.resolving = false;
        let list = std::mem::take(&mut inner.resolved).0;
        // SAFETY: C's promise: valid for writes.
        unsafe { info.write(list) };
        Ok(())
    }))
}
