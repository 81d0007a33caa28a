//! A connection over the software device, to the other process or within this one.

use std::io;

use rdma::{
    CompletionQueue, ConnectOptions, DeviceSelector, Endpoint, InitOptions, InitializedQueuePair, Opened,
    ProtectionDomain, QueuePair, Rc,
};

use crate::pair::Channel;

/// Work requests that a queue takes.
pub const DEPTH: u32 = 64;

/// Bytes that a request may carry itself.
pub const INLINE: u32 = 64;

/// The software device: the benchmarks compare processes of one host.
///
/// # Errors
///
/// When it is switched off or cannot be set up.
pub fn open() -> io::Result<Opened> {
    let selector = DeviceSelector::Named { name: "soft0".into(), port: None };
    rdma::open(&selector).map_err(io::Error::other)
}

/// One end of a connection before it is connected: receives may be posted.
#[derive(Debug)]
pub struct Prepared {
    /// The domain of its memory.
    pub pd: ProtectionDomain,
    /// The completion queue of both of its queues.
    pub cq: CompletionQueue,
    /// The queue pair.
    pub qp: InitializedQueuePair<Rc>,
}

/// One end of a connection.
#[derive(Debug)]
pub struct End {
    /// The queue pair.
    pub qp: QueuePair<Rc>,
    /// The completion queue of both of its queues.
    pub cq: CompletionQueue,
    /// The domain of its memory.
    pub pd: ProtectionDomain,
}

impl Prepared {
    /// A queue pair of its own domain and completion queue.
    ///
    /// # Errors
    ///
    /// The device's error.
    pub fn new(opened: &Opened) -> io::Result<Self> {
        let pd = opened.context.alloc_pd()?;
        let cq = opened.context.create_cq(2 * DEPTH)?;
        let builder = pd.queue_pair().cq(&cq).max_send_wr(DEPTH).max_recv_wr(DEPTH).max_inline_data(INLINE);
        let qp = builder.build()?.init(&InitOptions::new().port(opened.port))?;
        Ok(Self { pd, cq, qp })
    }

    /// Connects to the end at `remote`.
    ///
    /// # Errors
    ///
    /// The device's error.
    pub fn connect(self, remote: &Endpoint) -> io::Result<End> {
        let qp = self.qp.connect(remote, &ConnectOptions::new())?;
        Ok(End { qp, cq: self.cq, pd: self.pd })
    }

    /// Connects to the end that the other process prepares, and returns when both are connected.
    ///
    /// # Errors
    ///
    /// The error of the device or of the channel.
    pub fn meet(self, channel: &mut Channel) -> io::Result<End> {
        let remote = channel.exchange(&self.qp.endpoint().to_bytes())?;
        let end = self.connect(&Endpoint::from_bytes(&remote).map_err(io::Error::other)?)?;
        channel.exchange(b"connected")?;
        Ok(end)
    }
}
