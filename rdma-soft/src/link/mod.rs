//! Links between processes, which carry frames from one engine to another.
//!
//! A link is a duplex pair of [`ring`]s in one sealed memory file, with a [`doorbell`] at each end.
//! A [`handshake`] over the abstract socket that names the peer's [`slot`] sets the link up. In the
//! handshake each side proves to the other that the kernel lets it trace the other: such a process
//! could read and write all of the other's memory anyway. Two processes share one link.

pub(crate) mod doorbell;
pub(crate) mod duplex;
pub(crate) mod group;
pub(crate) mod handshake;
pub(crate) mod memory;
pub(crate) mod packet;
pub(crate) mod peer;
pub(crate) mod ring;
pub(crate) mod slot;
pub(crate) mod trust;
pub(crate) mod words;
