//! A datagram's post and its poll over a provider that does nothing: always to the same address,
//! and to two in turn.

use std::io;

use rdma::op;
use rdma::transport::Ud;
use rdma::{AddressHandle, Buffer, DatagramOptions, Poller, QueuePair};

use super::Way;
use crate::{device, null};

/// Bytes in a message.
const LEN: usize = 64;
/// The names of the ways.
pub const NAMES: [&str; 2] = ["datagram, null provider", "datagram to two addresses by turns, null provider"];

/// A queue pair that sends to itself, as far as it knows.
#[derive(Debug)]
pub struct Datagrams {
    qp: QueuePair<Ud>,
    poller: Poller,
    buffer: Option<Buffer>,
    addresses: Vec<AddressHandle>,
}

impl Way for Datagrams {
    fn named(name: &str) -> io::Result<Self> {
        let addresses = if name == NAMES[0] { 1 } else { 2 };
        let opened = device::open()?;
        let pd = opened.context.alloc_pd()?;
        let cq = opened.context.create_cq(2 * device::DEPTH)?;
        let options = DatagramOptions::new(1).port(opened.port);
        let qp = QueuePair::datagram(&pd).cq(&cq).max_send_wr(device::DEPTH).build()?.init(&options)?.ready()?;
        let to = qp.endpoint()?;
        let addresses = (0..addresses).map(|_| qp.address_of(&to)).collect::<Result<_, _>>()?;
        // SAFETY: install requires a live context that no other thread uses: it was opened above
        // for this value alone.
        unsafe { null::install(opened.context.as_raw()) };
        Ok(Self { qp, poller: cq.poller(), buffer: Some(pd.allocate(LEN)?), addresses })
    }

    #[inline(never)]
    fn run(&mut self, iterations: u64) -> io::Result<()> {
        let lost = || io::Error::other("the buffer did not come back");
        let mut buffer = self.buffer.take().ok_or_else(lost)?;
        let mut to = 0;
        for _ in 0..iterations {
            self.qp.post_send(op::send(buffer).to(&self.addresses[to], 1, 1))?;
            to = if to + 1 == self.addresses.len() { 0 } else { to + 1 };
            buffer = loop {
                if let Some(mut completion) = self.poller.poll()? {
                    completion.status().map_err(io::Error::other)?;
                    break completion.take_buffer().ok_or_else(lost)?;
                }
            };
        }
        self.buffer = Some(buffer);
        Ok(())
    }
}
