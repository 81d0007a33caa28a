//! A connected stream: the protocol's messages over a queue pair.

use nix::errno::Errno;

use super::flow::{Inbound, Outbound, Pieces, SendRing};
use super::maps::Maps;
use crate::buffers::{Sink, Source};
use crate::settings::Settings;
use crate::verbs::{Access, Completion, Id, Limits, Queues, Region, Target, Transport};
use crate::wire::{CONNECT_DATA_LEN, ConnectData, IoMap, Message, Range, TARGETS};

/// Send requests and send buffers that are reserved for messages without data.
const CONTROL_SLOTS: usize = 4;
/// The first message of a call has at most so many bytes, and each further one twice as many: the
/// device sends the first part while the second is copied.
const FIRST_MESSAGE: usize = 2048;
const LARGEST_MESSAGE: usize = 1 << 16;
/// A stream that has less free space to send is not writable.
pub(crate) const LOW_WATER: usize = 2048;
/// The least requests of a queue.
const LEAST_DEPTH: u16 = 16;

/// Bytes of the longest control message: an entry of a list.
const CONTROL_LEN: usize = IoMap::LEN;
/// Bytes of the target list.
const TARGETS_LEN: usize = TARGETS as usize * Range::LEN;

/// The kinds of send requests, in the upper half of their number; the lower half is the number of
/// bytes in the send ring.
const DATA: u64 = 0;
const CONTROL: u64 = 1 << 32;
const DISCONNECT: u64 = 2 << 32;

/// The state of the connection, as far as the peer and the device are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Open,
    /// A side has said that it neither sends nor receives any more.
    Disconnected,
    Failed(Errno),
}

/// Queues, buffers and flow control of a connection.
///
/// The inbox holds the receive ring, then the target list, then the peer's I/O maps. The outbox
/// holds the send ring, then the slots of control messages.
#[derive(Debug)]
pub(crate) struct Connection {
    queues: Queues,
    inbox: Region,
    outbox: Region,
    receive_size: usize,
    send_size: usize,
    /// Entries of the list of the peer's I/O maps.
    io_maps: u16,
    /// The memory that the peer may write.
    maps: Maps,
    inbound: Inbound,
    outbound: Outbound,
    ring: SendRing,
    data_slots: usize,
    control_slots: usize,
    /// Control messages sent, which choose the slot.
    controls: usize,
    /// What the peer has said of itself; all zero before it has.
    peer: ConnectData,
    /// The entry of our target list that the peer writes next.
    next_target: usize,
    /// Whether the target list may have a new entry.
    targets_changed: bool,
    /// The entry of the peer's target list that we write next.
    peer_target: u32,
    link: Link,
    is_readable: bool,
    is_writable: bool,
}

impl Connection {
    /// Makes queues and buffers on the id's device.
    pub(crate) fn new(id: &Id, settings: &Settings) -> Result<Self, Errno> {
        let limits = Limits {
            send: settings.send_depth.max(LEAST_DEPTH),
            receive: settings.receive_depth.max(LEAST_DEPTH),
            inline: settings.inline,
        };
        let mut queues = Queues::new(id, Transport::Connected, limits)?;
        let (receive_size, send_size) = (settings.receive_size(), settings.send_size());
        let lists = TARGETS_LEN + usize::from(settings.io_maps) * IoMap::LEN;
        let inbox = queues.region(id, receive_size + lists, Access::PeerWrites)?;
        let outbox = queues.region(id, send_size + CONTROL_SLOTS * CONTROL_LEN, Access::Local)?;
        let limits = queues.limits();
        for _ in 0..limits.receive {
            queues.receive()?;
        }
        let nowhere = Range::default();
        Ok(Self {
            queues,
            inbox,
            outbox,
            receive_size,
            send_size,
            io_maps: settings.io_maps,
            maps: Maps::default(),
            inbound: Inbound::new(receive_size, limits.receive),
            outbound: Outbound::new(0, nowhere),
            ring: SendRing::new(send_size),
            data_slots: usize::from(limits.send).saturating_sub(CONTROL_SLOTS),
            control_slots: CONTROL_SLOTS,
            controls: 0,
            peer: ConnectData { credits: 0, targets: nowhere, io_maps: 0, buffer: nowhere, is_swapped: false },
            next_target: 1,
            targets_changed: false,
            peer_target: 1,
            link: Link::Open,
            is_readable: true,
            is_writable: true,
        })
    }

    /// The data for the peer.
    pub(crate) fn connect_data(&self) -> [u8; CONNECT_DATA_LEN] {
        let range = |offset, len| Range { address: self.inbox.address(offset), key: self.inbox.remote_key(), len };
        let data = ConnectData {
            credits: self.queues.limits().receive,
            targets: range(self.receive_size, TARGETS),
            io_maps: self.io_maps,
            buffer: range(0, u32::try_from(self.receive_size / 2).unwrap_or(u32::MAX)),
            is_swapped: false,
        };
        data.encode()
    }

    /// Takes the data of the peer: sends may begin.
    pub(crate) fn start(&mut self, peer: ConnectData) {
        self.peer = peer;
        self.outbound = Outbound::new(peer.credits, peer.buffer);
    }

    pub(crate) fn queues(&mut self) -> &mut Queues {
        &mut self.queues
    }

    /// Processes completions, and tells the peer of maps, buffers and credits. Returns whether
    /// there were completions. One call processes at most as many as the queues hold, so that a
    /// peer that keeps sending cannot hold it.
    pub(crate) fn poll(&mut self) -> bool {
        let mut is_changed = false;
        let Limits { send, receive, .. } = self.queues.limits();
        for _ in 0..u32::from(send) + u32::from(receive) {
            let result = match self.queues.poll() {
                Ok(Some(completion)) => self.complete(completion),
                Ok(None) => break,
                Err(errno) => Err(errno),
            };
            is_changed = true;
            if let Err(errno) = result {
                self.fail(errno);
                break;
            }
        }
        self.announce();
        self.grant();
        is_changed
    }

    fn complete(&mut self, completion: Completion) -> Result<(), Errno> {
        if completion.is_receive {
            return self.received(completion);
        }
        match completion.request & !u64::from(u32::MAX) {
            DATA => {
                self.data_slots += 1;
                // The number is our own, so it fits.
                self.ring.give_back(usize::try_from(completion.request).unwrap_or_default());
            }
            kind => {
                self.control_slots += 1;
                if kind == DISCONNECT && self.is_open() {
                    self.link = Link::Disconnected;
                }
            }
        }
        if completion.is_success {
            self.end_if_sent();
            return Ok(());
        }
        if self.is_over() {
            // The peer has what it wanted, and is gone.
            self.disconnected();
        }
        Err(Errno::ECONNRESET)
    }

    /// Whether both sides have said that they send no more.
    fn is_over(&self) -> bool {
        !self.is_readable && !self.is_writable
    }

    /// Ends the connection once neither side sends any more and the device has sent everything.
    fn end_if_sent(&mut self) {
        if self.is_over() && self.has_sent_all() {
            self.disconnected();
        }
    }

    fn received(&mut self, completion: Completion) -> Result<(), Errno> {
        if !self.is_open() {
            return Ok(());
        }
        if !completion.is_success {
            return Err(Errno::ECONNRESET);
        }
        self.queues.receive()?;
        match Message::decode(completion.immediate.ok_or(Errno::EPROTO)?)? {
            Message::Data(len) => self.inbound.receive(len)?,
            Message::Credits(limit) => {
                self.outbound.set_limit(limit);
                self.targets_changed = true;
            }
            Message::Disconnect => self.link = Link::Disconnected,
            Message::Shutdown => {
                self.is_readable = false;
                self.end_if_sent();
            }
            Message::IoMap(_) | Message::KeepAlive => (),
        }
        Ok(())
    }

    /// Grants what is due, as far as control messages can be sent.
    pub(crate) fn grant(&mut self) {
        let has_peer = self.peer.targets.len > 0 && !self.is_over();
        while self.is_open() && has_peer && self.control_slots > 0 && self.inbound.is_grant_due() {
            let grant = self.inbound.grant();
            let message = Message::Credits(grant.limit);
            let sent = match grant.buffer {
                Some((offset, len)) => self.offer(offset, len, message),
                None => self.control(CONTROL, &[], (0, 0), message),
            };
            if let Err(errno) = sent {
                self.fail(errno);
            }
        }
    }

    /// Writes a part of the receive ring to the peer's target list.
    fn offer(&mut self, offset: usize, len: usize, message: Message) -> Result<(), Errno> {
        let range = Range {
            address: self.inbox.address(offset),
            key: self.inbox.remote_key(),
            len: u32::try_from(len).map_err(|_| Errno::EINVAL)?,
        };
        let slot = self.control_slot();
        self.outbox.write(slot, &range.encode(self.peer.is_swapped))?;
        let Range { address, key, len: entries } = self.peer.targets;
        let address = address.wrapping_add(u64::from(self.peer_target) * Range::LEN as u64);
        self.peer_target = (self.peer_target + 1) % entries;
        self.control(CONTROL, &[(slot, Range::LEN)], (address, key), message)
    }

    /// Registers memory and lets the peer write it at an offset, if it is shared. `ENOMEM` if the
    /// peer's list is full.
    ///
    /// # Safety
    ///
    /// The memory stays valid for the device, and for writes of the peer if it is shared, until
    /// [`Self::unmap`] or the end of the connection.
    pub(crate) unsafe fn map(
        &mut self,
        id: &Id,
        (memory, len): (*mut u8, usize),
        is_shared: bool,
        offset: u64,
    ) -> Result<(), Errno> {
        u32::try_from(len).map_err(|_| Errno::EINVAL)?;
        if is_shared && !self.maps.has_room(self.peer.io_maps) {
            return Err(Errno::ENOMEM);
        }
        let access = if is_shared { Access::PeerWrites } else { Access::Local };
        // SAFETY: `register` requires memory that stays valid, this function's condition.
        let registration = unsafe { self.queues.register(id, memory, len, access) }?;
        self.maps.add(memory.expose_provenance() as u64, len, offset, is_shared, registration);
        self.announce();
        Ok(())
    }

    /// Ends a mapping. A later write of the peer to it ends the connection.
    pub(crate) fn unmap(&mut self, memory: *mut u8, len: usize) -> Result<(), Errno> {
        self.maps.remove(memory.addr() as u64, len)
    }

    /// Writes entries to the peer's list of I/O maps, as far as control messages can be sent.
    fn announce(&mut self) {
        while self.is_open() && self.control_slots > 0 {
            let Some((index, map)) = self.maps.take_pending() else { break };
            if let Err(errno) = self.announce_map(index, map) {
                self.fail(errno);
            }
        }
    }

    fn announce_map(&mut self, index: u32, map: IoMap) -> Result<(), Errno> {
        let slot = self.control_slot();
        self.outbox.write(slot, &map.encode(self.peer.is_swapped))?;
        let Range { address, key, len: entries } = self.peer.targets;
        // The peer's list of I/O maps lies behind its target list.
        let list = address.wrapping_add(u64::from(entries) * Range::LEN as u64);
        let entry = list.wrapping_add(u64::from(index) * IoMap::LEN as u64);
        self.control(CONTROL, &[(slot, IoMap::LEN)], (entry, key), Message::IoMap(index))
    }

    /// Where the outbox has space for the next control message.
    fn control_slot(&self) -> usize {
        self.send_size + self.controls % CONTROL_SLOTS * CONTROL_LEN
    }

    /// Sends a control message; the caller has checked that there is a slot.
    fn control(
        &mut self,
        kind: u64,
        pieces: &[(usize, usize)],
        (address, key): (u64, u32),
        message: Message,
    ) -> Result<(), Errno> {
        self.controls = self.controls.wrapping_add(1);
        self.control_slots -= 1;
        let target = Target { address, key, immediate: Some(message.encode()) };
        let sent = self.queues.send(kind, &self.outbox, pieces, target);
        sent.inspect_err(|&errno| self.fail(errno))
    }

    /// Sends as much as there is space for. Returns the number of bytes, perhaps 0.
    pub(crate) fn send(&mut self, source: &mut Source<'_, '_>) -> Result<usize, Errno> {
        let before = source.left();
        let mut most = FIRST_MESSAGE;
        self.check_writable()?;
        while source.left() > 0 {
            let len = self.room().min(source.left()).min(most);
            if len == 0 {
                break;
            }
            let pieces = self.fill(source, len)?;
            let destination = self.outbound.send(u32::try_from(len).unwrap_or(u32::MAX));
            let message = Message::Data(destination.len).encode();
            let Range { address, key, .. } = destination;
            self.post(pieces, len, Target { address, key, immediate: Some(message) })?;
            most = (2 * most).min(LARGEST_MESSAGE);
        }
        Ok(before - source.left())
    }

    /// Writes to the memory that the peer has mapped at an offset, as much as there is space for.
    /// `None` if there is no space yet; 0 bytes if nothing is mapped at the offset.
    pub(crate) fn write_mapped(
        &mut self,
        source: &mut Source<'_, '_>,
        mut offset: u64,
    ) -> Result<Option<usize>, Errno> {
        let before = source.left();
        let mut most = FIRST_MESSAGE;
        self.check_writable()?;
        while source.left() > 0 {
            let Some(Range { address, key, len }) = self.peer_map(offset) else {
                return Ok(Some(before - source.left()));
            };
            let mapped = usize::try_from(len).unwrap_or(usize::MAX);
            let len = self.space().min(mapped).min(source.left()).min(most);
            if len == 0 {
                break;
            }
            let pieces = self.fill(source, len)?;
            self.post(pieces, len, Target { address, key, immediate: None })?;
            offset = offset.wrapping_add(len as u64);
            most = (2 * most).min(LARGEST_MESSAGE);
        }
        let written = before - source.left();
        Ok((written > 0).then_some(written))
    }

    /// The memory of the peer from an offset on. The peer may change its maps at any time, so each
    /// entry is copied before it is looked at. The peer's device checks the address.
    fn peer_map(&self, offset: u64) -> Option<Range> {
        let list = self.receive_size + TARGETS_LEN;
        (0..usize::from(self.io_maps)).find_map(|index| {
            let mut bytes = [0; IoMap::LEN];
            self.inbox.read(list + index * IoMap::LEN, &mut bytes).ok()?;
            IoMap::decode(bytes).at(offset)
        })
    }

    /// Copies `len` bytes to the send ring.
    fn fill(&mut self, source: &mut Source<'_, '_>, len: usize) -> Result<Pieces, Errno> {
        let pieces = self.ring.take(len);
        for (mut offset, len) in pieces {
            source.take(len, |bytes| {
                self.outbox.write(offset, bytes)?;
                offset += bytes.len();
                Ok(())
            })?;
        }
        Ok(pieces)
    }

    fn post(&mut self, pieces: Pieces, len: usize, target: Target) -> Result<(), Errno> {
        self.data_slots -= 1;
        let sent = self.queues.send(DATA | len as u64, &self.outbox, &pieces, target);
        sent.inspect_err(|&errno| self.fail(errno))
    }

    /// How many bytes the next message may have.
    pub(crate) fn room(&mut self) -> usize {
        if self.outbound.is_full() && self.targets_changed {
            self.next_target();
        }
        self.space().min(usize::try_from(self.outbound.room()).unwrap_or(usize::MAX))
    }

    /// Free bytes of the send ring, if the device takes another message with data. Data waits until
    /// the peer has been told of all maps, so that a message shows that they are there.
    fn space(&self) -> usize {
        if self.has_space() && !self.maps.has_pending() { self.ring.free() } else { 0 }
    }

    /// Whether the device takes another message with data.
    fn has_space(&self) -> bool {
        self.data_slots > 0 && self.ring.free() >= LOW_WATER.min(self.send_size)
    }

    /// Takes the next entry of the target list, if the peer has written it.
    fn next_target(&mut self) {
        let entry = self.receive_size + self.next_target * Range::LEN;
        let mut bytes = [0; Range::LEN];
        // Key and length are in the last word. The peer's device writes it last.
        let Ok(last) = self.inbox.load(entry + 8) else { return };
        bytes[8..].copy_from_slice(&last.to_ne_bytes());
        if Range::decode(bytes).len == 0 {
            self.targets_changed = false;
            return;
        }
        let Ok(address) = self.inbox.load(entry) else { return };
        bytes[..8].copy_from_slice(&address.to_ne_bytes());
        // The peer writes the entry again only after it has got the bytes of this buffer.
        if self.inbox.write(entry + 8, &[0; 8]).is_ok() {
            self.outbound.set_target(Range::decode(bytes));
            self.next_target = (self.next_target + 1) % TARGETS as usize;
        }
    }

    /// Copies received bytes. Returns their number, and marks them as read unless they are only
    /// looked at.
    pub(crate) fn receive(&mut self, sink: &mut Sink<'_, '_>, is_peek: bool) -> Result<usize, Errno> {
        let before = sink.left();
        for (mut offset, len) in self.inbound.peek(0, before) {
            sink.fill(len, |bytes| {
                self.inbox.read(offset, bytes)?;
                offset += bytes.len();
                Ok(())
            })?;
        }
        let received = before - sink.left();
        if !is_peek {
            self.inbound.consume(received);
            self.grant();
        }
        Ok(received)
    }

    /// How many bytes can be read.
    pub(crate) fn unread(&self) -> usize {
        self.inbound.unread()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.link == Link::Open
    }

    pub(crate) fn is_disconnected(&self) -> bool {
        self.link == Link::Disconnected
    }

    /// Whether more bytes may arrive.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_readable && self.is_open()
    }

    /// `EPIPE` after the end of our own sends, or the reason why the connection has ended.
    pub(crate) fn check_writable(&self) -> Result<(), Errno> {
        match self.link {
            Link::Failed(errno) => Err(errno),
            _ if !self.is_writable => Err(Errno::EPIPE),
            Link::Disconnected => Err(Errno::ECONNRESET),
            Link::Open => Ok(()),
        }
    }

    /// Ends one or both directions. Returns false if there is no slot for the message yet.
    pub(crate) fn shut_down(&mut self, reading: bool, writing: bool) -> Result<bool, Errno> {
        let is_readable = self.is_readable && !reading;
        let is_writable = self.is_writable && !writing;
        let message = match (is_readable, is_writable) {
            (false, false) if self.is_readable || self.is_writable => Some(Message::Disconnect),
            (true, false) if self.is_writable => Some(Message::Shutdown),
            _ => None,
        };
        if let Some(message) = message.filter(|_| self.is_open()) {
            if self.control_slots == 0 {
                return Ok(false);
            }
            let kind = if message == Message::Disconnect { DISCONNECT } else { CONTROL };
            self.control(kind, &[], (0, 0), message)?;
        }
        (self.is_readable, self.is_writable) = (is_readable, is_writable);
        Ok(true)
    }

    /// Writes no bytes, so that the device notices if the peer is gone.
    pub(crate) fn probe(&mut self) {
        if self.is_open() && self.control_slots == CONTROL_SLOTS {
            self.control_slots -= 1;
            let nowhere = Target { address: 0, key: 0, immediate: None };
            if let Err(errno) = self.queues.send(CONTROL, &self.outbox, &[], nowhere) {
                self.fail(errno);
            }
        }
    }

    /// Whether the device has sent everything, or never will.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_open() || self.has_sent_all()
    }

    fn has_sent_all(&self) -> bool {
        let all = usize::from(self.queues.limits().send).saturating_sub(CONTROL_SLOTS);
        self.control_slots == CONTROL_SLOTS && self.data_slots == all
    }

    /// The connection manager reports the end of the connection.
    pub(crate) fn disconnected(&mut self) {
        if self.is_open() {
            self.link = Link::Disconnected;
        }
    }

    pub(crate) fn fail(&mut self, errno: Errno) {
        if self.is_open() {
            self.link = Link::Failed(errno);
        }
    }

    /// The reason of a failure, once.
    pub(crate) fn take_failure(&mut self) -> Option<Errno> {
        match self.link {
            Link::Failed(errno) => {
                self.link = Link::Disconnected;
                Some(errno)
            }
            _ => None,
        }
    }
}
