//! A program of its own, because these tests find names free and connections ended at once, and a
//! process that another test starts has copies of all descriptors for a moment.

#[path = "../cm_support/mod.rs"]
mod cm_support;
#[path = "../common/mod.rs"]
mod common;

mod connections;
mod hostile;
mod queue_pairs;
mod signals;
