//! Connections with messages.

pub(crate) mod protocol;

pub use protocol::{RefuseCode, Violation};
