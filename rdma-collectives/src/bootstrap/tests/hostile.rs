//! Ranks and strangers that break the protocol of the bootstrap. None makes rank 0's memory grow or
//! keeps it waiting, and a rank that does so is named.

use std::io::{Read, Write};

use super::super::frame::{Loss, Routed, max_length};
use super::super::journal::{Entry, MOST_ENTRIES, News, Report};
use super::super::json::Json;
use super::super::meet::Until;
use super::*;
use crate::numbers::Numbers;

fn value(value: serde_json::Value) -> Json {
    Json::of(&value).unwrap()
}

fn part(name: &str) -> Frame {
    Frame::Part(name.into(), value(json!(null)))
}

fn within(group: GroupId, from: usize, to: Vec<usize>) -> Frame {
    Frame::Within(Routed { group, from, to, content: Content::Part("x".into(), value(json!(7))) })
}

fn bytes(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.write(&mut bytes, max_length(2)).unwrap();
    bytes
}

/// A frame with these contents.
fn raw(contents: &[u8]) -> Vec<u8> {
    [&u32::try_from(contents.len()).unwrap().to_be_bytes()[..], contents].concat()
}

/// What rank 0 of two learns, which reads no frames, when rank 1 sends these bytes once the job has
/// begun.
fn after_welcome(sent: &[u8]) -> String {
    while_zero(sent, |group| {
        let watch = group.watch();
        loop {
            if let Err(failure) = watch.check() {
                return failure.to_string();
            }
            thread::sleep(Duration::from_millis(1));
        }
    })
}

/// The result of `body` at rank 0 of two, when rank 1 sends these bytes once the job has begun.
fn while_zero<T: Send + 'static>(sent: &[u8], body: impl FnOnce(Group) -> T + Send + 'static) -> T {
    let (listener, address) = listener();
    let zero = zero(listener, SOON, body);
    let mut stream = one(&address);
    assert!(matches!(answer(&mut stream), Frame::Welcome(_)));
    // Rank 0 may close the connection before it has taken all.
    drop(stream.write_all(sent));
    let result = zero.join().unwrap().unwrap();
    drop(stream);
    result
}

#[test]
fn a_rank_whose_frames_are_not_due_is_named() {
    let whole = GroupId::default();
    let cases = [
        ("a group that no split makes", bytes(&within(whole.part(7), 1, vec![0]))),
        ("a part of a part that does not exist", bytes(&within(whole.part(0).part(0), 1, vec![0]))),
        (
            "a part of a part that rank 0 has not opened",
            [whole.part(0), whole.part(0).part(0)].map(|group| bytes(&within(group, 1, vec![0]))).concat(),
        ),
        ("a second early part", bytes(&within(whole.part(0), 1, vec![0])).repeat(2)),
        ("another rank's number", bytes(&within(whole.part(0), 0, vec![0]))),
        ("more recipients than ranks", bytes(&within(whole.part(0), 1, vec![0; 5000]))),
        ("two parts of one gathering", bytes(&part("the show")).repeat(2)),
        ("an introduction", bytes(&Frame::Hello(hello()))),
        ("a welcome", bytes(&Frame::Welcome(Vec::new()))),
        ("a refusal", bytes(&Frame::Refuse(None, Loss::new("no", Cause::Other)))),
        ("the loss of rank 0", bytes(&Frame::Lost(0, Loss::new("has left", Cause::Other)))),
        ("the loss of no rank", bytes(&Frame::Lost(usize::MAX, Loss::new("has left", Cause::Other)))),
        ("a frame longer than the job allows", vec![u8::MAX; 4]),
        ("brackets without end", raw(&[b'['; 100_000])),
        ("no frame", raw(br#"{"Part":["the show"]}"#)),
        ("no text", raw(b"\"\xff\xfe\"")),
        ("nothing", raw(b"")),
    ];
    for (case, sent) in cases {
        let said = after_welcome(&sent);
        assert!(said.starts_with("rank 1 has sent a message that is not due"), "{case}: {said}");
    }
}

/// At rank 2 of three, which has a connection to rank 0 alone.
#[test]
fn a_rank_that_writes_to_groups_of_the_future_is_named_at_other_ranks_too() {
    let router = Router::new(2, 3, Vec::new(), SOON);
    let (whole, sent) = (GroupId::default(), |group| router.take(0, within(group, 1, vec![2])));
    let _inbox = router.open(&whole, &[0, 1, 2]);
    assert_eq!(sent(whole.part(0)), Ok(()));
    assert_eq!(sent(whole.part(0).part(0)), Err(NotDue(1)));
    // Once this rank has made the part, the other may be in the next one.
    let _part = router.open(&whole.part(0), &[1, 2]);
    assert_eq!(sent(whole.part(0).part(0)), Ok(()));
    assert_eq!(sent(whole.part(0).part(0).part(0)), Err(NotDue(1)));
    // What follows the end of the part is dropped (`nothing_is_kept_of_parts_that_have_ended`).
    router.close(&whole.part(0));
    assert_eq!(sent(whole.part(0).part(0).part(0)), Ok(()));
    assert_eq!(sent(whole.part(1).part(0)), Err(NotDue(1)));
}

/// News of operations are not kept, unless this rank has the communicator.
#[test]
fn a_rank_that_tells_nonsense_of_operations_is_named() {
    let whole = GroupId::default();
    let news = |from, content| Frame::Compare(Routed { group: whole.part(0), from, to: vec![0], content });
    let entry = Entry { number: 1, hash: 1, signature: [1; 3] };
    let report = |entries| News::Report(Report { last: 1, entries: vec![entry; entries] });
    let mismatch: News = serde_json::from_value(json!({ "Mismatch": {
        "number": 1, "ranks": [0, usize::MAX], "signatures": [[1, 2, 3], [4, 5, 6]], "equal_up_to": 0,
    }}))
    .unwrap();
    for (content, is_due) in [(report(MOST_ENTRIES), true), (report(MOST_ENTRIES + 1), false), (mismatch, false)] {
        let (frame, other) = (news(1, content.clone()), news(0, content));
        // Rank 0 of two, which makes a part of both, and knows of no communicator before.
        let said = while_zero(&[bytes(&frame), bytes(&part("the colors of a split"))].concat(), move |mut group| {
            let router = Arc::clone(&group.router);
            assert_eq!(router.take(1, frame.clone()), Ok(()));
            let members = vec![0, 1];
            let part = Group {
                maker: group.maker,
                rank: 0,
                members: members.clone(),
                id: GroupId::default().part(0),
                splits: 0,
                hosts: group.hosts.clone(),
                address: None,
                is_private: false,
                terms: group.terms.clone(),
                inbox: router.open(&GroupId::default().part(0), &members),
                router: Arc::clone(&router),
                watch: group.watch.of_part(),
                limit: None,
                _heartbeat: None,
            };
            let _recorder = part.recorder(|_| [String::new(), String::new()], |signature| signature);
            assert_eq!(router.take(1, frame), if is_due { Ok(()) } else { Err(NotDue(1)) });
            assert_eq!(router.take(1, other), Err(NotDue(1)));
            drop(part);
            group.barrier("the show").unwrap_err().to_string()
        });
        assert!(!said.is_empty());
    }
}

#[test]
fn what_a_rank_has_waiting_is_bounded_over_all_groups() {
    let router = Router::new(0, 2, Vec::new(), SOON);
    let whole = GroupId::default();
    let groups: Vec<_> = (0..8).map(|split| whole.part(split)).collect();
    let _inboxes = [&whole].into_iter().chain(&groups).map(|id| router.open(id, &[0, 1])).collect::<Vec<_>>();
    let long = || {
        let text = "x".repeat(max_length(2) - 1000);
        Frame::Part(text, value(json!(null)))
    };
    let send = |group: &GroupId| {
        let Frame::Part(what, json) = long() else { unreachable!() };
        let content = Content::Part(what, json);
        router.take(1, Frame::Within(Routed { group: group.clone(), from: 1, to: vec![0], content }))
    };
    assert_eq!((send(&groups[0]), send(&groups[1])), (Ok(()), Ok(())));
    assert_eq!(send(&groups[2]), Err(NotDue(1)));
    assert_eq!(router.take(1, long()), Err(NotDue(1)));
    // A frame counts no more once it has been read, or once its inbox has ended.
    router.has_read(&groups[0], 1);
    assert_eq!(send(&groups[2]), Ok(()));
    router.close(&groups[1]);
    assert_eq!(router.take(1, long()), Ok(()));
    assert_eq!(send(&groups[3]), Err(NotDue(1)));
}

#[test]
fn a_value_of_another_type_is_named() {
    let nested = format!(r#"{{"Part":["the show",[{}[]]]}}"#, "[],".repeat(100_000));
    let gather = |mut group: Group| group.wait_for_work("the show").unwrap_err().to_string();
    assert_eq!(
        while_zero(&raw(nested.as_bytes()), gather),
        "rank 1 did something else than rank 0; are all the same build?"
    );
}

#[test]
fn a_whole_is_taken_from_the_root_alone() {
    let results = ranks(3, |mut group| {
        let mut part = group.split(0, 0).unwrap();
        if group.rank() == 1 {
            let whole = Content::Whole(value(json!([null, null, null])));
            part.router.send_within(&part.id, vec![2], whole).unwrap();
        }
        let result =
            if group.rank() == 2 { part.barrier("a test").map_err(|failure| failure.to_string()) } else { Ok(()) };
        drop(group.conclude(result.clone().map_err(Error::new)));
        result
    });
    let expected = "rank 1 did something else than rank 2; are all the same build?";
    assert_eq!(results[2], Err(expected.to_owned()));
}

#[test]
fn the_text_of_a_failure_is_one_short_line() {
    let text = format!("is \u{1b}[31mlost\r\n{}", "x".repeat(1 << 20));
    // Not as `Frame::Lost`, which holds such a line already.
    let loss = json!({ "what": text, "cause": "Other" });
    let said = after_welcome(&raw(json!({ "Lost": [1, loss] }).to_string().as_bytes()));
    assert!(said.starts_with("rank 1 is \\u{1b}[31mlost\\r\\nxxx") && said.len() < 1200, "{}", said.len());
}

#[test]
fn settings_are_told_in_one_short_line() {
    let mut settings = hello().settings;
    settings.insert("size".into(), json!(format!("\u{1b}[2J{}", "x".repeat(8000))));
    let (root, answer) = rank_zero_meets(|stream| introduce(stream, Hello { settings, ..hello() }));
    assert!(root.starts_with("--size is 4K at rank 0 and \\u{1b}[2Jxxx") && root.len() < 1200, "{}", root.len());
    assert_eq!(root, answer);
}

/// Whatever strangers send, the ranks of the job meet.
#[test]
fn strangers_of_any_kind_do_not_end_a_meeting() {
    let (listener, address) = listener();
    let zero = zero(listener, 3 * SOON, |group| group.conclude(Ok(())));
    let mut numbers = Numbers::of(1);
    let mut good = Vec::new();
    Head::of(JOB).write(&mut good).unwrap();
    let head = good.len();
    good.extend(bytes(&Frame::Hello(hello())));
    for round in 0..150 {
        let mut sent = good.clone();
        match round % 3 {
            0 => sent.iter_mut().for_each(|byte| *byte = numbers.next().to_be_bytes()[0]),
            // Another magic, version or job; the version alone is not changed.
            1 => sent[12 + numbers.below(8)] ^= 1 << numbers.below(8),
            // A part of an introduction, or a length that is none.
            _ if numbers.below(2) == 0 => sent.truncate(numbers.below(sent.len())),
            _ => sent[head] = u8::MAX,
        }
        let mut stranger = TcpStream::connect(&address).unwrap();
        drop(stranger.write_all(&sent));
    }
    let place = Place { rank: 1, ranks: 2, root: Root::Address(address), job: JOB };
    Group::meet(place, &terms(3 * SOON)).unwrap().conclude(Ok(())).unwrap();
    zero.join().unwrap().unwrap().unwrap();
}

/// Frames with some bytes changed: rank 0 understands them or names rank 1, and never waits for it
/// once it has ended.
#[test]
fn frames_with_changed_bytes_do_not_keep_rank_0_waiting() {
    let mut numbers = Numbers::of(2);
    let good = [bytes(&part("the show")), bytes(&within(GroupId::default().part(0), 1, vec![0]))].concat();
    for _ in 0..60 {
        let mut sent = good.clone();
        for _ in 0..=numbers.below(4) {
            let at = numbers.below(sent.len());
            sent[at] = numbers.next().to_be_bytes()[0];
        }
        let (listener, address) = listener();
        let zero = zero(listener, SOON, |mut group| group.wait_for_work("the show"));
        let mut stream = one(&address);
        answer(&mut stream);
        drop(stream.write_all(&sent));
        drop(stream);
        if let Err(failure) = zero.join().unwrap().unwrap() {
            assert!(failure.to_string().starts_with("rank 1 "), "{failure}");
        }
    }
}

/// A rank that reads slowly does not keep the others' threads for longer than a limit.
#[test]
fn a_slow_reader_does_not_hold_a_writer() {
    let (listener, address) = listener();
    let mut reader = TcpStream::connect(address).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_send_buffer_size(1).unwrap();
    let (end, ended) = channel::<()>();
    let reading = thread::spawn(move || {
        // At this pace the reader would need hours for all.
        while ended.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
            drop(reader.read(&mut [0; 1024]));
        }
    });
    let long = Frame::Part("x".repeat(20 << 20), value(json!(null)));
    let error = long.write(&mut Until(&stream, Instant::now() + Duration::from_millis(300)), usize::MAX).unwrap_err();
    assert!(is_timeout(&error), "{error}");
    drop((end, stream));
    reading.join().unwrap();
}
