use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use proptest::prelude::*;

use super::*;
use crate::engine::{Gather, Header, Outbound, Slot, Source, Target, Transmit};
use crate::link::hello::Identity;
use crate::link::hosts::Hosts;
use crate::link::stream::{Each, Ended, Far, Stream};
use crate::os;
use crate::os::tcp::Tcp;

/// Whether this processor can encrypt; if not, says that the running test was skipped.
fn can_encrypt() -> bool {
    let can = has_instructions();
    if !can {
        rdma_test_support::lacks("a processor that can encrypt");
    }
    can
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Runs a handshake between two sides with these seeds.
fn handshake(seeds: [u8; 2]) -> [Result<Records, TlsError>; 2] {
    let [ours, theirs] = Tcp::pair();
    thread::scope(|scope| {
        let accepting = scope.spawn(move || accept(&theirs, [seeds[1]; SEED], soon()));
        let opened = open(&ours, [seeds[0]; SEED], soon());
        drop(ours);
        [opened, accepting.join().unwrap()]
    })
}

/// The encryption of two sides, each with a socket: what one side writes can be read as it is at
/// the other end of its socket, and is fed to the other side by hand.
struct Sides {
    writer: Records,
    reader: Records,
    /// Where the writer writes, and its other end.
    out: [Tcp; 2],
    /// What the reader reads, and its other end.
    into: [Tcp; 2],
}

impl Sides {
    fn new() -> Self {
        let [opened, accepted] = handshake([1, 1]);
        Self { writer: opened.unwrap(), reader: accepted.unwrap(), out: Tcp::pair(), into: Tcp::pair() }
    }

    /// The bytes on the wire for these in the clear.
    fn seal(&mut self, bytes: &[u8]) -> Vec<u8> {
        assert_eq!(self.writer.write(&self.out[0], [bytes, &[]]).unwrap(), bytes.len());
        assert!(!self.writer.has_unsent());
        let mut sealed = vec![0; 2 * bytes.len() + 100];
        let count = self.out[1].read(&mut sealed).unwrap();
        sealed.truncate(count);
        sealed
    }

    /// What the reader makes of bytes: those in the clear, and how the last read ended.
    fn open(&mut self, sealed: &[u8]) -> (Vec<u8>, os::Error) {
        self.into[1].write_all(sealed, soon()).unwrap();
        let (mut bytes, mut space) = (Vec::new(), [0; 1000]);
        loop {
            match self.reader.read(&self.into[0], &mut space) {
                Ok(0) => panic!("the end of the connection"),
                Ok(count) => bytes.extend_from_slice(&space[..count]),
                Err(error) => return (bytes, error),
            }
        }
    }

    fn opens(&mut self, sealed: &[u8], bytes: &[u8]) {
        let (opened, ended) = self.open(sealed);
        assert_eq!((opened.as_slice(), ended.errno), (bytes, Errno::EAGAIN));
    }

    /// Whether the reader refuses these bytes, and all that come after them.
    fn refuses(&mut self, sealed: &[u8]) {
        let good = self.seal(b"good");
        for sealed in [sealed, &good] {
            let (opened, ended) = self.open(sealed);
            assert_eq!((opened.as_slice(), ended.errno), (&[][..], Errno::EBADMSG));
        }
    }
}

#[test]
fn two_sides_with_one_seed_exchange_bytes_in_both_directions() {
    if !can_encrypt() {
        return;
    }
    let mut sides = Sides::new();
    let sealed = sides.seal(b"hello");
    sides.opens(&sealed, b"hello");
    std::mem::swap(&mut sides.writer, &mut sides.reader);
    let sealed = sides.seal(b"and back");
    sides.opens(&sealed, b"and back");
}

#[test]
fn a_side_with_another_seed_is_refused() {
    if !can_encrypt() {
        return;
    }
    for seeds in [[1, 2], [2, 1]] {
        let [opened, accepted] = handshake(seeds);
        assert!(accepted.is_err() && opened.is_err(), "{opened:?} {accepted:?}");
    }
}

#[test]
fn records_that_are_cut_at_any_byte_arrive_once_and_in_order() {
    if !can_encrypt() {
        return;
    }
    let mut sides = Sides::new();
    for cut in 0..=100 {
        let sealed = [sides.seal(b"one"), sides.seal(b"two, which is longer")].concat();
        let cut = cut.min(sealed.len());
        let (mut arrived, ended) = sides.open(&sealed[..cut]);
        assert!(ended.errno == Errno::EAGAIN && !sides.reader.has_bytes());
        arrived.extend(sides.open(&sealed[cut..]).0);
        assert_eq!(arrived, b"onetwo, which is longer", "cut at {cut}");
    }
}

#[test]
fn a_slow_reader_leaves_the_next_record_in_the_socket() {
    if !can_encrypt() {
        return;
    }
    let mut sides = Sides::new();
    sides.reader.read_one_by_one();
    let sealed = [sides.seal(b"one"), sides.seal(b"two"), sides.seal(b"three")].concat();
    sides.into[1].write_all(&sealed[..sealed.len() - 1], soon()).unwrap();
    let mut space = [0; 100];
    for text in [&b"one"[..], b"two"] {
        // In two reads, as a packet is.
        for (part, len) in [(&text[..2], 2), (&text[2..], 1)] {
            assert_eq!(sides.reader.read(&sides.into[0], &mut space[..len]), Ok(len));
            assert_eq!(&space[..len], part);
        }
        assert!(!sides.reader.has_bytes() && sides.into[0].look().0, "the socket is readable");
    }
    assert_eq!(sides.reader.read(&sides.into[0], &mut space).unwrap_err().errno, Errno::EAGAIN);
    sides.opens(&sealed[sealed.len() - 1..], b"three");
}

#[test]
fn a_bit_that_is_changed_anywhere_ends_the_connection() {
    if !can_encrypt() {
        return;
    }
    let len = Sides::new().seal(b"good").len();
    for at in 0..len {
        let mut sides = Sides::new();
        let mut sealed = sides.seal(b"good");
        sealed[at] ^= 1 << (at % 8);
        // A longer length waits for bytes that are not the record's.
        sealed.extend_from_slice(&[0; 1 << 12]);
        sides.refuses(&sealed);
        assert!(sides.reader.has_bytes());
    }
}

#[test]
fn records_that_are_dropped_repeated_or_exchanged_end_the_connection() {
    if !can_encrypt() {
        return;
    }
    let mut sides = Sides::new();
    sides.seal(b"dropped");
    let after = sides.seal(b"after");
    sides.refuses(&after);

    let mut sides = Sides::new();
    let once = sides.seal(b"once");
    sides.opens(&once, b"once");
    sides.refuses(&once);

    // A side's own records are not the peer's.
    let mut sides = Sides::new();
    let own = sides.seal(b"own");
    std::mem::swap(&mut sides.writer, &mut sides.reader);
    let (opened, ended) = sides.open(&own);
    assert_eq!((opened.as_slice(), ended.errno), (&[][..], Errno::EBADMSG));
}

#[test]
fn bytes_before_a_bad_record_are_read_first() {
    if !can_encrypt() {
        return;
    }
    let mut sides = Sides::new();
    let mut sealed = [sides.seal(b"good"), sides.seal(b"bad")].concat();
    *sealed.last_mut().unwrap() ^= 1;
    let (opened, ended) = sides.open(&sealed);
    assert_eq!((opened.as_slice(), ended.errno), (&b"good"[..], Errno::EBADMSG));
}

#[test]
fn keys_change_after_a_number_of_records_where_both_sides_expect_it() {
    if !can_encrypt() {
        return;
    }
    let mut sides = Sides::new();
    sides.writer.rekey_after(3);
    sides.reader.rekey_after(3);
    for number in 0..20_u8 {
        let sealed = sides.seal(&[number; 10]);
        sides.opens(&sealed, &[number; 10]);
    }
    // A peer that changes its key earlier or later than agreed is no device.
    for number in [2, 4] {
        let mut sides = Sides::new();
        sides.writer.rekey_after(number);
        sides.reader.rekey_after(3);
        let refused = (0..6).any(|_| {
            let sealed = sides.seal(b"x");
            sides.open(&sealed).1.errno == Errno::EBADMSG
        });
        assert!(refused, "{number}");
    }
}

#[test]
fn frames_are_encrypted_from_where_they_lie_and_read_to_a_target_while_keys_change() {
    let mut sides = Sides::new();
    sides.writer.rekey_after(3);
    sides.reader.rekey_after(3);
    let text: Vec<u8> = (0..70_000_u32).map(|number| (number / 7).to_le_bytes()[0]).collect();
    for len in [0, 1, 16_332, 16_333, 40_000, 65_536] {
        let (head, payload) = text[..52 + len].split_at(52);
        let (one, other) = payload.split_at(len / 3);
        assert!(sides.writer.has_room(52 + len));
        sides.writer.push(head, &Gather::of(&[one, other].map(Source::of))).unwrap();
        assert_eq!(sides.writer.write(&sides.out[0], [&[], &[]]), Ok(0));
        assert!(!sides.writer.has_unsent());
        let mut sealed = vec![0; 100_000];
        let count = sides.out[1].read(&mut sealed).unwrap();
        sides.into[1].write_all(&sealed[..count], soon()).unwrap();
        let (mut opened, mut behind) = (vec![0; 52 + len - 52.min(len)], [0; 52]);
        let mut read = 0;
        while read < 52 + len {
            let (target, space) = (&mut opened[..], &mut behind[..]);
            let (from, skip) = (read.min(target.len()), read.saturating_sub(target.len()));
            let (target, space) = (Target::of(&mut target[from..]), &mut space[skip..52.min(len)]);
            read += sides.reader.read_to(&sides.into[0], target, space).unwrap();
        }
        opened.extend_from_slice(&behind[..52.min(len)]);
        assert!(opened == text[..52 + len], "{len}");
        assert!(!sides.reader.has_bytes());
    }
    // Three frames of the longest kind have room, and a fourth has not before those are sent.
    let payload = [Source::of(&text[..65_536])];
    for is_free in [true, true, true, false] {
        assert_eq!(sides.writer.has_room(52 + 65_536), is_free);
        if is_free {
            sides.writer.push(&text[..52], &Gather::of(&payload)).unwrap();
        }
    }
}

#[test]
fn a_target_gets_nothing_of_a_record_that_was_changed() {
    let mut sides = Sides::new();
    let mut sealed = sides.seal(&[7; 1000]);
    sealed[500] ^= 1;
    sides.into[1].write_all(&sealed, soon()).unwrap();
    let mut bytes = [0; 900];
    let read = sides.reader.read_to(&sides.into[0], Target::of(&mut bytes), &mut [0; 100]);
    assert_eq!(read.unwrap_err().errno, Errno::EBADMSG);
    assert_eq!(bytes, [0; 900]);
}

#[test]
fn the_wire_shows_nothing_of_the_bytes() {
    if !can_encrypt() {
        return;
    }
    let mut sides = Sides::new();
    let text: Vec<u8> = (0..50_000_u32).flat_map(|number| number.to_be_bytes()).collect();
    let mut sealed = Vec::new();
    for part in text.chunks(40_000) {
        sealed.extend(sides.seal(part));
    }
    let windows: std::collections::HashSet<&[u8]> = text.windows(8).collect();
    assert!(!sealed.windows(8).any(|window| windows.contains(window)));
    assert!(sides.open(&sealed).0 == text);
    // Equal bytes differ on the wire.
    assert_ne!(sides.seal(&[0; 16])[5..], sides.seal(&[0; 16])[5..]);
}

#[test]
fn a_peer_that_does_not_read_blocks_the_writer_and_all_bytes_arrive_later() {
    if !can_encrypt() {
        return;
    }
    let mut sides = Sides::new();
    let text: Vec<u8> = (0..3_000_000_u32).map(|number| (number / 7).to_le_bytes()[0]).collect();
    let [end, far] = &sides.out;
    let (mut sent, mut arrived) = (0, Vec::new());
    let mut space = vec![0; 100_000];
    let blocked = loop {
        // Two slices, of which the first may be empty.
        let rest = &text[sent..];
        let (one, other) = rest.split_at(rest.len().min(1000 * (sent % 3)));
        match sides.writer.write(end, [one, other]) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
    };
    assert_eq!(blocked.errno, Errno::EAGAIN);
    assert!(sent < text.len() && sides.writer.has_unsent());
    while arrived.len() < text.len() {
        match sides.reader.read(far, &mut space) {
            Ok(count) => arrived.extend_from_slice(&space[..count]),
            Err(error) => assert_eq!(error.errno, Errno::EAGAIN),
        }
        match sides.writer.write(end, [&text[sent..], &[]]) {
            Ok(count) => sent += count,
            Err(error) => assert_eq!(error.errno, Errno::EAGAIN),
        }
    }
    assert!(arrived == text && !sides.writer.has_unsent());
    assert_eq!(sides.reader.read(far, &mut space).unwrap_err().errno, Errno::EAGAIN);
    end.shut_down();
    assert_eq!(sides.reader.read(far, &mut space), Ok(0));
}

/// Carries bytes from one socket to another until the first one ends. Returns them.
fn carry(from: &Tcp, to: &Tcp) -> Vec<u8> {
    let (mut carried, mut byte) = (Vec::new(), [0]);
    while from.read_exact(&mut byte, soon()).is_ok() {
        carried.extend_from_slice(&byte);
        let _ended: os::Result<()> = to.write_all(&byte, soon());
    }
    carried
}

#[test]
fn frames_are_carried_and_the_wire_does_not_show_them() {
    if !can_encrypt() {
        return;
    }
    let far = || {
        let host = Arc::new(Hosts::default()).hold(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        Far { host, identity: Identity { slot: Slot(1), instance: [1; 16] } }
    };
    let Sides { writer, reader, out: [ours, middle], into: [theirs, between] } = Sides::new();
    let mut ours = Stream::new(ours, Some(writer), far());
    let mut theirs = Stream::new(theirs, Some(reader), far());
    let mut carried = Vec::new();
    let mut space = vec![0; 1 << 16];
    let (mut arrived, mut pushed, frames) = (0, 0, 200_u64);
    while arrived < frames {
        while pushed < frames {
            let payload = vec![b'a' + u8::try_from(pushed % 26).unwrap(); usize::try_from(pushed * 329).unwrap()];
            if !ours.try_push(&Header([pushed; 6]), &Gather::of(&[Source::of(&payload)])) {
                break;
            }
            pushed += 1;
        }
        // A look notices that the socket has space again.
        ours.is_idle();
        ours.deliver(Transmit::Idle).unwrap();
        while let Ok(count) = middle.read(&mut space) {
            carried.extend_from_slice(&space[..count]);
            between.write_all(&space[..count], soon()).unwrap();
            let mut budget = usize::MAX;
            let handle = Each::new(|header, payload| {
                assert_eq!(header.0, [arrived; 6]);
                let mut bytes = vec![0; payload.len()];
                payload.copy_to_slice(&mut bytes);
                let letter = b'a' + u8::try_from(arrived % 26).unwrap();
                assert!(bytes.len() as u64 == arrived * 329 && bytes.iter().all(|byte| *byte == letter));
                arrived += 1;
            });
            let drained = theirs.drain(&mut budget, handle);
            assert_eq!(drained, Ok(false));
        }
    }
    assert!(!ours.may_continue() && carried.len() > 6_000_000);
    // Eight equal letters in a row would come once in 10^12 bytes.
    let is_shown = |window: &[u8]| window[0].is_ascii_lowercase() && window.iter().all(|byte| *byte == window[0]);
    assert!(!carried.windows(8).any(is_shown));
    // The end of one side is that of the other.
    drop(ours);
    middle.shut_down();
    between.shut_down();
    assert_eq!(theirs.drain(&mut usize::MAX.clone(), Each::new(|_, _| {})), Err(Ended::Closed));
}

/// The bytes that the opener of a handshake sends, and those that the acceptor sends.
fn recorded() -> [Vec<u8>; 2] {
    let ([ours, middle], [between, theirs]) = (Tcp::pair(), Tcp::pair());
    thread::scope(|scope| {
        let sides = [
            scope.spawn(move || open(&ours, [1; SEED], soon()).map(|_| ours.shut_down())),
            scope.spawn(move || accept(&theirs, [1; SEED], soon()).map(|_| theirs.shut_down())),
        ];
        let back = scope.spawn(|| carry(&between, &middle));
        let carried = [carry(&middle, &between), back.join().unwrap()];
        sides.into_iter().for_each(|side| side.join().unwrap().unwrap());
        carried
    })
}

#[test]
fn a_recorded_handshake_is_no_handshake_even_with_the_seed_it_had() {
    if !can_encrypt() {
        return;
    }
    let [opener, acceptor] = recorded();
    let [ours, theirs] = Tcp::pair();
    ours.write_all(&opener, soon()).unwrap();
    assert!(accept(&theirs, [1; SEED], soon()).is_err());
    let [ours, theirs] = Tcp::pair();
    theirs.write_all(&acceptor, soon()).unwrap();
    assert!(open(&ours, [1; SEED], soon()).is_err());
}

#[test]
fn a_side_that_falls_silent_or_hangs_up_at_any_byte_ends_the_handshake() {
    if !can_encrypt() {
        return;
    }
    let [opener, acceptor] = recorded();
    for cut in (0..opener.len().min(acceptor.len())).step_by(7) {
        let [ours, theirs] = Tcp::pair();
        ours.write_all(&opener[..cut], soon()).unwrap();
        if cut % 3 == 0 {
            let deadline = Instant::now() + Duration::from_millis(5);
            let silent = accept(&theirs, [1; SEED], deadline).unwrap_err();
            assert!(matches!(silent, TlsError::System(os::Error { errno: Errno::ETIMEDOUT, .. })), "{silent}");
        }
        let [ours, theirs] = Tcp::pair();
        ours.write_all(&opener[..cut], soon()).unwrap();
        ours.shut_down();
        assert!(accept(&theirs, [1; SEED], soon()).is_err());
        let [ours, theirs] = Tcp::pair();
        theirs.write_all(&acceptor[..cut], soon()).unwrap();
        theirs.shut_down();
        assert!(open(&ours, [1; SEED], soon()).is_err());
    }
}

#[test]
fn the_variable_says_on_or_off() {
    assert_eq!(Protection::parse("on"), Some(Protection::Tls));
    assert_eq!(Protection::parse("OFF"), Some(Protection::None));
    for value in ["", "yes", "1", "on "] {
        assert_eq!(Protection::parse(value), None, "{value}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_are_records_or_the_end(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        is_near in any::<bool>(),
        cut in 0_usize..2000,
    ) {
        if !can_encrypt() {
            return Ok(());
        }
        let mut bytes = bytes;
        if is_near && bytes.len() >= 5 {
            bytes[..4].copy_from_slice(&[23, 3, 3, 0]);
        }
        let mut sides = Sides::new();
        let cut = cut.min(bytes.len());
        for part in [&bytes[..cut], &bytes[cut..]] {
            let (opened, ended) = sides.open(part);
            prop_assert!(opened.is_empty());
            prop_assert!(matches!(ended.errno, Errno::EAGAIN | Errno::EBADMSG));
        }
    }

    #[test]
    fn any_bytes_are_no_handshake(bytes in proptest::collection::vec(any::<u8>(), 0..600), is_near in any::<bool>()) {
        if !can_encrypt() {
            return Ok(());
        }
        let mut bytes = bytes;
        if is_near && bytes.len() >= 6 {
            bytes[..4].copy_from_slice(&[22, 3, 3, 0]);
            bytes[5] = 1 + bytes[5] % 2;
        }
        for is_opener in [true, false] {
            let [ours, theirs] = Tcp::pair();
            theirs.write_all(&bytes, soon()).unwrap();
            let side = if is_opener { open } else { accept };
            let ended = thread::scope(|scope| {
                let ended = scope.spawn(|| side(&ours, [1; SEED], soon()).map(drop));
                theirs.shut_down();
                ended.join().unwrap()
            });
            prop_assert!(ended.is_err());
        }
    }
}
