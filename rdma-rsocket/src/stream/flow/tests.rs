use super::*;
use proptest::prelude::*;

/// A sender and a receiver with the receiver's memory, and the grants between them.
struct World {
    inbound: Inbound,
    outbound: Outbound,
    memory: Vec<u8>,
    buffers: VecDeque<Range>,
    written: u32,
    read: u32,
}

impl World {
    fn new(size: usize, credits: u16) -> Self {
        let first = Range { address: 0, key: 0, len: u32::try_from(size / 2).unwrap() };
        Self {
            inbound: Inbound::new(size, credits),
            outbound: Outbound::new(credits, first),
            memory: vec![0; size],
            buffers: VecDeque::new(),
            written: 0,
            read: 0,
        }
    }

    /// Sends up to `len` bytes, as far as buffers and credits go.
    fn send(&mut self, len: u32) {
        if self.outbound.is_full() {
            self.buffers.pop_front().into_iter().for_each(|buffer| self.outbound.set_target(buffer));
        }
        let len = len.min(self.outbound.room());
        if len == 0 {
            return;
        }
        let destination = self.outbound.send(len);
        for at in destination.address..destination.address + u64::from(len) {
            self.memory[usize::try_from(at).unwrap()] = self.written.to_le_bytes()[0];
            self.written += 1;
        }
        self.inbound.receive(len).expect("an honest sender has room");
    }

    fn read(&mut self, len: usize) {
        for (offset, len) in self.inbound.peek(0, len) {
            for byte in &self.memory[offset..offset + len] {
                assert_eq!(*byte, self.read.to_le_bytes()[0]);
                self.read += 1;
            }
            self.inbound.consume(len);
        }
        while self.inbound.is_grant_due() {
            let grant = self.inbound.grant();
            self.outbound.set_limit(grant.limit);
            self.buffers.extend(grant.buffer.map(|(offset, len)| Range {
                address: offset as u64,
                key: 0,
                len: u32::try_from(len).unwrap(),
            }));
            assert!(self.buffers.len() <= 2, "the list has two entries");
        }
    }
}

proptest! {
    #[test]
    fn bytes_arrive_in_order_and_the_stream_never_stalls(
        half in 1..64_usize, credits in 2..20_u16, steps in proptest::collection::vec((0..80_u32, 0..80_usize), 1..300),
    ) {
        let mut world = World::new(2 * half, credits);
        world.read(0);
        for (send, read) in steps {
            world.send(send);
            world.read(read);
        }
        for _ in 0..4 {
            world.read(usize::MAX);
            let before = world.written;
            world.send(1);
            prop_assert_eq!(world.written, before + 1);
        }
        world.read(usize::MAX);
        prop_assert_eq!(world.read, world.written);
    }

    #[test]
    fn a_hostile_sender_gets_an_error(lens in proptest::collection::vec(0..100_u32, 1..100)) {
        let mut inbound = Inbound::new(64, 4);
        let mut accepted = 0;
        for len in lens {
            if inbound.receive(len).is_ok() {
                accepted += len;
            }
        }
        prop_assert!(accepted <= 32 && inbound.messages.len() <= 4);
        for (offset, len) in inbound.peek(0, usize::MAX) {
            prop_assert!(offset + len <= 64);
        }
    }

    #[test]
    fn a_send_ring_hands_out_each_byte_once(lens in proptest::collection::vec(1..40_usize, 1..100)) {
        let mut ring = SendRing::new(64);
        let mut busy = VecDeque::new();
        for len in lens {
            while ring.free() < len {
                let (_, oldest) = busy.pop_front().expect("bytes are in use");
                ring.give_back(oldest);
            }
            let taken = ring.take(len);
            let bytes: Vec<usize> = taken.iter().flat_map(|&(at, len)| at..at + len).collect();
            prop_assert_eq!(bytes.len(), len);
            for (other, _) in &busy {
                let other: &Vec<usize> = other;
                prop_assert!(bytes.iter().all(|byte| *byte < 64 && !other.contains(byte)));
            }
            busy.push_back((bytes, len));
        }
    }
}
