//! One end of the connection, and its memory.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rdma::cm::blocking::Connection;
use rdma::op::{Opcode, Read, Send, Write, WriteImm};
use rdma::{
    Buffer, CompletionChannel, CompletionQueue, ExposedRegion, ExposedSlice, InitializedQueuePair, Mtu, Poller,
    PreparedQueuePair, QueuePair, Rc, RemoteAccess, RemoteSlice, RnrTimer,
};

use super::{Op, Settings, fill, is_intact, last_byte};
use crate::Failure;
use crate::bootstrap::Group;
use crate::collectives::wait::{Patience, Wait};
use crate::connect::{self, Connected, How, Method, Receives, Unconnected, is_iwarp};
use crate::device::Chosen;

/// Largest message that is copied into its request, where the device can.
const INLINE: u32 = 220;
/// The same on iWARP, whose devices refuse queue pairs with more than they have.
const IWARP_INLINE: u32 = 64;
/// Messages under way hold at most about this much memory.
const MEMORY: usize = 32 << 20;
/// How long the other side may be silent.
const STALL: Duration = Duration::from_secs(60);

/// One end of a connection for messages of one size.
#[derive(Debug)]
pub struct Link {
    settings: Settings,
    size: usize,
    mtu: Mtu,
    in_order: bool,
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    channel: CompletionChannel,
    poller: Poller,
    patience: Patience,
    ends: (String, String),
    _connection: Option<Connection>,
    /// iWARP: no immediate data, and no sender waits for receives by itself.
    is_iwarp: bool,
    inline: u32,
    /// What the peer writes to, or reads from.
    window: ExposedRegion,
    /// What this side writes from, or reads into.
    source: ExposedRegion,
    window_there: RemoteSlice,
    /// Buffers that may be sent.
    spare: VecDeque<Buffer>,
    /// Messages under way at once.
    depth: u64,
    posted: u64,
    completed: u64,
    arrived: u64,
    /// Messages that may be sent in all, because there are receives for them; and those that were given to the peer.
    permitted: u64,
    sent: u64,
    wrong: u64,
}

/// A link that is not connected.
struct Prepared {
    cq: CompletionQueue,
    channel: CompletionChannel,
    qp: PreparedQueuePair<Rc>,
    receives: Receives,
    window: ExposedRegion,
    source: ExposedRegion,
    spare: VecDeque<Buffer>,
    depth: u64,
    inline: u32,
}

impl Prepared {
    fn new(chosen: &Chosen, settings: &Settings, size: usize) -> Result<Self, Failure> {
        let context = &chosen.context;
        let in_memory = u32::try_from((MEMORY / size).clamp(2, 8192)).unwrap_or(2);
        let depth = settings.depth.min(in_memory);
        let receives = 2 * depth;
        let pd = context.alloc_pd()?;
        let channel = context.create_completion_channel()?;
        let is_iwarp = is_iwarp(context);
        let inline = if is_iwarp { IWARP_INLINE } else { INLINE };
        // On iWARP a message follows each write that is told, and permissions go between messages.
        let sends = if is_iwarp { 2 * depth + 2 } else { depth + 1 };
        let cq = context.cq_builder(sends + receives + 1).channel(&channel).build()?;
        let access = RemoteAccess::READ | RemoteAccess::WRITE;
        let window = pd.allocate_exposed(size, access)?;
        let source = pd.allocate_exposed(size, access)?;
        let qp = QueuePair::<Rc>::builder(&pd)
            .cq(&cq)
            .max_send_wr(sends)
            .max_recv_wr(receives)
            .max_inline_data(inline)
            .build()?;
        let mut spare = VecDeque::new();
        let (room, all) = match settings.op {
            Op::Send => {
                // The kernel's siw completes requests whose data TCP has yet to look at. Taken in turn, none of so many buffers is
                // needed again before its message has come: no more than that are permitted ahead.
                let spares = if is_iwarp { 2 * depth } else { depth };
                let mut all = pd.allocate((spares + receives) as usize * size)?;
                spare.extend((0..spares).map(|_| all.split_to(size)));
                (size, Some(all))
            }
            // Only word of writes comes, which has no bytes; but siw refuses receives without memory.
            Op::Write | Op::Read if is_iwarp => (1, Some(pd.allocate(receives as usize)?)),
            Op::Write | Op::Read => (0, None),
        };
        let receives: Receives = Box::new(move |qp: &mut InitializedQueuePair<Rc>| {
            let mut all = all;
            for _ in 0..receives {
                match &mut all {
                    Some(all) => qp.post_recv(all.split_to(room), 0)?,
                    None => qp.post_recv((), 0)?,
                }
            }
            Ok(())
        });
        Ok(Self { cq, channel, qp, receives, window, source, spare, depth: depth.into(), inline })
    }
}

impl Link {
    /// Connects the two processes of a group, for messages of `size` bytes; collective.
    ///
    /// # Errors
    /// Where either cannot.
    pub fn connect(
        chosen: &Chosen,
        group: &mut Group,
        settings: &Settings,
        size: usize,
        method: Method,
        shared_cores: bool,
    ) -> Result<Self, Failure> {
        let prepared =
            group.agree(chosen.mtu(settings.mtu).and_then(|mtu| Ok((mtu, Prepared::new(chosen, settings, size)?))));
        let (mtu, Prepared { cq, channel, qp, receives, window, source, spare, depth, inline }) = prepared?;
        let access = RemoteAccess::READ | RemoteAccess::WRITE;
        let how = How { method, access, mtu: Some(mtu), min_rnr_timer: RnrTimer::at_least(Duration::ZERO) };
        let peer = 1 - group.rank();
        let connected = connect::connect(chosen, group, vec![Unconnected { peer, qp, receives }], &how)?.pop();
        let Some(Connected { qp, connection, ends, .. }) = connected else {
            return Err(Failure::new("there is nobody to connect to"));
        };
        let there = group.all_gather(&window.remote(..)?.to_bytes())?.swap_remove(peer);
        let there: Result<[u8; RemoteSlice::WIRE_LEN], _> = there.try_into();
        let window_there = group.agree(
            there.map(|bytes| RemoteSlice::from_bytes(&bytes)).map_err(|_| Failure::new("the peer sent no address")),
        )?;
        let in_order = qp.writes_in_order().unwrap_or(false) && !settings.events;
        let in_order = group.all_gather(&[u8::from(in_order)])?.iter().all(|vote| vote == &[1]);
        Ok(Self {
            settings: settings.clone(),
            size,
            mtu,
            in_order,
            qp,
            poller: cq.poller(),
            cq,
            channel,
            patience: Patience::new(group.watch(), shared_cores, STALL),
            ends,
            _connection: connection,
            is_iwarp: is_iwarp(&chosen.context),
            inline,
            window,
            source,
            window_there,
            spare,
            depth,
            posted: 0,
            completed: 0,
            arrived: 0,
            permitted: 2 * depth - 2,
            sent: 0,
            wrong: 0,
        })
    }

    /// The settings that it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Messages under way at once, at most.
    #[must_use]
    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// The path's MTU in bytes.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu.bytes().unwrap_or(0)
    }

    /// Largest message that is copied into its request.
    #[must_use]
    pub fn inline(&self) -> u32 {
        self.qp.send_queue().max_inline_data().min(self.inline)
    }

    /// How messages are noticed.
    #[must_use]
    pub fn notice(&self) -> &'static str {
        match self.settings.op {
            Op::Write if self.in_order => "watched in memory",
            _ if self.settings.events => "told by events",
            _ => "told by completions",
        }
    }

    /// Whether the device is iWARP.
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        self.is_iwarp
    }

    /// This end and the other.
    #[must_use]
    pub fn ends(&self) -> (&str, &str) {
        (&self.ends.0, &self.ends.1)
    }

    /// Posted messages that are not known to be complete.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.posted - self.completed
    }

    /// Sends message `number`, when there is a buffer for it.
    ///
    /// # Errors
    /// Where the device refuses, or the connection breaks.
    pub fn send(&mut self, number: u64) -> Result<(), Failure> {
        if self.is_iwarp {
            self.wait_while(|link| link.sent >= link.permitted)?;
        }
        self.sent += 1;
        self.posted += 1;
        if !self.settings.check && self.size <= self.inline() as usize {
            let mut bytes = [0; INLINE as usize];
            bytes[self.size - 1] = last_byte(number);
            let request = Send::inline(&bytes[..self.size]).token(self.posted);
            return self.qp.post_send(request).map_err(Failure::from);
        }
        let mut buffer = loop {
            match self.spare.pop_front() {
                Some(buffer) => break buffer,
                None => self.wait_while(|link| link.spare.is_empty())?,
            }
        };
        if self.settings.check {
            fill(&mut buffer, number);
        }
        self.qp.post_send(Send::new(buffer).token(self.posted)).map_err(Failure::from)
    }

    /// Writes message `number` into the peer's memory; where `told`, with word of it.
    ///
    /// # Errors
    /// Where the device refuses, or the connection breaks.
    pub fn write(&mut self, number: u64, told: bool) -> Result<(), Failure> {
        self.posted += 1;
        let there = self.window_there;
        let token = self.posted;
        let with_immediate = told && !self.is_iwarp;
        if !self.settings.check && self.size <= self.inline() as usize {
            let mut bytes = [0; INLINE as usize];
            bytes[self.size - 1] = last_byte(number);
            let bytes = &bytes[..self.size];
            if with_immediate {
                self.qp.post_send(WriteImm::inline(bytes, there, 0).token(token))?;
            } else {
                self.qp.post_send(Write::inline(bytes, there).token(token))?;
            }
        } else {
            self.set_source(number)?;
            let source = self.source.slice(..)?;
            if with_immediate {
                self.qp.post_send(WriteImm::new(source, there, 0).token(token))?;
            } else {
                self.qp.post_send(Write::new(source, there).token(token))?;
            }
        }
        if told && self.is_iwarp { self.send_nothing() } else { Ok(()) }
    }

    /// A message without contents: on iWARP, word of a write, or permission to send more.
    fn send_nothing(&mut self) -> Result<(), Failure> {
        self.posted += 1;
        self.qp.post_send(Send::new(()).token(self.posted)).map_err(Failure::from)
    }

    /// Reads the peer's memory.
    ///
    /// # Errors
    /// Where the device refuses, or the connection breaks.
    pub fn read(&mut self) -> Result<(), Failure> {
        self.posted += 1;
        let sink: ExposedSlice = self.source.slice(..)?;
        let request = Read::new(sink, self.window_there).token(self.posted);
        self.qp.post_send(request).map_err(Failure::from)
    }

    /// Whether message `number` has to be told, since nobody watches memory.
    #[must_use]
    pub fn needs_telling(&self) -> bool {
        !self.in_order
    }

    /// Makes message `number` what the next write takes.
    fn set_source(&self, number: u64) -> Result<(), Failure> {
        if self.settings.check {
            self.fill(&self.source, number)
        } else {
            self.source.copy_in(self.size - 1, &[last_byte(number)]).map_err(Failure::from)
        }
    }

    /// Makes message `number` what the peer's reads get.
    ///
    /// # Errors
    /// Never, unless sizes are wrong.
    pub fn offer(&self, number: u64) -> Result<(), Failure> {
        self.fill(&self.window, number)
    }

    fn fill(&self, region: &ExposedRegion, number: u64) -> Result<(), Failure> {
        let mut bytes = vec![0; self.size];
        fill(&mut bytes, number);
        region.copy_in(0, &bytes).map_err(Failure::from)
    }

    /// Waits until message `number`, counted from 0, has come; checks it if that is asked for.
    ///
    /// # Errors
    /// Where the connection breaks.
    pub fn wait_for_message(&mut self, number: u64) -> Result<(), Failure> {
        if self.settings.op == Op::Write {
            if self.in_order {
                self.watch(number)?;
            } else {
                self.wait_while(|link| link.arrived <= number)?;
            }
            if self.settings.check {
                self.inspect(true, number)?;
            }
            return Ok(());
        }
        self.wait_while(|link| link.arrived <= number)
    }

    /// Watches the last byte of the window.
    fn watch(&mut self, number: u64) -> Result<(), Failure> {
        let expected = last_byte(number);
        let mut last = [0];
        let mut wait = Wait::default();
        loop {
            self.window.copy_out(self.size - 1, &mut last)?;
            if last[0] == expected {
                // The rest of the message was written before its last byte.
                fence(Ordering::Acquire);
                return Ok(());
            }
            if let Some(nap) = self.patience.pause(&mut wait)? {
                self.poll(None)?;
                std::thread::sleep(nap);
            }
        }
    }

    /// Compares a message with what it should be: in the window, or in what reads go to.
    ///
    /// # Errors
    /// Never, unless sizes are wrong.
    pub fn inspect(&mut self, window: bool, number: u64) -> Result<(), Failure> {
        let mut bytes = vec![0; self.size];
        let region = if window { &self.window } else { &self.source };
        region.copy_out(0, &mut bytes)?;
        self.wrong += u64::from(!is_intact(&bytes, number));
        Ok(())
    }

    /// Waits until at most `count` of the posted messages are under way.
    ///
    /// # Errors
    /// Where the connection breaks.
    pub fn drain(&mut self, count: u64) -> Result<(), Failure> {
        self.wait_while(|link| link.under_way() > count)
    }

    /// Fails where a message had wrong contents.
    ///
    /// # Errors
    /// How many had.
    pub fn verdict(&self) -> Result<(), Failure> {
        match self.wrong {
            0 => Ok(()),
            wrong => Err(Failure::new(format!("{wrong} messages of {} bytes had wrong contents", self.size))),
        }
    }

    /// Handles the next completion; tells whether there was one. With a time, sleeps that long for one.
    fn poll(&mut self, sleep: Option<Duration>) -> Result<bool, Failure> {
        if self.take_completion()? {
            return Ok(true);
        }
        let Some(nap) = sleep else { return Ok(false) };
        self.cq.request_notify(false)?;
        // What came before the queue was armed makes no event.
        if self.take_completion()? {
            return Ok(true);
        }
        self.channel.wait(Some(nap))?;
        self.take_completion()
    }

    fn take_completion(&mut self) -> Result<bool, Failure> {
        let Some(mut completion) = self.poller.poll()? else { return Ok(false) };
        let opcode = completion.opcode();
        completion.status().map_err(|e| Failure::new(format!("the connection broke: {opcode:?}: {e}")))?;
        match opcode {
            Opcode::Recv | Opcode::RecvWriteImm => {
                let (length, buffer) = (completion.byte_len(), completion.take_buffer());
                // Messages have a byte at least.
                let is_empty = self.is_iwarp && length == 0;
                if is_empty && self.settings.op == Op::Send {
                    self.permitted += self.depth;
                } else {
                    let number = self.arrived;
                    self.arrived += 1;
                    if let (Some(buffer), true, false) = (&buffer, self.settings.check, is_empty) {
                        let intact = length == buffer.len() && is_intact(buffer, number);
                        self.wrong += u64::from(!intact);
                    }
                }
                match buffer {
                    Some(buffer) => self.qp.post_recv(buffer, 0)?,
                    None => self.qp.post_recv((), 0)?,
                }
                // Only now there is a receive for one more.
                if self.is_iwarp && !is_empty && self.arrived % self.depth == 0 {
                    self.send_nothing()?;
                }
            }
            _ => {
                self.completed = self.completed.max(completion.token());
                self.spare.extend(completion.take_buffer());
            }
        }
        Ok(true)
    }

    /// Waits until `count` messages were told of.
    ///
    /// # Errors
    /// Where the connection breaks.
    pub fn wait_told(&mut self, count: u64) -> Result<(), Failure> {
        self.wait_while(|link| link.arrived < count)
    }

    fn wait_while(&mut self, condition: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let mut wait = Wait::default();
        while condition(self) {
            if self.settings.events {
                // An event or a second, whichever is first: then look whether the other side still lives.
                self.poll(Some(Duration::from_secs(1)))?;
                self.patience.check()?;
                continue;
            }
            if self.poll(None)? {
                continue;
            }
            if let Some(nap) = self.patience.pause(&mut wait)? {
                self.poll(Some(nap))?;
            }
        }
        Ok(())
    }
}
