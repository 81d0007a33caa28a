//! Connections over the software device, to the other process or within this one.

use std::io;

use rdma::transport::Rc;
use rdma::{
    CompletionQueue, ConnectOptions, DeviceSelector, Endpoint, InitOptions, InitializedQueuePair, Opened,
    ProtectionDomain, QueuePair,
};

use crate::pair::Channel;

/// Depth of a queue in work requests.
pub const DEPTH: u32 = 64;

/// Most bytes of inline data in a request.
pub const INLINE: u32 = 64;

/// Opens the software device: the benchmarks compare processes of one host.
///
/// # Errors
///
/// If the device is switched off or cannot be set up.
pub fn open() -> io::Result<Opened> {
    let selector = DeviceSelector::Named { name: "soft0".into(), port: None };
    rdma::open(&selector).map_err(io::Error::other)
}

/// One side before it is connected: its receives may be posted.
#[derive(Debug)]
pub struct Prepared {
    /// The protection domain.
    pub pd: ProtectionDomain,
    /// The completion queue of both queues.
    pub cq: CompletionQueue,
    /// The queue pair.
    pub qp: InitializedQueuePair<Rc>,
}

/// One side of a connection.
#[derive(Debug)]
pub struct End {
    /// The queue pair.
    pub qp: QueuePair<Rc>,
    /// The completion queue of both queues.
    pub cq: CompletionQueue,
    /// The protection domain.
    pub pd: ProtectionDomain,
}

impl Prepared {
    /// Creates a queue pair with a protection domain and a completion queue of its own.
    ///
    /// # Errors
    ///
    /// The device's error.
    pub fn new(opened: &Opened) -> io::Result<Self> {
        Self::on(opened, opened.context.create_cq(2 * DEPTH)?)
    }

    /// Creates a queue pair with a protection domain of its own that reports to `cq`.
    ///
    /// # Errors
    ///
    /// The device's error.
    pub fn on(opened: &Opened, cq: CompletionQueue) -> io::Result<Self> {
        let pd = opened.context.alloc_pd()?;
        let builder = QueuePair::builder(&pd).cq(&cq).max_send_wr(DEPTH).max_recv_wr(DEPTH).max_inline_data(INLINE);
        let qp = builder.build()?.init(&InitOptions::new().port(opened.port))?;
        Ok(Self { pd, cq, qp })
    }

    /// Connects to the side at `remote`.
    ///
    /// # Errors
    ///
    /// The device's error.
    pub fn connect(self, remote: &Endpoint) -> io::Result<End> {
        let qp = self.qp.connect(remote, &ConnectOptions::new())?;
        Ok(End { qp, cq: self.cq, pd: self.pd })
    }

    /// Connects to the side that the other process prepares; returns when both sides are connected.
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
