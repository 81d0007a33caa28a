//! A peer that breaks one field at a time, random bytes, and a corpus of messages.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use proptest::prelude::*;

use super::pair::agreed;
use super::wire::{Flags, Kind};
use super::{MAX_OFFERS, Protocol, Received, Violation};

const FIRST: Flags = Flags::FIRST;
const LAST: Flags = Flags::LAST;
const WHOLE: Flags = Flags::FIRST.union(Flags::LAST);
const END: Flags = WHOLE.union(Flags::FIN);
const NONE: Flags = Flags::empty();
/// Data receives of each side.
const WINDOW: u32 = 4;

/// A message with the limit of a peer that has replaced nothing.
fn message(kind: Kind, flags: Flags, rest: u32, payload: &[u8]) -> Vec<u8> {
    let has_payload = !payload.is_empty();
    let header = super::Header { kind, flags, has_payload, limit: WINDOW, rest, stream: 0 };
    [&header.to_bytes()[..], payload].concat()
}

/// The message with another value in one byte.
fn with_byte(mut message: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    message[at] = value;
    message
}

fn data() -> Vec<u8> {
    message(Kind::Data, WHOLE, 0, b"hello")
}

fn offer(id: u32, len: u64) -> Vec<u8> {
    message(Kind::Offer, NONE, id, &rdma::RemoteSlice::new(64, len, 7).to_bytes())
}

fn offer_at(address: u64, len: u64) -> Vec<u8> {
    message(Kind::Offer, NONE, 0, &rdma::RemoteSlice::new(address, len, 7).to_bytes())
}

/// Messages of a peer, and the violation of the last one, if it has one.
struct Case {
    name: &'static str,
    messages: Vec<Vec<u8>>,
    violation: Option<Violation>,
}

fn good(name: &'static str, messages: Vec<Vec<u8>>) -> Case {
    Case { name, messages, violation: None }
}

fn bad(name: &'static str, violation: Violation, messages: Vec<Vec<u8>>) -> Case {
    Case { name, messages, violation: Some(violation) }
}

fn good_cases() -> Vec<Case> {
    let control = |kind, rest| message(kind, NONE, rest, b"");
    vec![
        good("message", vec![data()]),
        good("empty_message", vec![message(Kind::Data, WHOLE, 0, b"")]),
        good(
            "fragments",
            vec![
                message(Kind::Data, FIRST, 7, b"abc"),
                message(Kind::Data, NONE, 3, b"defg"),
                message(Kind::Data, LAST, 0, b"hij"),
            ],
        ),
        good("control", vec![control(Kind::Update, 0), control(Kind::Ping, 9)]),
        good("end", vec![data(), message(Kind::Data, END, 0, b""), control(Kind::Close, 3)]),
        good("last_message_with_end", vec![message(Kind::Data, END, 0, b"bye")]),
        good("offer", vec![offer(5, 1000)]),
        good("offers_between_messages", vec![data(), offer(9, 1 << 20), data(), offer(u32::MAX, 1)]),
        good("end_with_open_offers", vec![offer(1, 8), offer(0, 8), message(Kind::Data, END, 0, b"")]),
    ]
}

fn bad_headers() -> Vec<Case> {
    use Violation::*;
    vec![
        bad("empty", TooShort, vec![vec![]]),
        bad("cut_header", TooShort, vec![data()[..15].to_vec()]),
        bad("kind", UnknownKind, vec![with_byte(data(), 0, 7)]),
        bad("unknown_flag", WrongFlags, vec![with_byte(data(), 1, 0x13)]),
        bad("flag_of_another_kind", WrongFlags, vec![message(Kind::Ping, FIRST, 0, b"")]),
        bad("start_in_header", WrongStart, vec![with_byte(data(), 3, 8)]),
        bad("start_unaligned", WrongStart, vec![with_byte(data(), 3, 17)]),
        bad("start_past_end", WrongStart, vec![with_byte(data(), 2, 1)]),
        bad("bytes_without_start", WrongPayload, vec![with_byte(data(), 3, 0)]),
        bad("payload_of_control", WrongPayload, vec![message(Kind::Ping, NONE, 0, b"x")]),
        bad("short_offer", WrongPayload, vec![message(Kind::Offer, NONE, 0, b"short")]),
        bad("long_done", WrongPayload, vec![message(Kind::Done, NONE, 0, b"12345")]),
        bad("rest_of_update", Reserved, vec![message(Kind::Update, NONE, 1, b"")]),
        bad("stream_of_ping", Reserved, vec![with_byte(message(Kind::Ping, NONE, 1, b""), 15, 1)]),
    ]
}

fn bad_sequences() -> Vec<Case> {
    use Violation::*;
    let control = |kind, rest| message(kind, NONE, rest, b"");
    vec![
        bad("limit_back", WrongLimit, vec![with_byte(data(), 7, 3)]),
        bad("limit_past_window", WrongLimit, vec![with_byte(data(), 7, 5)]),
        bad("limit_far", WrongLimit, vec![with_byte(data(), 4, 0x80)]),
        bad("no_credit", NoCredit, vec![data(), data(), data(), data(), data()]),
        bad("echo", UnexpectedEcho, vec![message(Kind::Ping, Flags::ECHO, 0, b"")]),
        bad("two_updates", UpdateUnanswered, vec![control(Kind::Update, 0), control(Kind::Update, 0)]),
        bad("two_pings", PingUnanswered, vec![control(Kind::Ping, 1), control(Kind::Ping, 2)]),
        bad("pong", UnexpectedPong, vec![control(Kind::Pong, 0)]),
        bad("not_first", WrongFragment, vec![message(Kind::Data, LAST, 0, b"x")]),
        bad(
            "first_twice",
            WrongFragment,
            vec![message(Kind::Data, FIRST, 2, b"x"), message(Kind::Data, FIRST, 1, b"x")],
        ),
        bad(
            "other_stream",
            WrongFragment,
            vec![message(Kind::Data, FIRST, 1, b"x"), with_byte(message(Kind::Data, LAST, 0, b"x"), 15, 1)],
        ),
        bad("last_with_rest", WrongRest, vec![message(Kind::Data, WHOLE, 1, b"x")]),
        bad("rest_without_last", WrongRest, vec![message(Kind::Data, FIRST, 0, b"x")]),
        bad("empty_fragment", WrongRest, vec![message(Kind::Data, FIRST, 1, b"")]),
        bad("rest_grows", WrongRest, vec![message(Kind::Data, FIRST, 2, b"x"), message(Kind::Data, NONE, 2, b"x")]),
        bad("long_message", TooLong, vec![message(Kind::Data, FIRST, 1 << 20, b"x")]),
        bad("longest_rest", TooLong, vec![message(Kind::Data, FIRST, u32::MAX, b"x")]),
        bad("end_of_a_fragment", WrongFlags, vec![message(Kind::Data, FIRST | Flags::FIN, 1, b"x")]),
        bad("data_after_end", DataAfterEnd, vec![message(Kind::Data, END, 0, b""), data()]),
        bad("offer_after_end", DataAfterEnd, vec![message(Kind::Data, END, 0, b""), offer(0, 1)]),
        bad("ping_after_close", MessageAfterClose, vec![control(Kind::Close, 0), control(Kind::Ping, 0)]),
        bad("close_twice", MessageAfterClose, vec![control(Kind::Close, 0), control(Kind::Close, 0)]),
        bad("long_offer", TooLong, vec![offer(0, (1 << 20) + 1)]),
        bad("offer_in_a_message", WrongFragment, vec![message(Kind::Data, FIRST, 2, b"x"), offer(0, 1)]),
        bad("empty_offer", WrongOffer, vec![offer(0, 0)]),
        bad("offer_past_the_address_space", WrongOffer, vec![offer_at(u64::MAX, 2)]),
        bad("done_of_another_offer", UnexpectedDone, vec![offer(3, 1), message(Kind::Done, NONE, 3, &[0; 4])]),
        bad("offer_twice", WrongOffer, vec![offer(3, 1), offer(3, 1)]),
        bad("done", UnexpectedDone, vec![message(Kind::Done, NONE, 0, &[0; 4])]),
    ]
}

fn protocol() -> Protocol {
    Protocol::new(agreed(WINDOW), 16, Instant::now())
}

/// The result of the last of the messages; the ones before it must be fine.
fn replay<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Option<Violation> {
    let mut protocol = protocol();
    let now = Instant::now();
    let mut violation = None;
    for message in messages {
        assert_eq!(violation, None, "an earlier message");
        violation = protocol.handle_message(message, now).err();
    }
    violation
}

#[test]
fn each_broken_field_has_its_violation() {
    for case in good_cases().iter().chain(&bad_headers()).chain(&bad_sequences()) {
        let found = replay(case.messages.iter().map(Vec::as_slice));
        assert_eq!(found, case.violation, "{}", case.name);
    }
}

#[test]
fn offers_are_bounded_and_answered_once() {
    let mut protocol = protocol();
    let now = Instant::now();
    let limit = u32::try_from(MAX_OFFERS).unwrap();
    for id in 0..=limit {
        let found = protocol.handle_message(&offer(id, 1), now);
        assert_eq!(found.is_ok(), id < limit, "offer {id}: {found:?}");
        if found.is_ok() {
            // The replaced receive must be told to the peer, or its credits end.
            protocol.receive_posted();
            protocol.credit.grant_silently();
        }
    }
    assert!(protocol.done(3).is_some());
    assert!(protocol.done(3).is_none(), "answered already");
    assert!(protocol.done(limit + 1).is_none(), "never offered");
}

#[test]
fn notifications_need_credits_and_an_agreement_and_no_close() {
    let now = Instant::now();
    // More than the window.
    let mut one = protocol();
    for number in 0..=WINDOW {
        let expected = if number < WINDOW { Ok(()) } else { Err(Violation::NoCredit) };
        assert_eq!(one.handle_notification(now), expected, "notification {number}");
    }
    // Not agreed, although credits are there.
    let agreed = super::Agreed { takes_notifications: false, ..agreed(WINDOW) };
    let mut one = Protocol::new(agreed, 16, now);
    assert_eq!(one.handle_notification(now), Err(Violation::UnexpectedNotification));
    // After FIN they may come, after CLOSE nothing may.
    let mut one = protocol();
    one.handle_message(&message(Kind::Data, END, 0, b""), now).unwrap();
    assert_eq!(one.handle_notification(now), Ok(()));
    one.handle_message(&message(Kind::Close, NONE, 0, b""), now).unwrap();
    assert_eq!(one.handle_notification(now), Err(Violation::MessageAfterClose));
    // A credit that is used and not granted again stays used, also for messages.
    let mut one = protocol();
    for _ in 0..WINDOW {
        one.handle_notification(now).unwrap();
        one.receive_posted();
    }
    assert_eq!(one.handle_message(&data(), now), Err(Violation::NoCredit));
}

#[test]
fn offers_that_were_not_agreed_are_refused() {
    let agreed = super::Agreed { offers: false, ..agreed(WINDOW) };
    let now = Instant::now();
    let found = Protocol::new(agreed, 16, now).handle_message(&offer(0, 1), now);
    assert_eq!(found, Err(Violation::WrongOffer));
}

#[test]
fn a_close_waits_for_the_offers_of_both_ends() {
    let mut protocol = protocol();
    let now = Instant::now();
    let (_, id) = protocol.offer().unwrap();
    protocol.handle_message(&offer(7, 1), now).unwrap();
    protocol.handle_message(&message(Kind::Data, END, 0, b""), now).unwrap();
    protocol.close(0);
    while protocol.poll_transmit(now).is_some() {}
    assert!(!protocol.close_sent, "two offers are open");
    protocol.done(7).unwrap();
    assert!(protocol.poll_transmit(now).is_none(), "one offer is open");
    protocol.handle_message(&message(Kind::Done, NONE, id, &[0; 4]), now).unwrap();
    while protocol.poll_transmit(now).is_some() {}
    assert!(protocol.close_sent);
}

#[test]
fn an_answered_offer_is_forgotten() {
    let mut protocol = protocol();
    let (_, id) = protocol.offer().unwrap();
    let done = message(Kind::Done, NONE, id, &[0, 0, 0, 9]);
    // The peer must not take back the credit that the offer used.
    assert_eq!(protocol.handle_message(&done, Instant::now()), Ok(Received::Done { id, status: 9 }));
    assert_eq!(protocol.handle_message(&done, Instant::now()), Err(Violation::UnexpectedDone));
}

#[test]
fn the_number_of_an_offer_that_stays_open_is_not_used_again() {
    let mut protocol = protocol();
    assert_eq!(protocol.offer().unwrap().1, 0);
    // After 2^32 offers.
    protocol.next_offer = 0;
    assert_eq!(protocol.offer().unwrap().1, 1);
    assert_eq!(protocol.sent_offers.len(), 2);
}

/// A file of the corpus: each message after its length in two bytes.
fn to_file(messages: &[Vec<u8>]) -> Vec<u8> {
    let prefixed = |message: &Vec<u8>| [&u16::try_from(message.len()).unwrap().to_be_bytes(), &message[..]].concat();
    messages.iter().flat_map(prefixed).collect()
}

/// The messages of a file; a cut file ends with a cut message.
fn from_file(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<2>() {
        let (message, rest) = rest.split_at(usize::from(u16::from_be_bytes(*len)).min(rest.len()));
        messages.push(message);
        bytes = rest;
    }
    messages
}

/// The files of the corpus: messages of an honest peer (`accepted`), messages of which the last
/// breaks a rule (`refused`).
fn corpus(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocol/corpus").join(folder)
}

#[test]
fn the_corpus_is_accepted_and_refused_as_it_says() {
    for (folder, is_refused) in [("accepted", false), ("refused", true)] {
        let mut files = 0;
        for entry in fs::read_dir(corpus(folder)).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            assert_eq!(replay(from_file(&bytes)).is_some(), is_refused, "{}", path.display());
            files += 1;
        }
        assert!(files > 0, "{folder} has no files");
    }
}

#[test]
#[ignore = "writes the corpus of the cases above"]
fn write_the_corpus() {
    for case in good_cases().iter().chain(&bad_headers()).chain(&bad_sequences()) {
        let folder = corpus(if case.violation.is_some() { "refused" } else { "accepted" });
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(case.name), to_file(&case.messages)).unwrap();
    }
}

/// Bytes that often form a header.
fn almost_a_message() -> impl Strategy<Value = Vec<u8>> {
    let small = || prop_oneof![4 => 0_u8..10, 1 => any::<u8>()];
    let header = prop::collection::vec(small(), 16).prop_map(|mut bytes| {
        if bytes[0] % 2 == 0 {
            (bytes[2], bytes[3]) = (0, 16);
            (bytes[4], bytes[5], bytes[6], bytes[7]) = (0, 0, 0, 4);
        }
        bytes
    });
    (header, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(header, payload)| [header, payload].concat())
}

proptest! {
    #[test]
    fn no_bytes_of_a_peer_make_it_panic(messages in prop::collection::vec(almost_a_message(), 1..20)) {
        let mut protocol = protocol();
        let now = Instant::now();
        for message in &messages {
            let Ok(received) = protocol.handle_message(message, now) else { break };
            if let Received::Data(fragment) = &received {
                prop_assert!(fragment.payload.end <= message.len());
            }
            if !received.is_control() {
                protocol.receive_posted();
            }
            while protocol.poll_transmit(now).is_some() {
                protocol.send_completed();
            }
        }
    }
}
