//! Connection managers, and the contexts of their devices.
//!
//! librdmacm opens a context of its own for each device. It closes that context when the device is
//! gone and the last id on it is destroyed, whatever a program still has of it: such a context
//! cannot be lent as a [`Context`]. So an id's context is one that the program opened or that this
//! module opens, on the device that librdmacm names. A queue pair of it may be connected by the id,
//! because the kernel knows both by the device. A context that was opened here is closed with its
//! last handle and object, like any other.
//!
//! # Invariants
//!
//! 1. Nothing is opened or dropped while the lock of the [`OpenedContexts`] is held: a provider's
//!    call may take long, and may log.
//! 2. A forked child does not use its parent's [`OpenedContexts`], whose lock another thread may
//!    have held at the fork.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_sys::RdmaCm;

use crate::context::{Context, ContextInner};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::fork::MadeIn;
use crate::handle::Handle;

/// A connection manager, with its devices.
#[derive(Clone)]
pub(super) struct Manager {
    pub(super) table: &'static RdmaCm,
    /// One of its devices, which names the library that lists the others.
    device: Device,
    /// A context of the program: ids on its device tell this one.
    context: Option<Context>,
}

impl Manager {
    /// The connection manager of the hardware; of the software device if there is no hardware.
    pub(super) fn of_host() -> Result<Self> {
        let none = Error::new(Verb::CreateEventChannel, ErrorKind::NoDevice);
        let device = match Device::hardware()?.into_iter().next() {
            Some(device) => device,
            None => Device::software()?.into_iter().next().ok_or(none)?,
        };
        Ok(Self { table: table(&device)?, device, context: None })
    }

    /// The connection manager of a context's device.
    pub(super) fn of(context: &Context) -> Result<Self> {
        let device = context.device().clone();
        Ok(Self { table: table(&device)?, device, context: Some(context.clone()) })
    }

    /// Whether a context is open on a device of this connection manager.
    pub(super) fn serves(&self, context: &Context) -> bool {
        ptr::eq(context.table(), self.device.table())
    }

    /// The context of one of the devices, opened if none is open.
    pub(super) fn context_of(&self, name: &str) -> Result<Context> {
        if let Some(context) = self.context.as_ref().filter(|context| context.name() == name) {
            return Ok(context.clone());
        }
        let opened = OpenedContexts::get();
        let mut new = None;
        loop {
            let (known, additions) = opened.known();
            let mut living = known.iter().filter_map(Weak::upgrade).map(|inner| Context { inner });
            if let Some(context) = living.find(|context| self.serves(context) && context.name() == name) {
                return Ok(context);
            }
            match new.take() {
                None => new = Some(self.open(name)?),
                Some(context) if opened.add(&context, additions) => return Ok(context),
                // Another thread has opened a device meanwhile, maybe this one.
                other => new = other,
            }
        }
    }

    fn open(&self, name: &str) -> Result<Context> {
        let devices = self.device.list_again()?;
        let device = devices.iter().find(|device| device.name() == name);
        device.ok_or(Error::new(Verb::OpenDevice, ErrorKind::NoDevice))?.open()
    }
}

/// The contexts that were opened for ids. A context that is still open is told by every id on its
/// device, whatever the id's channel.
#[derive(Default)]
struct OpenedContexts {
    made_in: MadeIn,
    list: Mutex<ContextList>,
}

#[derive(Default)]
struct ContextList {
    contexts: Vec<Weak<Handle<ContextInner>>>,
    /// How many contexts were added so far.
    additions: u64,
}

impl OpenedContexts {
    /// Those of this process (2).
    fn get() -> &'static Self {
        static CURRENT: AtomicPtr<OpenedContexts> = AtomicPtr::new(ptr::null_mut());
        let current = CURRENT.load(Ordering::Acquire);
        // SAFETY: as_ref requires NULL, or a value that lives as long as the reference: what is
        // stored below is never freed.
        if let Some(own) = unsafe { current.as_ref() }.filter(|own| !own.made_in.is_forked()) {
            return own;
        }
        let new = Box::into_raw(Box::default());
        match CURRENT.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the reference requires a value that is never freed: it has just been stored.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: from_raw requires a pointer of into_raw that nobody else has: it was not
                // stored.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: the reference requires a value that is never freed: another thread has
                // stored it, and none stores NULL.
                unsafe { &*other }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ContextList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The contexts, of which some may be closed by now, and the count of additions.
    fn known(&self) -> (Vec<Weak<Handle<ContextInner>>>, u64) {
        let list = self.lock();
        (list.contexts.clone(), list.additions)
    }

    /// Adds a context, unless another was added after the count of additions was taken.
    fn add(&self, context: &Context, additions: u64) -> bool {
        let mut list = self.lock();
        let is_first = list.additions == additions;
        if is_first {
            list.contexts.retain(|context| context.strong_count() > 0);
            list.contexts.push(Arc::downgrade(&context.inner));
            list.additions += 1;
        }
        is_first
    }
}

/// The connection manager's functions for a device.
fn table(device: &Device) -> Result<&'static RdmaCm> {
    if let Some(table) = device.manager() {
        return Ok(table);
    }
    if device.is_software() {
        return software();
    }
    RdmaCm::system().map_err(|error| {
        tracing::debug!(name: "no_connection_manager", target: "rdma", %error, "no connection manager");
        Error::new(Verb::LoadLibrary, ErrorKind::NotSupported)
    })
}

/// The software device's connection manager.
#[cfg(feature = "soft")]
fn software() -> Result<&'static RdmaCm> {
    Ok(rdma_soft::rdmacm())
}

/// Fails: this build has no software device.
#[cfg(not(feature = "soft"))]
fn software() -> Result<&'static RdmaCm> {
    Err(Error::new(Verb::CreateEventChannel, ErrorKind::NotSupported))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_forked_child_opens_contexts_of_its_own() {
        testing::add_device("nic_fork");
        let own = testing::context();
        let context = Manager::of(&own).unwrap().context_of("nic_fork").unwrap();
        // As if another thread held the lock at the fork: the child must not wait for it.
        let locked = OpenedContexts::get().lock();
        // SAFETY: fork requires a child that calls no function that needs a lock of another thread:
        // the child's calls are those under test, over a provider in memory of this thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: alarm has no requirements. It ends a child that waits.
            unsafe { libc::alarm(60) };
            let own = testing::context();
            let manager = Manager::of(&own).unwrap();
            let new = manager.context_of("nic_fork").unwrap();
            let again = manager.context_of("nic_fork").unwrap();
            let is_new = new.as_raw() != context.as_raw() && new.as_raw() == again.as_raw();
            // SAFETY: _exit has no requirements.
            unsafe { libc::_exit(if is_new && new.port_attr(2).is_ok() { 0 } else { 1 }) };
        }
        drop(locked);
        let mut status = 0;
        // SAFETY: waitpid requires space for a status: a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    #[cfg(feature = "soft")]
    fn threads_that_open_and_close_a_device_share_its_context() {
        let device = Device::software().unwrap().remove(0);
        let manager = Manager { table: table(&device).unwrap(), device, context: None };
        let open_and_close = || {
            for _ in 0..100 {
                let one = manager.context_of("soft0").unwrap();
                assert_eq!(manager.context_of("soft0").unwrap().as_raw(), one.as_raw());
                assert!(one.alloc_pd().is_ok());
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(open_and_close))));
    }
}
