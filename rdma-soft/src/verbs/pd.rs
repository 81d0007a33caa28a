//! `ibv_pd`: protection domains, and parent domains made of them; `ibv_td`: thread domains.
//!
//! A domain cannot end while it is used. The engine counts the objects of a protection domain;
//! [`Users`] counts the parent domains made of a domain, and the objects made through a parent
//! domain.

use std::sync::Arc;

use rdma_sys::{
    ibv_context, ibv_parent_domain_init_attr, ibv_parent_domain_init_attr_mask as Mask, ibv_pd, ibv_td,
    ibv_td_init_attr,
};

use super::Errno;
use super::call::{Argument, Handle, In, Made};
use super::context::{Child, ContextState};
use super::object::{Object, Public};
use crate::engine::PdId;
use crate::node::Node;

/// Counts the users of a domain that the engine does not count: each of them has a clone.
#[derive(Debug, Default)]
struct Users(Arc<()>);

impl Users {
    fn enter(&self) -> Arc<()> {
        Arc::clone(&self.0)
    }

    /// `EBUSY` while the domain is used.
    fn check_none(&self) -> Result<(), Errno> {
        if Arc::strong_count(&self.0) == 1 { Ok(()) } else { Err(Errno::BUSY) }
    }
}

/// Private part of a protection domain or of a parent domain.
#[derive(Debug)]
pub(crate) struct PdState {
    /// The protection domain; that of a parent domain is the one that it was made of.
    pub(crate) id: PdId,
    pub(crate) context: Arc<ContextState>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Protection(Users),
    /// A parent domain, a user of its protection domain and of its thread domain.
    Parent {
        users: Users,
        _pd: Arc<()>,
        _td: Option<Arc<()>>,
    },
}

impl PdState {
    /// What an object of the domain keeps while it lives.
    pub(crate) fn hold(&self) -> PdUse {
        let parent = match &self.kind {
            Kind::Protection(_) => None,
            Kind::Parent { users, .. } => Some(users.enter()),
        };
        PdUse { id: self.id, _parent: parent }
    }
}

/// The protection domain of an object, and the parent domain through which the object was made.
#[derive(Clone, Debug)]
pub(crate) struct PdUse {
    pub(crate) id: PdId,
    _parent: Option<Arc<()>>,
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
        match &object.kind {
            Kind::Protection(users) => {
                users.check_none()?;
                node.with(|engine| engine.dealloc_pd(object.id))
            }
            Kind::Parent { users, .. } => users.check_none(),
        }
    }

    fn force_end(object: &Object<Self>, node: &Node) {
        if let Kind::Protection(_) = object.kind {
            // Fails only if another object, which could not be ended, still uses the domain.
            let _ended = node.with(|engine| engine.dealloc_pd(object.id));
        }
    }
}

/// `ibv_alloc_pd`.
pub(super) fn alloc_pd(ibv_context: Handle<ibv_context>) -> Made<ibv_pd> {
    let context = ibv_context.get()?;
    let id = Node::get()?.with(|engine| engine.alloc_pd())?;
    let public = ibv_pd { context: ibv_context.raw(), handle: id.0 };
    let kind = Kind::Protection(Users::default());
    Ok(context.create(public, PdState { id, context: Arc::clone(context), kind }))
}

/// The context's `alloc_parent_domain`. The device locks its queues whatever thread domain they
/// belong to, and never calls the allocators: it allocates nothing that a program could place.
pub(super) fn alloc_parent_domain(
    ibv_context: Handle<ibv_context>,
    attr: In<ibv_parent_domain_init_attr>,
) -> Made<ibv_pd> {
    let context = ibv_context.get()?;
    let attr = attr.get()?;
    let allocates = attr.comp_mask & Mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0 != 0;
    let known = Mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0 | Mask::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT.0;
    if attr.comp_mask & !known != 0 || (allocates && (attr.alloc.is_none() || attr.free.is_none())) {
        return Err(Errno::INVAL);
    }
    // SAFETY: `from_c` requires null or a live domain during the call: promise 1 for the
    // attributes.
    let pd = unsafe { Handle::<ibv_pd>::from_c(attr.pd) };
    // SAFETY: as for `pd`, a thread domain.
    let td = unsafe { Handle::<ibv_td>::from_c(attr.td) };
    let pd = pd.get()?;
    let Kind::Protection(users) = &pd.kind else { return Err(Errno::INVAL) };
    let td = if td.raw().is_null() { None } else { Some(td.get()?) };
    let contexts = [Some(&pd.context), td.map(|td| &td.context)];
    if contexts.into_iter().flatten().any(|of| !Arc::ptr_eq(of, context)) {
        return Err(Errno::INVAL);
    }
    let kind = Kind::Parent { users: Users::default(), _pd: users.enter(), _td: td.map(|td| td.users.enter()) };
    let public = ibv_pd { context: ibv_context.raw(), handle: pd.id.0 };
    Ok(context.create(public, PdState { id: pd.id, context: Arc::clone(context), kind }))
}

/// Private part of a thread domain, which has no effect.
#[derive(Debug)]
pub(crate) struct TdState {
    users: Users,
    context: Arc<ContextState>,
}

impl Public for ibv_td {
    const MARK: u64 = 0x0074_645f_7464_5f74;
    type Private = TdState;
}

impl Child for ibv_td {
    const ORDER: u8 = 4;

    fn context(object: &Object<Self>) -> &ContextState {
        &object.context
    }

    fn end(object: &Object<Self>, _node: &Node) -> Result<(), Errno> {
        object.users.check_none()
    }
}

/// The context's `alloc_td`.
pub(super) fn alloc_td(ibv_context: Handle<ibv_context>, attr: In<ibv_td_init_attr>) -> Made<ibv_td> {
    let context = ibv_context.get()?;
    if attr.get()?.comp_mask != 0 {
        return Err(Errno::INVAL);
    }
    let public = ibv_td { context: ibv_context.raw() };
    Ok(context.create(public, TdState { users: Users::default(), context: Arc::clone(context) }))
}
