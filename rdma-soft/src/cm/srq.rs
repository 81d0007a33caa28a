//! Shared receive queues of an id: `rdma_create_srq` makes them, and queue pairs that the id gets
//! later use them.

use std::ptr;

use rdma_sys::{ibv_pd, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_srq_init_attr_mask, ibv_srq_type, rdma_cm_id};

use super::calls::Done;
use super::qp::last_error;
use crate::engine::Errno;
use crate::verbs::call::{Handle, InOut};
use crate::verbs::object::{Object, get_field, set_field};

impl Object<rdma_cm_id> {
    /// The domain that C passed, or the id's for null.
    fn domain_or_own(&self, pd: *mut ibv_pd) -> *mut ibv_pd {
        if pd.is_null() { get_field!(self, pd) } else { pd }
    }

    /// Makes the id's shared receive queue.
    fn create_srq(&self, pd: *mut ibv_pd, init: &mut ibv_srq_init_attr) -> Result<(), Errno> {
        if get_field!(self, verbs).is_null() || !get_field!(self, srq).is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: `check_domain` requires null or a live domain: C's (promise 2), or the shared
        // one, which the id keeps alive.
        unsafe { self.check_domain(pd) }?;
        // SAFETY: `ibv_create_srq` requires a live domain, as above, and valid attributes.
        let srq = unsafe { (crate::ibverbs().ibv_create_srq)(pd, init) };
        if srq.is_null() {
            return Err(last_error());
        }
        set_field!(self, srq, srq);
        Ok(())
    }

    /// `rdma_create_srq_ex`, for basic queues.
    fn create_srq_ex(&self, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
        const TYPE: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;
        const PD: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
        if attr.comp_mask & TYPE == 0 {
            return Err(Errno::INVAL);
        }
        if attr.comp_mask & !(TYPE | PD) != 0 || attr.srq_type != ibv_srq_type::IBV_SRQT_BASIC {
            return Err(Errno::OPNOTSUPP);
        }
        let pd = self.domain_or_own(if attr.comp_mask & PD == 0 { ptr::null_mut() } else { attr.pd });
        let mut init = ibv_srq_init_attr { srq_context: attr.srq_context, attr: attr.attr };
        self.create_srq(pd, &mut init)?;
        attr.attr = init.attr;
        attr.pd = pd;
        attr.comp_mask |= PD;
        Ok(())
    }

    /// Destroys the id's shared receive queue, if any. A queue that queue pairs still use stays
    /// the id's.
    pub(super) fn destroy_srq(&self) {
        let srq = get_field!(self, srq);
        if srq.is_null() {
            return;
        }
        // SAFETY: `ibv_destroy_srq` requires a live queue that nobody uses afterwards: `create_srq`
        // stored the pointer, which is cleared below.
        if unsafe { (crate::ibverbs().ibv_destroy_srq)(srq) } == 0 {
            set_field!(self, srq, ptr::null_mut());
        }
    }
}

/// `rdma_create_srq`.
pub(super) fn create_srq(id: Handle<rdma_cm_id>, pd: Handle<ibv_pd>, mut attr: InOut<ibv_srq_init_attr>) -> Done {
    let id = id.get()?;
    Ok(id.create_srq(id.domain_or_own(pd.raw()), attr.get()?)?)
}

/// `rdma_create_srq_ex`.
pub(super) fn create_srq_ex(id: Handle<rdma_cm_id>, mut attr: InOut<ibv_srq_init_attr_ex>) -> Done {
    Ok(id.get()?.create_srq_ex(attr.get()?)?)
}

/// `rdma_destroy_srq`.
pub(super) fn destroy_srq(id: Handle<rdma_cm_id>) {
    if let Ok(id) = id.get() {
        id.destroy_srq();
    }
}
