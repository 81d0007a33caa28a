//! Flow steering and counters.

use super::{Unsupported, checked};
use crate::bindings::*;
use libc::c_int;

checked! {
    /// Attaches a flow rule to a queue pair.
    fn ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow = extended [qp.context] ibv_create_flow;
    /// Removes a flow rule.
    fn ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int = extended [flow_id.context] ibv_destroy_flow;
    /// Creates an ESP action for flow rules.
    fn ibv_create_flow_action_esp(ctx: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action
        = extended [ctx] create_flow_action_esp;
    /// Changes an ESP action.
    fn ibv_modify_flow_action_esp(action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr) -> c_int
        = extended [action.context] modify_flow_action_esp;
    /// Destroys an action.
    fn ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int = extended [action.context] destroy_flow_action;
    /// Creates a set of counters.
    fn ibv_create_counters(context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr) -> *mut ibv_counters
        = extended [context] create_counters;
    /// Destroys a set of counters.
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int = extended [counters.context] destroy_counters;
    /// Attaches a counter to a flow rule.
    fn ibv_attach_counters_point_flow(
        counters: *mut ibv_counters,
        attr: *mut ibv_counter_attach_attr,
        flow: *mut ibv_flow,
    ) -> c_int = extended [counters.context] attach_counters_point_flow;
    /// Reads a set of counters.
    fn ibv_read_counters(counters: *mut ibv_counters, counters_value: *mut u64, ncounters: u32, flags: u32) -> c_int
        = extended [counters.context] read_counters;
}
