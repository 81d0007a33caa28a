//! Links between processes: how frames get from one engine to another.
//!
//! A link is a duplex pair of [`ring`]s in one sealed memory file, with a [`doorbell`] at each end.
//! It is set up over the abstract socket that names the peer's [`slot`], by a [`handshake`] in
//! which each side proves to the other that the kernel lets it trace it: a process that may do that
//! could read and write all our memory anyway. Two processes have one link.

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
