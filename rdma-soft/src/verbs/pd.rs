//! `ibv_pd`: protection domains.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_sys::{ibv_context, ibv_pd};

use super::Errno;
use super::context::{self, Child, ContextState};
use super::errno::{pointer, status};
use super::object::{Object, Public};
use crate::engine::PdId;
use crate::node::Node;

/// What the device keeps about a protection domain.
#[derive(Debug)]
pub(crate) struct PdState {
    pub(crate) id: PdId,
    pub(crate) context: Arc<ContextState>,
}

impl Public for ibv_pd {
    const MARK: u64 = 0x0070_645f_7064_5f70;
    type Private = PdState;
}

/// Finds the domain behind a pointer from C.
///
/// # Safety
///
/// As for [`Object::get`].
pub(crate) unsafe fn get<'a>(pd: *mut ibv_pd) -> Result<&'a PdState, Errno> {
    // SAFETY: the caller's promise.
    unsafe { Object::get(pd) }.map(Object::private)
}

/// `ibv_alloc_pd`.
pub(super) unsafe extern "C" fn alloc_pd(ibv_context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: C's promise about the context.
    pointer(unsafe { context::get(ibv_context) }.and_then(|context| {
        let id = Node::get()?.with(|engine| engine.alloc_pd())?;
        let public = ibv_pd { context: ibv_context, handle: id.0 };
        let pd = Object::create(public, PdState { id, context: Arc::clone(context) });
        context.adopt(Child::Pd(pd));
        Ok(pd)
    }))
}

/// `ibv_dealloc_pd`.
pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: C's promise about the domain.
    status(unsafe { get(pd) }.and_then(|state| {
        Node::get()?.with(|engine| engine.dealloc_pd(state.id))?;
        state.context.disown(pd);
        // SAFETY: C's promise: nobody uses a domain that is being freed; `state` is not used below.
        unsafe { Object::free(pd) }
    }))
}

/// Ends a domain whose context is closed.
///
/// # Safety
///
/// As for [`Object::get`].
pub(super) unsafe fn abandon(pd: *mut ibv_pd) {
    // SAFETY: the caller's promise.
    if let (Ok(object), Ok(node)) = (unsafe { Object::get(pd) }, Node::get()) {
        // Busy only with what could not be ended either.
        let _freed = node.with(|engine| engine.dealloc_pd(object.private().id));
        object.abandon();
    }
}
