//! `ibv_pd`: protection domains, and parent domains made of them; `ibv_td`: thread domains.
//!
//! `ibv_import_pd` makes another object of a protection domain. The domain ends when C deallocates
//! one of its objects; the others then fail with `EINVAL`.
//!
//! A domain cannot end while it is used. The engine counts the objects of a protection domain;
//! [`Users`] counts the parent domains made of a domain, and the objects made through a parent
//! domain.
//!
//! A parent domain is another name of its protection domain. A thread domain has no effect, because
//! one lock guards the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::{
    ibv_context, ibv_parent_domain_init_attr, ibv_parent_domain_init_attr_mask as Mask, ibv_pd, ibv_td,
    ibv_td_init_attr,
};

use super::Errno;
use super::call::{Argument, Handle, In, Made, Own};
use super::context::{Child, ContextState, discard};
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

/// A protection domain, which its objects share.
#[derive(Debug)]
struct Protection {
    id: PdId,
    users: Users,
    has_ended: AtomicBool,
}

impl Protection {
    fn end(&self, node: &Node) -> Result<(), Errno> {
        self.users.check_none()?;
        self.force_end(node)
    }

    fn force_end(&self, node: &Node) -> Result<(), Errno> {
        node.with(|engine| {
            // Another domain may have the number of one that has ended.
            self.id()?;
            engine.dealloc_pd(self.id)?;
            self.has_ended.store(true, Ordering::Release);
            Ok(())
        })
    }

    /// The domain's number. `EINVAL` if the domain has ended.
    fn id(&self) -> Result<PdId, Errno> {
        if self.has_ended.load(Ordering::Acquire) { Err(Errno::INVAL) } else { Ok(self.id) }
    }
}

/// Private part of a protection domain or of a parent domain.
#[derive(Debug)]
pub(crate) struct PdState {
    /// The protection domain; that of a parent domain is the one that it was made of.
    protection: Arc<Protection>,
    pub(crate) context: Arc<ContextState>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Protection,
    /// Another object of a protection domain.
    Imported,
    /// A parent domain, a user of its protection domain and of its thread domain.
    Parent {
        users: Users,
        _pd: Arc<()>,
        _td: Option<Arc<()>>,
    },
}

impl PdState {
    /// What an object of the domain keeps while it lives. `EINVAL` if the domain has ended.
    pub(crate) fn hold(&self) -> Result<PdUse, Errno> {
        let parent = match &self.kind {
            Kind::Protection | Kind::Imported => None,
            Kind::Parent { users, .. } => Some(users.enter()),
        };
        Ok(PdUse { id: self.protection.id()?, _parent: parent })
    }
}

/// Keeps C from deallocating a parent domain, which fails with `EBUSY` while the value exists.
#[derive(Debug)]
pub(crate) struct ParentUse {
    _user: Arc<()>,
}

impl ParentUse {
    /// `EINVAL` for a protection domain, or one of another context.
    pub(crate) fn new(pd: &PdState, context: &Arc<ContextState>) -> Result<Self, Errno> {
        match &pd.kind {
            Kind::Parent { users, .. } if Arc::ptr_eq(&pd.context, context) => Ok(Self { _user: users.enter() }),
            _ => Err(Errno::INVAL),
        }
    }
}

/// Keeps C from deallocating a protection domain, which fails with `EBUSY` while the value exists.
#[derive(Debug)]
pub(crate) struct PdPin {
    _user: Arc<()>,
}

impl PdPin {
    pub(crate) fn new(pd: &PdState) -> Self {
        Self { _user: pd.protection.users.enter() }
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
            Kind::Protection | Kind::Imported => object.protection.end(node),
            Kind::Parent { users, .. } => users.check_none(),
        }
    }

    fn force_end(object: &Object<Self>, node: &Node) {
        if let Kind::Protection = object.kind {
            // Parent domains are no reason to keep the domain. Fails only if an object of the
            // domain, which could not be ended or was made through an imported object, still lives.
            let _ended = object.protection.force_end(node);
        }
    }
}

/// `ibv_alloc_pd`.
pub(super) fn alloc_pd(ibv_context: Handle<ibv_context>) -> Made<ibv_pd> {
    let context = ibv_context.get()?;
    let id = Node::get()?.with(|engine| engine.alloc_pd())?;
    let public = ibv_pd { context: ibv_context.raw(), handle: id.0 };
    let protection = Arc::new(Protection { id, users: Users::default(), has_ended: AtomicBool::new(false) });
    Ok(context.create(public, PdState { protection, context: Arc::clone(context), kind: Kind::Protection }))
}

/// `ibv_import_pd`: another object of the protection domain with this handle. `ENOENT` if neither
/// the context nor another one with its command descriptor has such a domain.
pub(super) fn import_pd(ibv_context: Handle<ibv_context>, handle: u32) -> Made<ibv_pd> {
    let context = ibv_context.get()?;
    let domains = context.collect(|pd: &Object<ibv_pd>| Arc::clone(&pd.protection));
    let found = domains.into_iter().find(|protection| protection.id() == Ok(PdId(handle)));
    let protection = found.ok_or(Errno(libc::ENOENT))?;
    let public = ibv_pd { context: ibv_context.raw(), handle };
    Ok(context.create(public, PdState { protection, context: Arc::clone(context), kind: Kind::Imported }))
}

/// `ibv_unimport_pd`: frees an imported object; the domain stays. Does nothing to other objects.
pub(super) fn unimport_pd(pd: Own<ibv_pd>) {
    if pd.get().is_ok_and(|pd| matches!(pd.kind, Kind::Imported)) {
        // Fails only if another thread frees the object, which C must not do.
        let _freed = discard(pd);
    }
}

/// The context's `alloc_parent_domain`. The device locks its queues whatever thread domain they
/// belong to, and never calls the allocators: it allocates nothing that a program could place.
/// `EOPNOTSUPP` for flags that it does not know, at which programs go on without them.
pub(super) fn alloc_parent_domain(
    ibv_context: Handle<ibv_context>,
    attr: In<ibv_parent_domain_init_attr>,
) -> Made<ibv_pd> {
    let context = ibv_context.get()?;
    let attr = attr.get()?;
    let allocates = attr.comp_mask & Mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0 != 0;
    let known = Mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0 | Mask::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT.0;
    if attr.comp_mask & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if allocates && (attr.alloc.is_none() || attr.free.is_none()) {
        return Err(Errno::INVAL);
    }
    // SAFETY: `from_c` requires null or a live domain during the call: promise 1 for the
    // attributes.
    let pd = unsafe { Handle::<ibv_pd>::from_c(attr.pd) };
    // SAFETY: as for `pd`, a thread domain.
    let td = unsafe { Handle::<ibv_td>::from_c(attr.td) };
    let pd = pd.get()?;
    let id = pd.protection.id()?;
    if let Kind::Parent { .. } = pd.kind {
        return Err(Errno::INVAL);
    }
    let td = if td.raw().is_null() { None } else { Some(td.get()?) };
    let contexts = [Some(&pd.context), td.map(|td| &td.context)];
    if contexts.into_iter().flatten().any(|of| !Arc::ptr_eq(of, context)) {
        return Err(Errno::INVAL);
    }
    let kind =
        Kind::Parent { users: Users::default(), _pd: pd.protection.users.enter(), _td: td.map(|td| td.users.enter()) };
    let public = ibv_pd { context: ibv_context.raw(), handle: id.0 };
    let protection = Arc::clone(&pd.protection);
    Ok(context.create(public, PdState { protection, context: Arc::clone(context), kind }))
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
        return Err(Errno::OPNOTSUPP);
    }
    let public = ibv_td { context: ibv_context.raw() };
    Ok(context.create(public, TdState { users: Users::default(), context: Arc::clone(context) }))
}
