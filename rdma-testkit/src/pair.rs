//! What stands on `rdma`: contexts of the provider in memory, and connected queue pairs.

use std::error::Error;

use rdma::transport::{Connected, Rc};
use rdma::{
    CompletionQueue, ConnectOptions, Context, Device, InitOptions, InitializedQueuePair, Poller, ProtectionDomain,
    QueuePair,
};

/// An open context of the provider's device.
#[must_use]
pub fn context() -> Context {
    // SAFETY: list_of_tables requires tables whose functions keep the contracts of the C libraries,
    // and a connection manager that knows the objects of these verbs: this crate's own.
    let devices = unsafe { Device::list_of_tables(crate::ibverbs(), crate::rdmacm()) };
    devices.unwrap().remove(0).open().unwrap()
}

/// Two connected queue pairs of `soft0`, with what they share.
#[derive(Debug)]
pub struct Pair {
    /// The domain of both.
    pub pd: ProtectionDomain,
    /// The queue for all completions of both.
    pub cq: CompletionQueue,
    /// A poller of `cq`.
    pub poller: Poller,
    /// One side.
    pub a: QueuePair<Rc>,
    /// The other side.
    pub b: QueuePair<Rc>,
}

/// Opens `soft0` and connects two of its queue pairs.
///
/// # Errors
///
/// Errors of the device; a build of `rdma` without the software device has none.
pub fn pair() -> Result<Pair, Box<dyn Error>> {
    let context = rdma::open(&"soft0".parse()?)?.context;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(256)?);
    let build = || QueuePair::builder(&pd).cq(&cq).max_inline_data(16).build();
    let (a, b) = join(build()?.init(&InitOptions::new())?, build()?.init(&InitOptions::new())?)?;
    let poller = cq.poller();
    Ok(Pair { pd, cq, poller, a, b })
}

/// Connects two queue pairs of one process to each other.
///
/// # Errors
///
/// As for [`InitializedQueuePair::connect`].
pub fn join<T: Connected>(
    a: InitializedQueuePair<T>,
    b: InitializedQueuePair<T>,
) -> rdma::Result<(QueuePair<T>, QueuePair<T>)> {
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    Ok((a.connect(&to_b, &ConnectOptions::new())?, b.connect(&to_a, &ConnectOptions::new())?))
}
