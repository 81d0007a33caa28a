//! The process that has made something: a forked child has a copy of it, but neither the mappings
//! nor the connections.

use rdma_mem::process;

use crate::Error;

/// The process that has made something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker(u64);

impl Maker {
    /// The calling process.
    pub(crate) fn current() -> Result<Self, Error> {
        Ok(Self(process::identify()?))
    }

    /// Fails in a forked child.
    #[inline]
    pub(crate) fn check(self) -> Result<(), Error> {
        if process::number() == self.0 {
            return Ok(());
        }
        Err(Error::invalid("this is a forked child, and what it uses belongs to its parent"))
    }
}
