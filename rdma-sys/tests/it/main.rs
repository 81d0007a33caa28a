//! The bindings against the headers, the system's libraries and Linux's tables.

mod abi;
mod system;
mod transitions;
mod twins;
