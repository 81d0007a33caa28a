//! A send and its receive between two queue pairs of one process: polled by hand, and through
//! `rdma::aio`.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rdma::aio::{Driver, DriverOptions};
use rdma::op::{self, Opcode};
use rdma::transport::Rc;
use rdma::{Buffer, Poller, QueuePair, aio};

use super::Way;
use crate::device::{self, DEPTH, End, Prepared};

/// Bytes in a message.
const LEN: usize = 64;

/// The names of the ways.
pub const NAMES: [&str; 2] = ["send and receive by hand, soft0", "send and receive by futures, soft0"];

/// One way to send and receive, and the two buffers that take turns.
#[derive(Debug)]
pub struct Case {
    polling: Polling,
    message: Option<Buffer>,
    room: Option<Buffer>,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one value, and a box would cost what is measured")]
enum Polling {
    ByHand { poller: Poller, from: QueuePair<Rc>, to: QueuePair<Rc> },
    ByFutures { driver: Driver, from: aio::QueuePair<Rc>, to: aio::QueuePair<Rc> },
}

impl Way for Case {
    fn named(name: &str) -> io::Result<Self> {
        let opened = device::open()?;
        let (driver, handle) = Driver::new(&opened.context, &DriverOptions::new().depth(4 * DEPTH))?;
        let cq = handle.completion_queue();
        let (one, other) = (Prepared::on(&opened, cq.clone())?, Prepared::on(&opened, cq.clone())?);
        let (to_one, to_other) = (one.qp.endpoint(), other.qp.endpoint());
        let (End { qp: from, pd: sender, .. }, End { qp: to, pd: receiver, .. }) =
            (one.connect(&to_other)?, other.connect(&to_one)?);
        let polling = if name == NAMES[0] {
            Polling::ByHand { poller: cq.poller(), from, to }
        } else {
            let futures = |qp| handle.queue_pair(qp).map_err(|failed| failed.error);
            Polling::ByFutures { from: futures(from)?, to: futures(to)?, driver }
        };
        Ok(Self { polling, message: Some(sender.allocate(LEN)?), room: Some(receiver.allocate(LEN)?) })
    }

    fn run(&mut self, iterations: u64) -> io::Result<()> {
        let mut buffers = self.message.take().zip(self.room.take()).ok_or_else(lost)?;
        for _ in 0..iterations {
            let (message, room) = buffers;
            buffers = match &mut self.polling {
                Polling::ByHand { poller, from, to } => by_hand(poller, from, to, message, room)?,
                Polling::ByFutures { driver, from, to } => by_futures(driver, from, to, message, room)?,
            };
        }
        (self.message, self.room) = (Some(buffers.0), Some(buffers.1));
        Ok(())
    }
}

#[inline(never)]
fn by_hand(
    poller: &mut Poller,
    from: &mut QueuePair<Rc>,
    to: &mut QueuePair<Rc>,
    message: Buffer,
    room: Buffer,
) -> io::Result<(Buffer, Buffer)> {
    to.post_recv(room, 1)?;
    from.post_send(op::send(message))?;
    let (mut sent, mut received) = (None, None);
    loop {
        if let Some(mut completion) = poller.poll()? {
            completion.status().map_err(io::Error::other)?;
            let place = if completion.opcode() == Opcode::Recv { &mut received } else { &mut sent };
            *place = completion.take_buffer();
        }
        match (sent, received) {
            (Some(message), Some(room)) => return Ok((message, room)),
            rest => (sent, received) = rest,
        }
    }
}

#[inline(never)]
fn by_futures(
    driver: &mut Driver,
    from: &mut aio::QueuePair<Rc>,
    to: &mut aio::QueuePair<Rc>,
    message: Buffer,
    room: Buffer,
) -> io::Result<(Buffer, Buffer)> {
    let mut cx = Context::from_waker(Waker::noop());
    to.post_recv(room)?;
    let mut sent = pin!(from.start(op::send(message))?);
    driver.turn(2)?;
    let mut received = loop {
        match to.poll_received(&mut cx) {
            Poll::Ready(received) => break received?,
            Poll::Pending => driver.turn(1)?,
        };
    };
    received.status().map_err(io::Error::other)?;
    let message = loop {
        match sent.as_mut().poll(&mut cx) {
            Poll::Ready(finished) => break finished.into_memory()?,
            Poll::Pending => driver.turn(1)?,
        };
    };
    Ok((message, received.take_buffer().ok_or_else(lost)?))
}

#[cold]
fn lost() -> io::Error {
    io::Error::other("the buffer did not come back")
}
