//! Endpoints (`rdma_create_ep`): synchronous ids set up in one call, `rdma_get_request`, and the
//! address information from which endpoints are made.

use std::ffi::c_int;
use std::ptr;

use rdma_sys::{
    RAI_PASSIVE, RAI_SA, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, ibv_pd, ibv_qp_init_attr, ibv_qp_type, rdma_addrinfo,
    rdma_cm_event, rdma_cm_event_type as Code, rdma_cm_id, rdma_port_space,
};

use super::address::Addr;
use super::addrinfo::{self, Failure, OwnList};
use super::calls::{self, Done};
use super::channel::Body;
use super::events::{self, Taking};
use super::id::{self, Id, QpInit};
use super::options;
use super::service::Service;
use crate::engine::Errno;
use crate::verbs::call::{Argument, Data, Handle, In, InConst, InOut, MinusOne, Next, Out, Own, Text};
use crate::verbs::object::{Object, get_field, set_field};

fn unsigned(value: c_int) -> Result<u32, Errno> {
    u32::try_from(value).map_err(|_| Errno::INVAL)
}

/// `rdma_create_ep`.
pub(super) fn create_ep(
    id: Out<*mut rdma_cm_id>,
    res: In<rdma_addrinfo>,
    pd: Handle<ibv_pd>,
    mut qp_init_attr: InOut<ibv_qp_init_attr>,
) -> Done {
    Ok(id.fill(|| create(res.get()?, &pd, qp_init_attr.optional()))?)
}

fn create(
    res: &rdma_addrinfo,
    pd: &Handle<ibv_pd>,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<*mut rdma_cm_id, Errno> {
    let (ps, qp_type) = (rdma_port_space(unsigned(res.ai_port_space)?), ibv_qp_type(unsigned(res.ai_qp_type)?));
    let raw = id::create(&Handle::NULL, ptr::null_mut(), ps, qp_type)?;
    // SAFETY: `from_c` requires a live id that nobody else uses: made above, and C does not hold it
    // yet.
    let made = unsafe { Own::from_c(raw) };
    let is_active = unsigned(res.ai_flags).is_ok_and(|flags| flags & RAI_PASSIVE == 0);
    let ready =
        made.get().and_then(|id| if is_active { active(id, res, pd, init) } else { passive(id, res, pd, init) });
    if let Err(errno) = ready {
        destroy_ep(made);
        return Err(errno);
    }
    Ok(raw)
}

/// The local address of an endpoint.
fn source(res: &rdma_addrinfo) -> Addr {
    // SAFETY: `from_c` requires null, or an address that is valid for its family: promise 2 for the
    // address information.
    unsafe { Addr::from_c(res.ai_src_addr) }
}

fn passive(
    id: Id<'_>,
    res: &rdma_addrinfo,
    pd: &Handle<ibv_pd>,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<(), Errno> {
    calls::bind(id, source(res).get()?)?;
    if !pd.raw().is_null() {
        set_field!(id, pd, pd.raw());
    }
    let qp_type = get_field!(id, qp_type);
    id.lock().qp_init = init.map(|init| QpInit(ibv_qp_init_attr { qp_type, ..*init }));
    Ok(())
}

fn active(
    id: Id<'_>,
    res: &rdma_addrinfo,
    pd: &Handle<ibv_pd>,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<(), Errno> {
    // SAFETY: `from_c` requires null, or an address that is valid for its family: promise 2 for the
    // address information.
    let destination = unsafe { Addr::from_c(res.ai_dst_addr) }.get()?;
    // SAFETY: `from_c` requires null, or a pointer that is valid for the length beside it: promise
    // 2 for the address information.
    let route = unsafe { Data::from_c(res.ai_route) };
    // SAFETY: `List::get` requires the length that C passed beside the pointer.
    let route = unsafe { route.0.get(res.ai_route_len) };
    // SAFETY: `from_c` requires null, or a pointer that is valid for the length beside it: promise
    // 2 for the address information.
    let data = unsafe { Data::from_c(res.ai_connect) };
    // SAFETY: `List::get` requires the length that C passed beside the pointer.
    let data = unsafe { data.0.get(res.ai_connect_len) };
    calls::resolve(id, source(res).optional()?, destination)?;
    if route.is_empty() {
        calls::route(id)?;
    } else {
        options::set(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, route)?;
        events::complete(id)?;
    }
    if let Some(init) = init {
        init.qp_type = get_field!(id, qp_type);
        id.create_qp(pd, init)?;
    }
    id.lock().connect_data = data.to_vec();
    Ok(())
}

/// `rdma_destroy_ep`.
pub(super) fn destroy_ep(pointer: Own<rdma_cm_id>) {
    if let Ok(id) = pointer.get() {
        if id.qp().is_some() {
            id.destroy_qp();
        }
        id.destroy_srq();
        let _gone = id::destroy(pointer);
    }
}

/// `rdma_get_request`.
pub(super) fn get_request(listen: Handle<rdma_cm_id>, id: Out<*mut rdma_cm_id>) -> Done {
    Ok(id.fill(|| request(listen.get()?))?)
}

/// `rdma_get_request` up to its read(2) of the descriptor of the listener's channel, or after it:
/// see [`Next`].
pub(super) fn next_request(listen: Handle<rdma_cm_id>, id: Out<*mut rdma_cm_id>, reads: u32) -> Result<Next, MinusOne> {
    id.check()?;
    let listen = listen.get()?;
    if !listen.lock().sync {
        return Err(Errno::INVAL.into());
    }
    if reads == 0 {
        listen.acknowledge_own();
        return Ok(Next::Read);
    }
    let Some(taken) = events::take_own_after(listen, reads)? else { return Ok(Next::Read) };
    id.write(requested(listen, taken)?)?;
    Ok(Next::Done)
}

fn request(listen: Id<'_>) -> Result<*mut rdma_cm_id, Errno> {
    if !listen.lock().sync {
        return Err(Errno::INVAL);
    }
    requested(listen, events::take_own(listen)?)
}

/// The id of a request, whose event was taken.
fn requested(listen: Id<'_>, (event, outcome): Taking) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: `Object::get` requires a live event: `take_own` returned it, and it is not
    // acknowledged.
    let taken: &Object<rdma_cm_event> = unsafe { Object::get(event) }?;
    let raw = get_field!(taken, id);
    let is_request = outcome == Ok(Code::RDMA_CM_EVENT_CONNECT_REQUEST);
    let good = match outcome {
        Err(errno) => Err(errno),
        Ok(_) if !is_request => Err(Errno::INVAL),
        Ok(_) => {
            // SAFETY: `Object::get` requires a live id: the one of the request, which C does not
            // hold yet.
            let id: Id<'_> = unsafe { Object::get(raw) }?;
            let (init, pd) = (listen.lock().qp_init, get_field!(listen, pd));
            // SAFETY: `from_c` requires null or a live domain: C keeps a domain that it gave to an
            // id at least as long as the id.
            let pd = unsafe { Handle::from_c(pd) };
            let made = init.map_or(Ok(()), |QpInit(mut init)| id.create_qp(&pd, &mut init));
            made.inspect(|()| set_field!(id, event, event))
        }
    };
    good.map(|()| raw).inspect_err(|_| {
        set_field!(listen, event, event);
        if is_request {
            // SAFETY: `from_c` requires a live id that nobody uses: the request failed, so C never
            // gets its id.
            destroy_ep(unsafe { Own::from_c(raw) });
        }
    })
}

/// `rdma_getaddrinfo`.
pub(super) fn getaddrinfo(
    node: Text,
    service: Text,
    hints: InConst<rdma_addrinfo>,
    res: Out<*mut rdma_addrinfo>,
) -> Result<(), Failure> {
    Service::get()?;
    res.fill(|| addrinfo::resolve(&node, &service, &hints).map(addrinfo::List::into_raw))
}

/// `rdma_freeaddrinfo`.
pub(super) fn freeaddrinfo(res: OwnList) {
    res.free();
}

/// `rdma_resolve_addrinfo`: resolves during the call, and reports the completion by an event. As in
/// librdmacm, `errno` is the code of `getaddrinfo` if that fails.
pub(super) fn resolve_addrinfo(
    id: Handle<rdma_cm_id>,
    node: Text,
    service: Text,
    hints: InConst<rdma_addrinfo>,
) -> Done {
    let id = id.get()?;
    let flags = hints.optional().map_or(0, |hints| hints.ai_flags);
    if u32::try_from(flags).is_ok_and(|flags| flags & RAI_SA != 0) {
        return Err(Errno(libc::ENOTSUP).into());
    }
    if std::mem::replace(&mut id.lock().resolving, true) {
        return Err(Errno::BUSY.into());
    }
    let resolved = addrinfo::resolve(&node, &service, &hints).map_err(Errno::from);
    let done = resolved.and_then(|list| report_resolved(id, list));
    Ok(done.inspect_err(|_| {
        let mut inner = id.lock();
        (inner.resolving, inner.resolved) = (false, None);
    })?)
}

fn report_resolved(id: Id<'_>, list: addrinfo::List) -> Result<(), Errno> {
    id.lock().resolved = Some(list);
    id.with_entry(|entry| {
        let resolved = u64::from(Code::RDMA_CM_EVENT_ADDRINFO_RESOLVED.0);
        entry.push(Code::RDMA_CM_EVENT_INTERNAL, 0, Body::Arg(resolved));
        Ok(())
    })?;
    events::complete(id)
}

/// `rdma_query_addrinfo`.
pub(super) fn query_addrinfo(id: Handle<rdma_cm_id>, info: Out<*mut rdma_addrinfo>) -> Done {
    let id = id.get()?;
    Ok(info.fill(|| {
        let mut inner = id.lock();
        let list = inner.resolved.take().ok_or(Errno(libc::ENOENT))?;
        inner.resolving = false;
        Ok::<_, Errno>(list.into_raw())
    })?)
}
