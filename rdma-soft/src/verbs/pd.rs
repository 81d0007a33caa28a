//! `ibv_pd`: protection domains.

use std::sync::Arc;

use rdma_sys::{ibv_context, ibv_pd};

use super::Errno;
use super::call::{Handle, Made};
use super::context::{Child, ContextState};
use super::object::{Object, Public};
use crate::engine::PdId;
use crate::node::Node;

/// Private part of a protection domain.
#[derive(Debug)]
pub(crate) struct PdState {
    pub(crate) id: PdId,
    pub(crate) context: Arc<ContextState>,
}

impl Public for ibv_pd {
    const MARK: u64 = 0x0070_645f_7064_5f70;
    type Private = PdState;
}

impl Child for ibv_pd {
    const ORDER: u8 = 3;

    fn context(object: &Object<Self>) -> &ContextState {
        &object.context
    }

    fn end(object: &Object<Self>, node: &Node) -> Result<(), Errno> {
        node.with(|engine| engine.dealloc_pd(object.id))
    }
}

/// `ibv_alloc_pd`.
pub(super) fn alloc_pd(ibv_context: Handle<ibv_context>) -> Made<ibv_pd> {
    let context = ibv_context.get()?;
    let id = Node::get()?.with(|engine| engine.alloc_pd())?;
    let public = ibv_pd { context: ibv_context.raw(), handle: id.0 };
    Ok(context.create(public, PdState { id, context: Arc::clone(context) }))
}
