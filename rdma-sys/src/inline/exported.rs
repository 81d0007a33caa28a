//! The inline functions that call exported symbols, as methods of the table, and the macros that hide them in C.

use super::verbs_get_ctx_op;
use crate::{Ibverbs, bindings::*};
use libc::{EINVAL, ENOSYS, EOPNOTSUPP, c_int, c_uint, c_void};

/// Bits that an implementation may ignore, and that only `ibv_reg_mr_iova2` takes.
const OPTIONAL: c_uint = crate::IBV_ACCESS_OPTIONAL_RANGE;

/// The safety rules are those of [the module](crate::inline), 1 to 6; and the objects are of this table's
/// implementation.
impl Ibverbs {
    /// A NULL-terminated array of the devices, and their number.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn ibv_get_device_list(&self, num_devices: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller's promise is the symbol's.
        unsafe { (self.ibv_get_device_list)(num_devices) }
    }

    /// What the header's macro `ibv_get_device_list` calls. Its other half, `ibv_static_providers`, tells the linker
    /// which providers to take into a static program, and has no use here.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn __ibv_get_device_list(&self, num_devices: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller's promise is the symbol's.
        unsafe { (self.ibv_get_device_list)(num_devices) }
    }

    /// A port's attributes: through the context's operation, which knows all of them, or through the exported symbol,
    /// which knows the first 48 bytes.
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
            // SAFETY: by 4, it has this type; by 1 and 2, context and room are valid, and the length is the room's.
            return unsafe { query(context, port_num, port_attr, size_of::<ibv_port_attr>()) };
        }
        // SAFETY: by 2, there is room for the attributes.
        unsafe { port_attr.write_bytes(0, 1) };
        // SAFETY: by 1 and 2; the symbol writes the beginning of the attributes, which has not changed since.
        unsafe { (self.ibv_query_port)(context, port_num, port_attr.cast()) }
    }

    /// What the header's macro `ibv_query_port` calls.
    ///
    /// # Errors
    ///
    /// A positive errno value.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn ___ibv_query_port(
        &self,
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: the same promise.
        unsafe { self.ibv_query_port(context, port_num, port_attr) }
    }

    /// An entry of the GID table, with its type and network interface.
    ///
    /// # Errors
    ///
    /// A positive errno value.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
    ) -> c_int {
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the caller's promise is the symbol's; the size is the entry's.
        unsafe { (self._ibv_query_gid_ex)(context, port_num, gid_index, entry, flags, size) }
    }

    /// All entries of the GID tables of all ports that are not empty; returns their number, or a negative errno value.
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
        // SAFETY: the caller's promise is the symbol's; the size is an entry's.
        unsafe { (self._ibv_query_gid_table)(context, entries, max_entries, flags, size) }
    }

    /// What the implementation can do with completion counters.
    ///
    /// # Errors
    ///
    /// A positive errno value.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn ibv_query_comp_cntr_caps(&self, context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps) -> c_int {
        // SAFETY: the caller's promise is the symbol's; the size is that of `caps`.
        unsafe { (self._ibv_query_comp_cntr_caps)(context, caps, size_of::<ibv_comp_cntr_caps>()) }
    }

    /// Registers memory: through `ibv_reg_mr_iova2` if `access` has optional flags, else through the oldest symbol,
    /// which every libibverbs has.
    ///
    /// C decides when it compiles, so flags that it does not know then go to the newer symbol; both do the same with
    /// them.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline); the memory stays valid until the region is deregistered, and nothing
    /// in Rust holds a reference to what the device or a peer may write.
    pub unsafe fn ibv_reg_mr(&self, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_uint) -> *mut ibv_mr {
        // SAFETY: the same promise.
        unsafe { self.__ibv_reg_mr(pd, addr, length, access, 1) }
    }

    /// What the header's macro `ibv_reg_mr` calls: `is_access_const` says whether `access` is known to have no optional
    /// flags or some (C knows only of constants).
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// As [`Self::ibv_reg_mr`].
    pub unsafe fn __ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_uint,
        is_access_const: c_int,
    ) -> *mut ibv_mr {
        if is_access_const != 0 && access & OPTIONAL == 0 {
            // SAFETY: the caller's promise is the symbol's.
            unsafe { (self.ibv_reg_mr)(pd, addr, length, access as c_int) }
        } else {
            let iova = addr.addr() as u64;
            // SAFETY: the caller's promise is the symbol's.
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
    /// As [`Self::ibv_reg_mr`].
    pub unsafe fn ibv_reg_mr_iova(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr {
        // SAFETY: the same promise.
        unsafe { self.__ibv_reg_mr_iova(pd, addr, length, iova, access, 1) }
    }

    /// What the header's macro `ibv_reg_mr_iova` calls.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// As [`Self::ibv_reg_mr`].
    pub unsafe fn __ibv_reg_mr_iova(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
        is_access_const: c_int,
    ) -> *mut ibv_mr {
        if is_access_const != 0 && access & OPTIONAL == 0 {
            // SAFETY: the caller's promise is the symbol's.
            unsafe { (self.ibv_reg_mr_iova)(pd, addr, length, iova, access as c_int) }
        } else {
            // SAFETY: the caller's promise is the symbol's.
            unsafe { (self.ibv_reg_mr_iova2)(pd, addr, length, iova, access) }
        }
    }

    /// Creates a shared receive queue; a basic one through the exported symbol.
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
        // SAFETY: by 2, the attributes may be read, and the mask says what there is.
        let mask = unsafe { (*srq_init_attr_ex).comp_mask };
        let basic = mask & TYPE == 0
            // SAFETY: as above.
            || unsafe { (*srq_init_attr_ex).srq_type } == ibv_srq_type::IBV_SRQT_BASIC;
        if mask & !(PD | TYPE) == 0 && mask & PD != 0 && basic {
            // SAFETY: as above.
            let pd = unsafe { (*srq_init_attr_ex).pd };
            // SAFETY: the extended attributes begin with the plain ones.
            return unsafe { (self.ibv_create_srq)(pd, srq_init_attr_ex.cast()) };
        }
        match verbs_get_ctx_op!(context, create_srq_ex) {
            // SAFETY: by 4, it has this type; by 1 and 2, the arguments are what it expects.
            Some(create) => unsafe { create(context, srq_init_attr_ex) },
            None => super::Unsupported::unsupported(),
        }
    }

    /// Creates a queue pair; one that needs nothing but its domain through the exported symbol.
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
        // SAFETY: by 2, the attributes may be read.
        let mask = unsafe { (*qp_init_attr_ex).comp_mask };
        if mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
            // SAFETY: by 2, as above.
            let pd = unsafe { (*qp_init_attr_ex).pd };
            // SAFETY: the extended attributes begin with the plain ones.
            return unsafe { (self.ibv_create_qp)(pd, qp_init_attr_ex.cast()) };
        }
        match verbs_get_ctx_op!(context, create_qp_ex) {
            // SAFETY: by 4, it has this type; by 1 and 2, the arguments are what it expects.
            Some(create) => unsafe { create(context, qp_init_attr_ex) },
            None => super::Unsupported::unsupported(),
        }
    }

    /// The device's attributes: through the context's operation, or, where that does not exist or says so, the plain
    /// ones through the exported symbol and zeros for the others.
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
        // SAFETY: by 2, it is NULL or may be read.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return EINVAL;
        }
        if let Some(query) = verbs_get_ctx_op!(context, query_device_ex) {
            // SAFETY: by 4, it has this type; by 1 and 2, context and room are valid, and the size is the room's.
            let result = unsafe { query(context, input, attr, size_of::<ibv_device_attr_ex>()) };
            if result != EOPNOTSUPP && result != ENOSYS {
                return result;
            }
        }
        // SAFETY: by 2, there is room for the attributes.
        unsafe { attr.write_bytes(0, 1) };
        // SAFETY: by 2, as above.
        let plain = unsafe { &raw mut (*attr).orig_attr };
        // SAFETY: by 1, and the plain attributes are a field of the extended ones.
        unsafe { (self.ibv_query_device)(context, plain) }
    }
}
