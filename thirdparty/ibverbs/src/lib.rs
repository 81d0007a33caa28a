//! Two connected queue pairs within one process, through the crate `ibverbs`.

use std::io;

use ibverbs::{CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair, ibv_qp_type, ibv_wc};
use pingpong::LEN;

/// The entry of soft0's GID table.
const GID_INDEX: u32 = 0;

/// The objects that queue pairs borrow: a protection domain, and the completion queues of sends and
/// receives.
pub struct Objects<'context> {
    pd: ProtectionDomain<'context>,
    sends: CompletionQueue<'context>,
    receives: CompletionQueue<'context>,
}

/// A connected queue pair with its buffers.
pub struct End<'objects> {
    qp: QueuePair<'objects>,
    sends: &'objects CompletionQueue<'objects>,
    receives: &'objects CompletionQueue<'objects>,
    /// Dropped after the queue pair, which no longer uses them then.
    outgoing: MemoryRegion<u8>,
    incoming: MemoryRegion<u8>,
}

/// Opens the first device.
///
/// # Errors
///
/// There is no device, or it cannot be opened.
pub fn open() -> io::Result<Context> {
    let devices = ibverbs::devices()?;
    devices.get(0).ok_or(io::ErrorKind::NotFound)?.open()
}

impl<'context> Objects<'context> {
    /// Creates the objects of one side.
    ///
    /// # Errors
    ///
    /// The device's error.
    pub fn new(context: &'context Context) -> io::Result<Self> {
        Ok(Self { pd: context.alloc_pd()?, sends: context.create_cq(1, 0)?, receives: context.create_cq(1, 0)? })
    }
}

/// Connects two sides with each other.
///
/// # Errors
///
/// The device's error.
pub fn connect<'objects>(
    one: &'objects Objects<'objects>,
    other: &'objects Objects<'objects>,
) -> io::Result<(End<'objects>, End<'objects>)> {
    let prepare = |Objects { pd, sends, receives }: &'objects Objects<'objects>| {
        pd.create_qp(sends, receives, ibv_qp_type::IBV_QPT_RC).set_gid_index(GID_INDEX).build()
    };
    let (first, second) = (prepare(one)?, prepare(other)?);
    let (to_first, to_second) = (first.endpoint(), second.endpoint());
    Ok((End::new(first.handshake(to_second)?, one)?, End::new(second.handshake(to_first)?, other)?))
}

impl<'objects> End<'objects> {
    fn new(qp: QueuePair<'objects>, Objects { pd, sends, receives }: &'objects Objects<'objects>) -> io::Result<Self> {
        Ok(Self { qp, sends, receives, outgoing: pd.allocate(LEN)?, incoming: pd.allocate(LEN)? })
    }
}

impl pingpong::End for End<'_> {
    #[inline]
    fn send(&mut self, to: &mut Self) -> io::Result<()> {
        // SAFETY: post_receive requires that the region is neither used nor dropped before the
        // completion: it is awaited below, and an error ends both queue pairs, which are dropped
        // before the regions.
        unsafe { to.qp.post_receive(&mut to.incoming, .., 0) }?;
        // SAFETY: as above, for the outgoing region.
        unsafe { self.qp.post_send(&mut self.outgoing, .., 0) }?;
        poll(self.sends)?;
        poll(to.receives)
    }

    fn outgoing(&mut self) -> &mut [u8] {
        &mut self.outgoing
    }

    fn incoming(&self) -> &[u8] {
        &self.incoming
    }
}

/// Polls until a completion arrives.
// Part of the loop that is measured, in each of the ways.
#[inline(always)]
fn poll(cq: &CompletionQueue<'_>) -> io::Result<()> {
    let mut completions = [ibv_wc::default()];
    loop {
        if let [completion] = cq.poll(&mut completions)? {
            return match completion.error() {
                None => Ok(()),
                Some((status, vendor)) => Err(io::Error::other(format!("status {status}, {vendor}"))),
            };
        }
    }
}
