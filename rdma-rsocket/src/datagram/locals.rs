//! The queue pairs of a datagram socket: one for each local address that is used.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::errno::Errno;

/// The time between two attempts to make a queue pair for an address.
const REST: Duration = Duration::from_secs(1);

/// Local addresses by number, with their queue pairs.
#[derive(Debug)]
pub(super) struct Locals<Q>(Vec<Local<Q>>);

/// A local address.
#[derive(Debug)]
struct Local<Q> {
    address: SocketAddr,
    /// The queue pair, or why there is none.
    queue: Result<Q, Errno>,
    /// The last attempt to make it.
    tried: Option<Instant>,
}

impl<Q> Default for Locals<Q> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<Q> Locals<Q> {
    /// The number of an address, which is new or known.
    pub(super) fn number(&mut self, address: SocketAddr) -> usize {
        self.0.iter().position(|local| local.address == address).unwrap_or_else(|| {
            self.0.push(Local { address, queue: Err(Errno::ENODEV), tried: None });
            self.0.len() - 1
        })
    }

    /// Makes the queue pair of an address if there is none and the last attempt was long ago.
    /// Returns whether it is new.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub(super) fn open(
        &mut self,
        number: usize,
        make: impl FnOnce(SocketAddr) -> Result<Q, Errno>,
    ) -> Result<bool, Errno> {
        let local = &mut self.0[number];
        let Err(why) = local.queue else { return Ok(false) };
        let now = Instant::now();
        if local.tried.is_some_and(|tried| now.duration_since(tried) < REST) {
            return Err(why);
        }
        local.tried = Some(now);
        local.queue = make(local.address);
        match &local.queue {
            Ok(_) => Ok(true),
            Err(why) => Err(*why),
        }
    }

    /// The queue pair of an address.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub(super) fn get(&mut self, number: usize) -> Result<&mut Q, Errno> {
        self.0[number].queue.as_mut().map_err(|why| *why)
    }

    /// Takes a queue pair that has failed. If it is not young, the next attempt makes another one
    /// at once.
    pub(super) fn fail(&mut self, number: usize, why: Errno) -> Option<Q> {
        std::mem::replace(&mut self.0[number].queue, Err(why)).ok()
    }

    /// The queue pairs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Q> {
        self.0.iter().filter_map(|local| local.queue.as_ref().ok())
    }

    /// The queue pairs.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Q> {
        self.0.iter_mut().filter_map(|local| local.queue.as_mut().ok())
    }

    /// How many addresses there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_is_made_again_after_a_rest() {
        let mut locals = Locals::default();
        let number = locals.number(([127, 0, 0, 1], 1).into());
        assert_eq!(locals.number(([127, 0, 0, 1], 1).into()), number);
        assert_eq!(locals.open(number, |_| Err(Errno::ENOMEM)), Err(Errno::ENOMEM));
        assert_eq!(locals.open(number, |_| panic!("too early")), Err(Errno::ENOMEM));
        let rest = |locals: &mut Locals<u8>| locals.0[number].tried = Instant::now().checked_sub(REST);
        rest(&mut locals);
        assert_eq!(locals.open(number, |_| Ok(1)), Ok(true));
        assert_eq!(locals.open(number, |_| panic!("it is there")), Ok(false));
        assert_eq!(locals.fail(number, Errno::EIO), Some(1));
        assert_eq!(locals.get(number), Err(Errno::EIO));
        assert_eq!(locals.open(number, |_| panic!("too early")), Err(Errno::EIO));
        rest(&mut locals);
        assert_eq!(locals.open(number, |_| Ok(2)), Ok(true));
        assert_eq!(locals.get(number), Ok(&mut 2));
    }
}
