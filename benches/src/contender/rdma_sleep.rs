//! Messages over a reliable connection between two sleeping processes: each side waits for a
//! completion event.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdma::op::{self, Opcode};
use rdma::{Buffer, CompletionChannel, Opened, Poller};

use super::Sleep;
use crate::device::{DEPTH, End, Prepared};
use crate::pair::{Channel, PingPong, Role};

/// A connection over which messages of one size go back and forth.
#[derive(Debug)]
pub struct RdmaSleep {
    poller: Poller,
    end: End,
    events: CompletionChannel,
    sleep: Sleep,
    message: Vec<u8>,
}

impl RdmaSleep {
    /// Connects the two sides, with receives posted at both. The message is sent as inline data.
    ///
    /// # Errors
    ///
    /// The error of the device or of the channel.
    pub fn connect(_role: Role, channel: &mut Channel, opened: &Opened, size: usize, sleep: Sleep) -> io::Result<Self> {
        let events = opened.context.create_completion_channel()?;
        let cq = opened.context.cq_builder(2 * DEPTH).channel(&events).build()?;
        let mut prepared = Prepared::on(opened, cq)?;
        for _ in 0..DEPTH / 2 {
            let buffer = prepared.pd.allocate(size)?;
            prepared.qp.post_recv(buffer, 0)?;
        }
        let end = prepared.meet(channel)?;
        let this = Self { poller: end.cq.poller(), end, events, sleep, message: vec![0x5a; size] };
        if sleep == Sleep::InCall {
            let flags = OFlag::from_bits_retain(fcntl(this.descriptor(), FcntlArg::F_GETFL)?);
            fcntl(this.descriptor(), FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
        }
        this.end.cq.request_notify(false)?;
        Ok(this)
    }

    /// The descriptor of the C channel; the safe interface lends another one.
    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the read requires a live channel: `self` owns it.
        let fd = unsafe { (*self.events.as_raw()).fd };
        // SAFETY: borrow_raw requires a descriptor that stays open: the channel owns it.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The buffer of the next receive.
    fn next_buffer(&mut self) -> io::Result<Option<Buffer>> {
        while let Some(mut completion) = self.poller.poll()? {
            completion.status().map_err(io::Error::other)?;
            // Some of the inline sends are signaled, to release their slots.
            if completion.opcode() == Opcode::Recv {
                return Ok(completion.take_buffer());
            }
        }
        Ok(None)
    }

    /// Waits for an event, and acknowledges it.
    fn wait(&self) -> io::Result<()> {
        loop {
            if self.sleep == Sleep::InPoll {
                poll(&mut [PollFd::new(self.descriptor().as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
            }
            match self.take_event() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                taken => return taken,
            }
        }
    }

    fn take_event(&self) -> io::Result<()> {
        let context = self.end.cq.context();
        let (mut cq, mut name) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: ibv_get_cq_event requires a live channel and space for two pointers: `events` is
        // alive, and the pointers are locals.
        let result = unsafe { (context.table().ibv_get_cq_event)(self.events.as_raw(), &raw mut cq, &raw mut name) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: ibv_ack_cq_events requires the live queue of an event that is not acknowledged
        // yet: `self` owns the only queue of the channel, and the event was just taken.
        unsafe { (context.table().ibv_ack_cq_events)(cq, 1) };
        Ok(())
    }
}

impl PingPong for RdmaSleep {
    fn name(&self) -> String {
        match self.sleep {
            Sleep::InCall => "RC send over soft0, asleep in ibv_get_cq_event".into(),
            Sleep::InPoll => "RC send over soft0, asleep in poll(2)".into(),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        Ok(self.end.qp.post_send(op::send_inline(&self.message).unsignaled())?)
    }

    /// Sleeps until a message is there, takes it, and posts its buffer again.
    fn receive(&mut self) -> io::Result<()> {
        loop {
            self.wait()?;
            self.end.cq.request_notify(false)?;
            let mut received = None;
            while let Some(buffer) = self.next_buffer()? {
                received = Some(buffer);
            }
            if let Some(buffer) = received {
                return Ok(self.end.qp.post_recv(buffer, 0)?);
            }
        }
    }
}
