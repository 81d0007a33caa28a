//! Messages over a reliable connection between two polling processes, through the safe interface
//! with owned buffers.

use std::hint::spin_loop;
use std::io;

use rdma::op::{self, Opcode};
use rdma::{Buffer, Opened, Poller};

use crate::device::{DEPTH, End, INLINE, Prepared};
use crate::pair::{Channel, PingPong, Role};

/// A connection over which messages of one size go back and forth.
#[derive(Debug)]
pub struct RdmaSend {
    poller: Poller,
    end: End,
    message: Vec<u8>,
    /// The message in registered memory, if it is too long for inline data; `None` while in flight.
    long: Option<Buffer>,
    /// The buffer of the last message, which is posted again once the answer has left.
    spare: Option<Buffer>,
}

impl RdmaSend {
    /// Connects the two sides, with receives posted at both.
    ///
    /// # Errors
    ///
    /// The error of the device or of the channel.
    pub fn connect(_role: Role, channel: &mut Channel, opened: &Opened, size: usize) -> io::Result<Self> {
        let mut prepared = Prepared::new(opened)?;
        let is_long = size > INLINE as usize;
        let long = is_long.then(|| prepared.pd.allocate(size)).transpose()?;
        for _ in 0..if is_long { 4 } else { DEPTH / 2 } {
            let buffer = prepared.pd.allocate(size)?;
            prepared.qp.post_recv(buffer, 0)?;
        }
        let end = prepared.meet(channel)?;
        Ok(Self { poller: end.cq.poller(), end, message: vec![0x5a; size], long, spare: None })
    }

    #[inline]
    fn next_message(&mut self) -> io::Result<Buffer> {
        let mut received = None;
        loop {
            let Some(mut completion) = self.poller.poll()? else {
                spin_loop();
                continue;
            };
            completion.status().map_err(io::Error::other)?;
            let buffer = completion.take_buffer();
            if completion.opcode() == Opcode::Recv {
                received = buffer;
            } else if buffer.is_some() {
                // Some inline sends are signaled to release their slots; their completions carry no
                // buffer.
                self.long = buffer;
            }
            let is_back = self.message.len() <= INLINE as usize || self.long.is_some();
            if received.is_some() && is_back {
                return received.ok_or_else(|| io::Error::other("a receive without its buffer"));
            }
        }
    }
}

impl PingPong for RdmaSend {
    fn name(&self) -> String {
        format!("RC send over soft0, {}", crate::table::bytes(self.message.len()))
    }

    /// Sends a message, and posts the buffer of the last received message again.
    #[inline]
    fn send(&mut self) -> io::Result<()> {
        if self.message.len() <= INLINE as usize {
            self.end.qp.post_send(op::send_inline(&self.message).unsignaled())?;
        } else {
            let message = self.long.take().ok_or_else(|| io::Error::other("the last message is in flight"))?;
            self.end.qp.post_send(op::send(message))?;
        }
        match self.spare.take() {
            Some(buffer) => Ok(self.end.qp.post_recv(buffer, 0)?),
            None => Ok(()),
        }
    }

    #[inline]
    fn receive(&mut self) -> io::Result<()> {
        self.spare = Some(self.next_message()?);
        Ok(())
    }
}
