//! RDMA writes into private memory on which the target spins without any verbs call: the target's
//! agent must place the data there.

use std::hint::spin_loop;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma::op;
use rdma::{ExposedRegion, Opened, Poller, RemoteAccess, RemoteSlice};

use crate::device::{End, Prepared};
use crate::pair::{Channel, Contender, Role};

/// Posts between two polls of the completion queue.
const POSTS: u64 = 16;

/// Writes of one size that go back and forth.
#[derive(Debug)]
pub struct RdmaMemory {
    poller: Poller,
    end: End,
    /// The memory that the peer writes to, and the source of the writes to the peer.
    inbox: ExposedRegion,
    outbox: ExposedRegion,
    target: RemoteSlice,
    size: usize,
    count: u64,
}

impl RdmaMemory {
    /// Connects the two sides; `size` is a multiple of 8.
    ///
    /// # Errors
    ///
    /// The error of the device or of the channel.
    pub fn connect(_role: Role, channel: &mut Channel, opened: &Opened, size: usize) -> io::Result<Self> {
        let prepared = Prepared::new(opened)?;
        let private = || prepared.pd.register_exposed(vec![0_u8; size], RemoteAccess::WRITE);
        let (inbox, outbox) = (private()?, private()?);
        let end = prepared.meet(channel)?;
        let theirs = channel.exchange(&inbox.remote(..)?.to_bytes())?;
        let target = RemoteSlice::from_bytes(&theirs).map_err(io::Error::other)?;
        Ok(Self { poller: end.cq.poller(), end, inbox, outbox, target, size, count: 0 })
    }

    fn write(&mut self) -> io::Result<()> {
        // The last word of a write becomes visible last.
        self.outbox.store_u64(self.size - 8, self.count, Ordering::Relaxed)?;
        if self.count % POSTS == 0 {
            while let Some(completion) = self.poller.poll()? {
                completion.status().map_err(io::Error::other)?;
            }
        }
        Ok(self.end.qp.post_send(op::write(self.outbox.slice(..)?, self.target).unsignaled())?)
    }

    fn wait(&self) -> io::Result<()> {
        while self.inbox.load_u64(self.size - 8, Ordering::Acquire)? != self.count {
            spin_loop();
        }
        Ok(())
    }
}

impl Contender for RdmaMemory {
    fn name(&self) -> String {
        format!("RDMA write to private memory, {}", crate::table::bytes(self.size))
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        for _ in 0..iterations {
            self.count += 1;
            self.write()?;
            self.wait()?;
        }
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        for _ in 0..iterations {
            self.count += 1;
            self.wait()?;
            self.write()?;
        }
        Ok(())
    }
}
