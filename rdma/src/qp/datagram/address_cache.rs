//! A bounded cache of address handles.

use std::collections::HashMap;
use std::fmt;

use crate::ah::{AddressHandle, Source};
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::qp::QpControl;
use crate::transport::Ud;
use crate::types::Path;

/// The address handles of the peers that a server has answered last.
///
/// On most devices each new handle is a system call, and on Ethernet it may resolve an address. So
/// a server that answers datagrams keeps the handles of its clients. A handle keeps the hardware
/// address of the time when it was made: [`clear`](Self::clear) the cache when peers move. The
/// cache serves queue pairs of any domains and devices; a handle keeps its domain, so clear the
/// cache before you close one.
///
/// # Examples
///
/// ```
/// # use rdma::{Datagram, Error, QueuePair};
/// # use rdma::transport::Ud;
/// use rdma::{AddressCache, op};
///
/// # fn f(qp: &mut QueuePair<Ud>, datagrams: Vec<Datagram>) -> Result<(), Error> {
/// let mut clients = AddressCache::new(256);
/// for datagram in datagrams {
///     let source = datagram.source();
///     let client = clients.answer(&*qp, source)?;
///     qp.post_send(op::send_inline(b"thanks").to(client, source.qpn, 0x1122_3344))?;
/// }
/// # Ok(()) }
/// ```
pub struct AddressCache {
    /// By the protection domain, which its handles keep, and the path.
    handles: HashMap<(usize, Path), Used>,
    capacity: usize,
    /// The number of look-ups so far.
    looks: u64,
}

struct Used {
    handle: AddressHandle,
    /// The number of the last look-up that found it.
    last: u64,
}

impl AddressCache {
    /// A cache of at most `capacity` handles, at least one. A further one takes the place of the
    /// one that was not used for the longest time, which a search of the whole cache finds.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { handles: HashMap::new(), capacity: capacity.max(1), looks: 0 }
    }

    /// The address handle of a datagram's sender, made if the cache does not have it:
    /// [`QueuePair::answer`](crate::QueuePair::answer).
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::answer`](crate::QueuePair::answer).
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn answer<'a>(&mut self, qp: impl Into<QpControl<'a, Ud>>, source: &Source) -> Result<&AddressHandle> {
        let qp = qp.into();
        let path = qp.answer_path(source)?;
        let key = (qp.domain().inner.identity().addr(), path);
        self.looks += 1;
        if !self.handles.contains_key(&key) {
            let handle = qp.domain().create_ah(&path)?;
            if self.handles.len() >= self.capacity {
                let oldest = self.handles.iter().min_by_key(|(_, used)| used.last).map(|(&key, _)| key);
                drop(oldest.and_then(|key| self.handles.remove(&key)));
            }
            self.handles.insert(key, Used { handle, last: 0 });
        }
        let used = self.handles.get_mut(&key).ok_or(Error::new(Verb::CreateAh, ErrorKind::Unknown))?;
        used.last = self.looks;
        Ok(&used.handle)
    }

    /// The number of handles in the cache.
    #[must_use]
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether the cache has no handle.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// Gives up all handles. Requests in flight keep theirs.
    pub fn clear(&mut self) {
        self.handles.clear();
    }
}

impl fmt::Debug for AddressCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressCache").field("len", &self.len()).field("capacity", &self.capacity).finish()
    }
}
