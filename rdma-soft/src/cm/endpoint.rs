//! Endpoints: ids that are bound or connected in one call, requests taken by waiting for them, and the addresses that endpoints are
//! made of. Numbers cite C's promises in [`super`].

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::ptr;

use rdma_sys::{
    RAI_PASSIVE, RAI_SA, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, ibv_pd, ibv_qp_init_attr, ibv_qp_type, rdma_addrinfo,
    rdma_cm_event, rdma_cm_event_type as Code, rdma_cm_id, rdma_port_space,
};

use super::addrinfo::{self, Failure};
use super::calls::{self, bytes, hand_out, on};
use super::channel::Body;
use super::id::{self, Id, QpInit};
use super::service::Service;
use super::{address, events, options};
use crate::engine::Errno;
use crate::verbs::errno::minus_one;
use crate::verbs::object::{Object, get_field, set_field};

fn unsigned(value: c_int) -> Result<u32, Errno> {
    u32::try_from(value).map_err(|_| Errno::INVAL)
}

/// `rdma_create_ep`.
pub(super) unsafe extern "C" fn create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `as_ref` wants null or a pointer for reads: promise 2.
    let res = unsafe { res.as_ref() };
    // SAFETY: `as_mut` wants null or attributes that nobody else uses meanwhile: promise 2.
    let init = unsafe { qp_init_attr.as_mut() };
    // SAFETY: `Wanted::read` wants an address information whose pointers are as it says: promise 2.
    let wanted = res.ok_or(Errno::INVAL).and_then(|res| unsafe { Wanted::read(res) });
    // SAFETY: `hand_out` wants a pointer for writes: promise 2.
    unsafe { hand_out(id, || create(&wanted?, pd, init)) }
}

/// What an endpoint is made of.
struct Wanted<'a> {
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
    is_active: bool,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
    route: &'a [u8],
    connect_data: &'a [u8],
}

impl Wanted<'_> {
    /// # Safety
    ///
    /// The pointers in `res` are null or as it says.
    unsafe fn read(res: &rdma_addrinfo) -> Result<Self, Errno> {
        Ok(Self {
            ps: rdma_port_space(unsigned(res.ai_port_space)?),
            qp_type: ibv_qp_type(unsigned(res.ai_qp_type)?),
            is_active: unsigned(res.ai_flags).is_ok_and(|flags| flags & RAI_PASSIVE == 0),
            // SAFETY: `read_optional` wants null or an address as its family says: the caller's promise.
            src: unsafe { address::read_optional(res.ai_src_addr) }?,
            // SAFETY: `read_optional` wants null or an address as its family says: the caller's promise.
            dst: unsafe { address::read_optional(res.ai_dst_addr) }?,
            // SAFETY: `bytes` wants null or so many bytes: the caller's promise.
            route: unsafe { bytes(res.ai_route, res.ai_route_len) },
            // SAFETY: `bytes` wants null or so many bytes: the caller's promise.
            connect_data: unsafe { bytes(res.ai_connect, res.ai_connect_len) },
        })
    }
}

fn create(wanted: &Wanted<'_>, pd: *mut ibv_pd, init: Option<&mut ibv_qp_init_attr>) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: `create` wants null or a live channel.
    let raw = unsafe { id::create(ptr::null_mut(), ptr::null_mut(), wanted.ps, wanted.qp_type) }?;
    // SAFETY: `Object::get` wants a live id: just made, and nobody knows of it.
    let id: Id<'_> = unsafe { Object::get(raw) }?;
    let ready = if wanted.is_active { active(id, wanted, pd, init) } else { passive(id, wanted, pd, init) };
    if let Err(errno) = ready {
        // SAFETY: `destroy` wants an id that nobody uses: just made, and `id` is not used below.
        unsafe { destroy(raw) };
        return Err(errno);
    }
    Ok(raw)
}

fn passive(id: Id<'_>, wanted: &Wanted<'_>, pd: *mut ibv_pd, init: Option<&mut ibv_qp_init_attr>) -> Result<(), Errno> {
    calls::bind(id, wanted.src.ok_or(Errno::INVAL)?)?;
    if !pd.is_null() {
        set_field!(id, pd, pd);
    }
    id.lock().qp_init = init.map(|init| QpInit(ibv_qp_init_attr { qp_type: wanted.qp_type, ..*init }));
    Ok(())
}

fn active(id: Id<'_>, wanted: &Wanted<'_>, pd: *mut ibv_pd, init: Option<&mut ibv_qp_init_attr>) -> Result<(), Errno> {
    calls::resolve(id, wanted.src, wanted.dst.ok_or(Errno::INVAL)?)?;
    if wanted.route.is_empty() {
        calls::route(id)?;
    } else {
        options::set(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, wanted.route)?;
        events::complete(id)?;
    }
    if let Some(init) = init {
        init.qp_type = wanted.qp_type;
        id.create_qp(pd, init)?;
    }
    id.lock().connect_data = wanted.connect_data.to_vec();
    Ok(())
}

/// `rdma_destroy_ep`.
pub(super) unsafe extern "C" fn destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: `destroy` wants an id that nobody uses: promise 1.
    unsafe { destroy(id) };
}

/// # Safety
///
/// As for [`id::destroy`].
unsafe fn destroy(raw: *mut rdma_cm_id) {
    // SAFETY: `Object::get` wants null or a live id: the caller's promise.
    if let Ok(id) = unsafe { Object::<rdma_cm_id>::get(raw) } {
        if id.qp().is_some() {
            id.destroy_qp();
        }
        // SAFETY: `destroy` asks for the same; `id` is not used below.
        let _gone = unsafe { id::destroy(raw) };
    }
}

/// `rdma_get_request`.
pub(super) unsafe extern "C" fn get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: `Object::get` wants null or a live id: promise 1.
    let request = || unsafe { Object::get(listen) }.and_then(request);
    // SAFETY: `hand_out` wants a pointer for writes: promise 2.
    unsafe { hand_out(id, request) }
}

fn request(listen: Id<'_>) -> Result<*mut rdma_cm_id, Errno> {
    if !listen.lock().sync {
        return Err(Errno::INVAL);
    }
    let (event, outcome) = events::take_own(listen)?;
    // SAFETY: `Object::get` wants a live event: just taken.
    let taken: &Object<rdma_cm_event> = unsafe { Object::get(event) }?;
    let raw = get_field!(taken, id);
    let is_request = outcome == Ok(Code::RDMA_CM_EVENT_CONNECT_REQUEST);
    let good = match outcome {
        Err(errno) => Err(errno),
        Ok(_) if !is_request => Err(Errno::INVAL),
        Ok(_) => {
            // SAFETY: `Object::get` wants a live id: the request's, which nobody else knows of.
            let id: Id<'_> = unsafe { Object::get(raw) }?;
            let init = listen.lock().qp_init;
            let made = init.map_or(Ok(()), |QpInit(mut init)| id.create_qp(get_field!(listen, pd), &mut init));
            made.inspect(|()| set_field!(id, event, event))
        }
    };
    good.map(|()| raw).inspect_err(|_| {
        set_field!(listen, event, event);
        if is_request {
            // SAFETY: `destroy` wants an id that nobody uses: a request whose queue pair cannot be made is nobody's.
            unsafe { destroy(raw) };
        }
    })
}

/// `rdma_getaddrinfo`.
pub(super) unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: `resolve` wants null or what C's types say: promise 2.
    let made = Service::get().map_err(Failure::from).and_then(|_| unsafe { addrinfo::resolve(node, service, hints) });
    match made {
        // SAFETY: `hand_out` wants a pointer for writes: promise 2.
        Ok(list) => unsafe { hand_out(res, || Ok(list.into_raw())) },
        Err(failure) => code(failure),
    }
}

fn code(failure: Failure) -> c_int {
    match failure {
        Failure::Errno(errno) => minus_one(Err(errno)),
        Failure::Resolver(code) => code,
    }
}

/// `rdma_freeaddrinfo`.
pub(super) unsafe extern "C" fn freeaddrinfo(res: *mut rdma_addrinfo) {
    // SAFETY: `free` wants a list that nobody uses any more: promise 1.
    unsafe { addrinfo::free(res) };
}

/// `rdma_resolve_addrinfo`: the answer comes at once, but by an event.
pub(super) unsafe extern "C" fn resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: `Object::get` wants null or a live id: promise 1.
    let resolved = unsafe { Object::get(id) }.map_err(Failure::from).and_then(|id| {
        // SAFETY: `resolve_for` wants null or what C's types say: promise 2.
        unsafe { resolve_for(id, node, service, hints) }
    });
    resolved.map_or_else(code, |()| 0)
}

/// # Safety
///
/// As for [`addrinfo::resolve`].
unsafe fn resolve_for(
    id: Id<'_>,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<(), Failure> {
    // SAFETY: `as_ref` wants null or a pointer for reads: the caller's promise.
    let flags = unsafe { hints.as_ref() }.map_or(0, |hints| hints.ai_flags);
    if u32::try_from(flags).is_ok_and(|flags| flags & RAI_SA != 0) {
        return Err(Errno(libc::ENOTSUP).into());
    }
    if std::mem::replace(&mut id.lock().resolving, true) {
        return Err(Errno::BUSY.into());
    }
    // SAFETY: `resolve` asks for the same.
    let list = unsafe { addrinfo::resolve(node, service, hints) }.inspect_err(|_| id.lock().resolving = false)?;
    id.lock().resolved = Some(list);
    id.with_entry(|entry| {
        let resolved = u64::from(Code::RDMA_CM_EVENT_ADDRINFO_RESOLVED.0);
        entry.push(Code::RDMA_CM_EVENT_INTERNAL, 0, Body::Arg(resolved));
        Ok(())
    })?;
    Ok(events::complete(id)?)
}

/// `rdma_query_addrinfo`.
pub(super) unsafe extern "C" fn query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    let query = |id: Id<'_>| {
        let mut inner = id.lock();
        let list = inner.resolved.take().ok_or(Errno(libc::ENOENT))?;
        inner.resolving = false;
        // SAFETY: `hand_out` wants a pointer for writes: promise 2.
        if unsafe { hand_out(info, || Ok(list.into_raw())) } == 0 { Ok(()) } else { Err(Errno::INVAL) }
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, query) }
}
