//! Contexts and domains.

use super::{Unsupported, checked};
use crate::bindings::*;
use libc::c_int;

checked! {
    /// Allocates a thread domain.
    fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td = extended [context] alloc_td;
    /// Frees a thread domain.
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int = extended [td.context] dealloc_td;
    /// Allocates a parent domain.
    fn ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd
        = extended [context] alloc_parent_domain;
    /// Reads values that change, such as the device's clock.
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        = extended [context] query_rt_values;
}
