//! The memory that this side has mapped for the peer.

use std::collections::VecDeque;

use nix::errno::Errno;

use crate::verbs::Registration;
use crate::wire::{IoMap, Range};

/// Mapped memory.
#[derive(Debug)]
struct Mapping {
    address: u64,
    len: usize,
    offset: u64,
    registration: Registration,
}

impl Mapping {
    fn is_over(&self, address: u64, len: usize) -> bool {
        (self.address, self.len) == (address, len)
    }

    /// Ends the registration, or keeps the mapping.
    fn end(self) -> Result<(), (Self, Errno)> {
        let Self { address, len, offset, registration } = self;
        let kept = |(registration, errno)| (Self { address, len, offset, registration }, errno);
        registration.end().map_err(kept)
    }
}

/// The mappings of a connection.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    /// Memory that the peer may write, by the index of its entry in the peer's list.
    shared: Vec<Option<Mapping>>,
    /// Memory that is registered only.
    private: Vec<Mapping>,
    /// Entries of `shared` that the peer has not been told of.
    pending: VecDeque<usize>,
}

impl Maps {
    /// Whether a peer whose list has `most` entries can be told of one more.
    pub(crate) fn has_room(&self, most: u16) -> bool {
        self.shared.len() < most.into() || self.shared.iter().any(Option::is_none)
    }

    /// Adds memory at an offset. The caller has checked that there is space for shared memory.
    pub(crate) fn add(&mut self, address: u64, len: usize, offset: u64, is_shared: bool, registration: Registration) {
        let mapping = Mapping { address, len, offset, registration };
        if !is_shared {
            self.private.push(mapping);
            return;
        }
        let index = self.shared.iter().position(Option::is_none).unwrap_or_else(|| {
            self.shared.push(None);
            self.shared.len() - 1
        });
        self.shared[index] = Some(mapping);
        self.pending.push_back(index);
    }

    /// Ends the registration of memory. `EINVAL` if the memory is not mapped.
    pub(crate) fn remove(&mut self, address: u64, len: usize) -> Result<(), Errno> {
        let is_it = |mapping: &Mapping| mapping.is_over(address, len);
        if let Some(index) = self.shared.iter().position(|mapping| mapping.as_ref().is_some_and(is_it)) {
            let Some(mapping) = self.shared[index].take() else { return Err(Errno::EINVAL) };
            return match mapping.end() {
                Ok(()) => {
                    self.pending.retain(|&pending| pending != index);
                    Ok(())
                }
                Err((mapping, errno)) => {
                    self.shared[index] = Some(mapping);
                    Err(errno)
                }
            };
        }
        let index = self.private.iter().position(is_it).ok_or(Errno::EINVAL)?;
        self.private.swap_remove(index).end().map_err(|(mapping, errno)| {
            self.private.push(mapping);
            errno
        })
    }

    /// Whether the peer has not been told of all shared memory.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next entry to tell the peer of, with its index.
    pub(crate) fn take_pending(&mut self) -> Option<(u32, IoMap)> {
        let index = self.pending.pop_front()?;
        let mapping = self.shared.get(index)?.as_ref()?;
        let key = mapping.registration.remote_key();
        let range = Range { address: mapping.address, key, len: u32::try_from(mapping.len).ok()? };
        Some((u32::try_from(index).ok()?, IoMap { offset: mapping.offset, range }))
    }
}
