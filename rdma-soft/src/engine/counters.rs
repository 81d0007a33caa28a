//! Counts of what the queue pairs of an engine did.

/// What the software device did in this process, since the process started or was forked.
///
/// A direct write, read or atomic operation is done by its requester alone, so it is counted there,
/// and not in the process whose memory it reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests of send queues that succeeded.
    pub requests: u64,
    /// Bytes that these sent, wrote or read.
    pub request_bytes: u64,
    /// Messages, datagrams and notices of writes for which a receive completed successfully.
    pub receives: u64,
    /// Bytes of these; those of a datagram without its GRH.
    pub receive_bytes: u64,
    /// How often a request waited because its peer had no receive posted (RNR).
    pub rnr_waits: u64,
    /// How often requests were sent again because their peer did not answer.
    pub retries: u64,
    /// Messages without a reliable connection that were dropped because no fitting receive was
    /// posted, and writes without one that were not allowed.
    pub dropped: u64,
    /// Requests and receives that failed, flushed ones not included.
    pub failed: u64,
    /// Requests and receives that were flushed, because their queue pair had failed or was moved to
    /// the error state.
    pub flushed: u64,
}

impl Counters {
    /// The counters with their names, which are those of the fields.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'static str, u64)> + use<> {
        let Self { requests, request_bytes, receives, receive_bytes, rnr_waits, retries, dropped, failed, flushed } =
            *self;
        [
            ("requests", requests),
            ("request_bytes", request_bytes),
            ("receives", receives),
            ("receive_bytes", receive_bytes),
            ("rnr_waits", rnr_waits),
            ("retries", retries),
            ("dropped", dropped),
            ("failed", failed),
            ("flushed", flushed),
        ]
        .into_iter()
    }

    #[inline(always)]
    pub(super) fn request(&mut self, bytes: u32) {
        self.requests += 1;
        self.request_bytes += u64::from(bytes);
    }

    #[inline(always)]
    pub(super) fn receive(&mut self, bytes: u32) {
        self.receives += 1;
        self.receive_bytes += u64::from(bytes);
    }
}
