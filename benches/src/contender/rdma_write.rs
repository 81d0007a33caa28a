//! RDMA writes into the other process's memory through the safe interface. The target sleeps.

use std::io;
use std::time::{Duration, Instant};

use rdma::op;
use rdma::{ExposedRegion, ExposedSlice, Opened, Poller, RemoteAccess, RemoteSlice};

use crate::device::{End, Prepared};
use crate::pair::{Channel, Contender, Role};

/// Writes of one size to one place, several of them in flight at a time.
#[derive(Debug)]
pub struct RdmaWrite {
    poller: Poller,
    end: End,
    source: ExposedSlice,
    target: RemoteSlice,
    in_flight: u64,
    _region: ExposedRegion,
}

impl RdmaWrite {
    /// Connects the two sides; at most `in_flight` writes of `size` bytes are in flight.
    ///
    /// # Errors
    ///
    /// The error of the device or of the channel.
    pub fn connect(
        _role: Role,
        channel: &mut Channel,
        opened: &Opened,
        size: usize,
        in_flight: u64,
    ) -> io::Result<Self> {
        let prepared = Prepared::new(opened)?;
        let region = prepared.pd.allocate_exposed(size, RemoteAccess::WRITE)?;
        region.fill(0, size, 0x5a)?;
        let end = prepared.meet(channel)?;
        let theirs = channel.exchange(&region.remote(..)?.to_bytes())?;
        let (source, target) = (region.slice(..)?, RemoteSlice::from_bytes(&theirs).map_err(io::Error::other)?);
        Ok(Self { poller: end.cq.poller(), end, source, target, in_flight, _region: region })
    }

    #[inline]
    fn post(&mut self) -> io::Result<()> {
        Ok(self.end.qp.post_send(op::write(self.source.clone(), self.target))?)
    }

    #[inline]
    fn complete(&mut self) -> io::Result<()> {
        loop {
            if let Some(completion) = self.poller.poll()? {
                return completion.status().map_err(io::Error::other);
            }
        }
    }
}

impl Contender for RdmaWrite {
    fn name(&self) -> String {
        format!("RDMA write over soft0, {} in flight", self.in_flight)
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        let ahead = self.in_flight.min(iterations);
        for _ in 0..ahead {
            self.post()?;
        }
        for _ in ahead..iterations {
            self.complete()?;
            self.post()?;
        }
        for _ in 0..ahead {
            self.complete()?;
        }
        Ok(start.elapsed())
    }
}
