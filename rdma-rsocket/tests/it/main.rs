//! Tests of sockets over the software device that may share a process with one another.

#[path = "../common/mod.rs"]
mod common;

mod datagrams;
mod epoll;
mod hostile;
mod maps;
mod select;
mod streams;
