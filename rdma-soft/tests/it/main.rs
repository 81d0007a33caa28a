//! Tests of the device's verbs that may share a process with one another.

#[path = "../cm_support/mod.rs"]
mod cm_support;
#[path = "../common/mod.rs"]
mod common;

mod attributes;
mod c_harness;
mod channels;
mod cm_hosts;
mod cm_processes;
mod device_memory;
mod environment;
mod foes;
mod foreign;
mod fork;
mod hosts;
mod hosts_ipv6;
mod hosts_start;
mod loopback;
mod objects;
mod on_demand;
mod parent_domains;
mod processes;
mod srq;
mod threads;
mod ud;
mod waiting;
