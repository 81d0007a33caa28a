//! The inline functions that call exported symbols, as methods of the table, and the macros that
//! hide them in C.

use super::{Unsupported, verbs_get_ctx_op};
use crate::{Ibverbs, bindings::*};
use libc::{EINVAL, ENOSYS, EOPNOTSUPP, c_int, c_uint, c_void};

/// Bits that an implementation may ignore, and that only `ibv_reg_mr_iova2` takes.
const OPTIONAL: c_uint = crate::IBV_ACCESS_OPTIONAL_RANGE;

/// The safety rules are those of [the module](crate::inline), 1 to 6, and all objects are of this
/// table's implementation.
impl Ibverbs {
    /// The attributes of a port: by the context's operation, which fills all of them, or by the
    /// exported symbol, which fills the first 48 bytes.
    ///
    /// # Errors
    ///
    /// A positive errno value.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn ibv_query_port(
        &self,
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
    ) -> c_int {
        if let Some(query) = verbs_get_ctx_op!(context, query_port) {
            // SAFETY: the function has the slot's type (4). It requires a live context (1) and
            // space for attributes of the given length (2).
            return unsafe { query(context, port_num, port_attr, size_of::<ibv_port_attr>()) };
        }
        // SAFETY: write_bytes requires space for the attributes (2), for which zero is a value.
        unsafe { port_attr.write_bytes(0, 1) };
        // SAFETY: the symbol requires a live context (1) and space for 48 bytes (2): it writes the
        // beginning of the attributes, which no version has changed.
        unsafe { (self.ibv_query_port)(context, port_num, port_attr.cast()) }
    }

    /// An entry of a port's GID table, with its type and network interface.
    ///
    /// # Errors
    ///
    /// A positive errno value; `ENODATA` for an empty entry.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io;
    ///
    /// use rdma_sys::{Ibverbs, ibv_context, ibv_gid_entry};
    ///
    /// /// The first entry of port 1.
    /// ///
    /// /// # Safety
    /// ///
    /// /// The context is open, and of `verbs`.
    /// unsafe fn first(verbs: &Ibverbs, context: *mut ibv_context) -> io::Result<ibv_gid_entry> {
    ///     let mut entry = ibv_gid_entry::default();
    ///     // SAFETY: the context is open by this function's condition; `entry` is a local.
    ///     match unsafe { verbs.ibv_query_gid_ex(context, 1, 0, &raw mut entry, 0) } {
    ///         0 => Ok(entry),
    ///         errno => Err(io::Error::from_raw_os_error(errno)),
    ///     }
    /// }
    /// ```
    pub unsafe fn ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
    ) -> c_int {
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the symbol requires a live context (1) and space for an entry of the given size
        // (2).
        unsafe { (self._ibv_query_gid_ex)(context, port_num, gid_index, entry, flags, size) }
    }

    /// All entries of the GID tables of all ports that are not empty; returns their number, or a
    /// negative errno value.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn ibv_query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
    ) -> isize {
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the symbol requires a live context (1) and space for so many entries of the given
        // size (2).
        unsafe { (self._ibv_query_gid_table)(context, entries, max_entries, flags, size) }
    }

    /// The implementation's capabilities of completion counters.
    ///
    /// # Errors
    ///
    /// A positive errno value.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn ibv_query_comp_cntr_caps(&self, context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps) -> c_int {
        // SAFETY: the symbol requires a live context (1) and space for capabilities of the given
        // size (2).
        unsafe { (self._ibv_query_comp_cntr_caps)(context, caps, size_of::<ibv_comp_cntr_caps>()) }
    }

    /// Registers memory: by `ibv_reg_mr_iova2` if `access` has optional flags, otherwise by the
    /// oldest symbol, which every libibverbs has.
    ///
    /// In C the compiler decides, so flags that are not constant go to the newer symbol; both
    /// symbols treat them alike.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline); the memory stays valid until the region is
    /// deregistered, and nothing in Rust holds a reference to memory that the device or a peer may
    /// write.
    pub unsafe fn ibv_reg_mr(&self, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_uint) -> *mut ibv_mr {
        if access & OPTIONAL == 0 {
            // SAFETY: the symbol requires a live domain (1) and memory that stays valid (3).
            unsafe { (self.ibv_reg_mr)(pd, addr, length, access as c_int) }
        } else {
            let iova = addr.addr() as u64;
            // SAFETY: the symbol requires a live domain (1) and memory that stays valid (3).
            unsafe { (self.ibv_reg_mr_iova2)(pd, addr, length, iova, access) }
        }
    }

    /// Registers memory that peers address from `iova` on.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// The conditions of [`ibv_reg_mr`](Self::ibv_reg_mr).
    pub unsafe fn ibv_reg_mr_iova(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr {
        if access & OPTIONAL == 0 {
            // SAFETY: the symbol requires a live domain (1) and memory that stays valid (3).
            unsafe { (self.ibv_reg_mr_iova)(pd, addr, length, iova, access as c_int) }
        } else {
            // SAFETY: the symbol requires a live domain (1) and memory that stays valid (3).
            unsafe { (self.ibv_reg_mr_iova2)(pd, addr, length, iova, access) }
        }
    }

    /// Creates a shared receive queue; a basic one by the exported symbol.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`: `EOPNOTSUPP` if the implementation lacks the operation.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn ibv_create_srq_ex(
        &self,
        context: *mut ibv_context,
        srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
    ) -> *mut ibv_srq {
        const PD: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
        const TYPE: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;
        // SAFETY: the read requires attributes (2).
        let mask = unsafe { (*srq_init_attr_ex).comp_mask };
        let is_basic = mask & TYPE == 0
            // SAFETY: the read requires attributes, and the mask says that they have a type (2).
            || unsafe { (*srq_init_attr_ex).srq_type } == ibv_srq_type::IBV_SRQT_BASIC;
        if mask & !(PD | TYPE) == 0 && mask & PD != 0 && is_basic {
            // SAFETY: the read requires attributes, and the mask says that they have a domain (2).
            let pd = unsafe { (*srq_init_attr_ex).pd };
            // SAFETY: the symbol requires a live domain (1) and plain attributes, with which the
            // extended ones begin (2).
            return unsafe { (self.ibv_create_srq)(pd, srq_init_attr_ex.cast()) };
        }
        match verbs_get_ctx_op!(context, create_srq_ex) {
            // SAFETY: the function has the slot's type (4). It requires a live context (1) and
            // attributes (2).
            Some(create) => unsafe { create(context, srq_init_attr_ex) },
            None => Unsupported::unsupported(),
        }
    }

    /// Creates a queue pair; by the exported symbol if the domain is its only extended attribute.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`: `EOPNOTSUPP` if the implementation lacks the operation.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn ibv_create_qp_ex(
        &self,
        context: *mut ibv_context,
        qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        // SAFETY: the read requires attributes (2).
        let mask = unsafe { (*qp_init_attr_ex).comp_mask };
        if mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
            // SAFETY: the read requires attributes, and the mask says that they have a domain (2).
            let pd = unsafe { (*qp_init_attr_ex).pd };
            // SAFETY: the symbol requires a live domain (1) and plain attributes, with which the
            // extended ones begin (2).
            return unsafe { (self.ibv_create_qp)(pd, qp_init_attr_ex.cast()) };
        }
        match verbs_get_ctx_op!(context, create_qp_ex) {
            // SAFETY: the function has the slot's type (4). It requires a live context (1) and
            // attributes (2).
            Some(create) => unsafe { create(context, qp_init_attr_ex) },
            None => Unsupported::unsupported(),
        }
    }

    /// The attributes of a device, by the context's operation. If the operation is missing or fails
    /// as unsupported, the plain attributes come from the exported symbol, and the others are zero.
    ///
    /// # Errors
    ///
    /// A positive errno value: `EINVAL` if `input` asks for something.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline); `input` may be NULL.
    pub unsafe fn ibv_query_device_ex(
        &self,
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: as_ref requires NULL or a readable input (2).
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return EINVAL;
        }
        if let Some(query) = verbs_get_ctx_op!(context, query_device_ex) {
            // SAFETY: the function has the slot's type (4). It requires a live context (1), an
            // input or NULL, and space for attributes of the given size (2).
            let result = unsafe { query(context, input, attr, size_of::<ibv_device_attr_ex>()) };
            if result != EOPNOTSUPP && result != ENOSYS {
                return result;
            }
        }
        // SAFETY: write_bytes requires space for the attributes (2), for which zero is a value.
        unsafe { attr.write_bytes(0, 1) };
        // SAFETY: the place requires a valid pointer to attributes (2); nothing is read.
        let plain = unsafe { &raw mut (*attr).orig_attr };
        // SAFETY: the symbol requires a live context (1) and space for plain attributes, which are
        // a field of the extended ones.
        unsafe { (self.ibv_query_device)(context, plain) }
    }
}
