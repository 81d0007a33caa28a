use std::io::Write;
use std::iter;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use super::frame::{Frame, Head, Hello, MAX_HELLO, VERSION};
use super::*;
use crate::testing::LONG;

mod hostile;
mod rendezvous;

const SOON: Duration = Duration::from_secs(10);
/// The number of the job.
const JOB: u64 = 5;

fn terms(timeout: Duration) -> Terms {
    Terms::new("test", &json!({ "size": "4K" }), Roles::Ranks, timeout).options()
}

fn listener() -> (Socket, String) {
    let listener = listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap().to_string();
    (listener, address)
}

/// The introduction of rank 1 of two.
fn hello() -> Hello {
    let settings = terms(SOON).settings;
    Hello { rank: 1, world: 2, host: HostId::own(), program: "test".into(), settings }
}

/// Runs rank 0 of two in a thread, which returns the result of `body`.
fn zero<T: Send + 'static>(
    listener: Socket,
    timeout: Duration,
    body: impl FnOnce(Group) -> T + Send + 'static,
) -> thread::JoinHandle<Result<T, Error>> {
    let place = Place { rank: 0, ranks: 2, root: Root::Listener(listener), job: JOB };
    thread::spawn(move || Group::meet(place, &terms(timeout)).map(body))
}

/// Plays rank 1 of two up to its introduction, over a plain socket.
fn one(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    introduce(&mut stream, hello());
    stream
}

fn introduce(stream: &mut TcpStream, hello: Hello) {
    Head::of(JOB).write(stream).unwrap();
    put(stream, &Frame::Hello(hello));
}

fn put(stream: &mut TcpStream, frame: &Frame) {
    frame.write(stream, MAX_HELLO).unwrap();
}

/// Reads rank 0's answer to an introduction.
fn answer(stream: &mut TcpStream) -> Frame {
    Head::read(stream).unwrap().unwrap();
    Frame::read(stream, MAX_HELLO).unwrap()
}

/// Runs `body` in `world` ranks, each in a thread.
fn ranks<T: Send + 'static>(world: usize, body: impl Fn(Group) -> T + Clone + Send + 'static) -> Vec<T> {
    let (listener, address) = listener();
    let mut listener = Some(listener);
    let threads: Vec<_> = (0..world)
        .map(|rank| {
            let root = listener.take().map_or_else(|| Root::Address(address.clone()), Root::Listener);
            let body = body.clone();
            thread::spawn(move || {
                body(Group::meet(Place { rank, ranks: world, root, job: JOB }, &terms(SOON)).unwrap())
            })
        })
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

#[test]
fn gathers_in_the_order_of_ranks() {
    let results = ranks(4, |mut group| {
        for _ in 0..20 {
            group.barrier("a test").unwrap();
        }
        let all = group.all_gather("a test", &vec![group.rank(); 3]).unwrap();
        group.conclude(Ok(all)).unwrap()
    });
    let expected: Vec<Vec<usize>> = (0..4).map(|r| vec![r; 3]).collect();
    assert!(results.iter().all(|r| *r == expected));
}

#[test]
fn one_rank_needs_nobody() {
    let results = ranks(1, |mut group| group.all_gather("a test", &7).unwrap());
    assert_eq!(results, [vec![7]]);
}

#[test]
fn a_death_reaches_everybody() {
    let results = ranks(4, |mut group| {
        if group.rank() == 2 {
            return String::new();
        }
        let error = group.barrier("a test").unwrap_err();
        assert_eq!((error.kind(), error.cause(), error.rank()), (ErrorKind::Peer, &Cause::Ended, Some(2)));
        assert!(group.watch().check().is_err());
        error.to_string()
    });
    for (rank, text) in results.iter().enumerate().filter(|(rank, _)| *rank != 2) {
        assert!(text.contains("rank 2"), "rank {rank} was told {text:?}");
    }
}

#[test]
fn a_failure_is_told_with_its_reason() {
    let results = ranks(3, |mut group| {
        if group.rank() == 1 {
            return group.conclude::<()>(Err(Error::new("no more paper"))).unwrap_err().to_string();
        }
        let result = group.barrier("a test");
        group.conclude(result).unwrap_err().to_string()
    });
    assert_eq!(results, ["rank 1 failed: no more paper", "no more paper", "rank 1 failed: no more paper"]);
}

#[test]
fn agreement_fails_with_the_first_that_failed() {
    let results = ranks(3, |mut group| {
        let mine = if group.rank() == 0 { Ok(()) } else { Err(Error::new("no device")) };
        group.agree("a test", mine).unwrap_err()
    });
    let said: Vec<_> = results.iter().map(|failure| (failure.kind(), failure.to_string())).collect();
    assert_eq!(said[0], (ErrorKind::Peer, "rank 1: no device".to_owned()));
    assert_eq!(said[1], (ErrorKind::Failed, "no device".to_owned()));
    assert_eq!(said[2].0, ErrorKind::Peer);
}

/// Rank 0 may leave as soon as it knows, and before it has told the others.
#[test]
fn the_news_of_a_death_comes_before_the_end_that_follows_from_it() {
    let ways: [fn(Group); 2] = [|group| drop(group.conclude::<()>(Err(Error::peer("told")))), drop];
    for leave in ways {
        let (listener, address) = listener();
        let introduced = |rank| {
            let mut stream = TcpStream::connect(&address).unwrap();
            introduce(&mut stream, Hello { rank, world: 3, ..hello() });
            stream
        };
        let (one, mut two) = (introduced(1), introduced(2));
        let place = Place { rank: 0, ranks: 3, root: Root::Listener(listener), job: JOB };
        let group = Group::meet(place, &terms(SOON)).unwrap();
        let (router, watch) = (Arc::clone(&group.router), group.watch());
        let gate = router.gate.lock().unwrap();
        drop(one);
        while watch.check().is_ok() {
            thread::yield_now();
        }
        let leaving = thread::spawn(move || leave(group));
        // Time to leave before the news.
        thread::sleep(Duration::from_millis(50));
        drop(gate);
        assert!(matches!(answer(&mut two), Frame::Welcome(_)));
        let mut frames = iter::repeat_with(|| Frame::read(&mut two, MAX_HELLO).unwrap());
        let told = frames.find(|frame| *frame != Frame::Alive);
        assert!(matches!(told, Some(Frame::Lost(1, _))), "{told:?}");
        leaving.join().unwrap();
    }
}

/// The ranks that are told have the cause as the rank that failed has it.
#[test]
fn a_cause_travels_to_every_rank() {
    let refused = rdma::Error::from_errno(rdma::Verb::CreateQp, nix::errno::Errno::EPERM as i32);
    let flushed = rdma::WcError::new(rdma::WcStatus::RETRY_EXC_ERR, 129);
    let failures: [fn(rdma::Error, rdma::WcError) -> Error; 5] = [
        |refused, _| refused.into(),
        |_, flushed| Error::of_request("a write to rank 2", flushed),
        |_, _| Error::out_of_memory("no room for a hat"),
        |_, _| Error::invalid("no hat"),
        |_, _| io::Error::from_raw_os_error(nix::errno::Errno::ENOSPC as i32).into(),
    ];
    for failure in failures {
        let own = failure(refused, flushed);
        for at_once in [true, false] {
            let results = ranks(3, move |mut group| {
                let result = if group.rank() == 1 { Err(failure(refused, flushed)) } else { Ok(()) };
                // All ranks learn of it together, or at the end of the job.
                let result = match at_once {
                    true => group.agree("a test", result),
                    false => result.and_then(|()| group.barrier("a test")),
                };
                group.conclude(result).unwrap_err()
            });
            for (rank, error) in results.iter().enumerate() {
                assert_eq!(error.cause(), own.cause(), "{error}");
                let kind = if rank == 1 { own.kind() } else { ErrorKind::Peer };
                assert_eq!((error.kind(), error.rank()), (kind, (rank != 1).then_some(1)), "{error}");
                assert_eq!(
                    std::error::Error::source(error).is_some(),
                    rank == 1 && own.cause() != &Cause::InvalidInput && own.cause() != &Cause::OutOfMemory
                );
            }
        }
    }
}

/// A rank that leaves because another has failed may be noticed before the failed one.
#[test]
fn who_leaves_first_is_not_why() {
    let (listener, address) = listener();
    let zero = zero(listener, SOON, |group| {
        group.watch.fail(Error::peer("rank 7 failed: no more paper"));
        group.receive(1, "a test", None).unwrap_err().to_string()
    });
    let mut stream = one(&address);
    put(&mut stream, &Frame::Bye);
    assert_eq!(zero.join().unwrap().unwrap(), "rank 7 failed: no more paper");
}

/// Silence comes from a rank that is stopped, whose host has lost power, or that died and left its
/// socket open in a child process.
#[test]
fn a_silent_rank_is_given_up_and_named() {
    let (listener, address) = listener();
    let begun = Instant::now();
    let zero = zero(listener, Duration::from_secs(2), |mut group| group.barrier("the show").unwrap_err());
    let stream = one(&address);
    let error = zero.join().unwrap().unwrap();
    assert_eq!((error.cause(), error.rank()), (&Cause::Silent, Some(1)));
    let text = error.to_string();
    assert!(text.starts_with("rank 1 has been silent for ") && text.ends_with("(waiting for the show)"), "{text}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    drop(stream);
}

/// A gathering that has ended is not what this rank waits for.
#[test]
fn a_rank_that_is_silent_between_gatherings_is_not_waited_for() {
    let (listener, address) = listener();
    let zero = zero(listener, Duration::from_secs(2), |mut group| {
        group.barrier("the show").unwrap();
        group.news(LONG).unwrap().to_string()
    });
    let mut stream = one(&address);
    put(&mut stream, &Frame::Part("the show".to_owned(), Json::of(&()).unwrap()));
    let text = zero.join().unwrap().unwrap();
    assert!(text.starts_with("rank 1 has been silent for ") && text.ends_with("or its host is gone"), "{text}");
    drop(stream);
}

/// The other ranks detect a silent rank 0, although they have no connections among themselves.
#[test]
fn a_silent_root_is_given_up_and_named() {
    let (listener, address) = listener();
    let place = Place { rank: 1, ranks: 2, root: Root::Address(address), job: JOB };
    let rank = thread::spawn(move || {
        let mut group = Group::meet(place, &terms(Duration::from_secs(2))).unwrap();
        group.barrier("the show").unwrap_err().to_string()
    });
    let (mut stream, _) = listener.accept().unwrap();
    Head::of(JOB).write(&mut stream).unwrap();
    Frame::Welcome(vec![HostId::own(); 2]).write(&mut stream, MAX_HELLO).unwrap();
    let text = rank.join().unwrap();
    assert!(text.starts_with("rank 0 has been silent for ") && text.ends_with("(waiting for the show)"), "{text}");
}

/// A rank can be alive and never come, for example if it is stuck in its driver.
#[test]
fn a_rank_that_does_not_come_is_named() {
    let (listener, address) = listener();
    let is_late = Arc::new(AtomicBool::new(false));
    let zero = zero(listener, Duration::from_secs(3), {
        let is_late = Arc::clone(&is_late);
        move |mut group| {
            let late = group.barrier("the show").unwrap_err().to_string();
            is_late.store(true, Ordering::Relaxed);
            (late, group.wait_for_work("the show"))
        }
    });
    let mut stream = one(&address);
    answer(&mut stream);
    while !is_late.load(Ordering::Relaxed) {
        put(&mut stream, &Frame::Alive);
        thread::sleep(Duration::from_millis(20));
    }
    // A rank that is known to work alone is waited for as long as it is alive.
    put(&mut stream, &Frame::Part("the show".into(), Json::of(&()).unwrap()));
    let (late, worked) = zero.join().unwrap().unwrap();
    assert_eq!(late, "rank 1 is alive, but has not come within 3 s (waiting for the show); --timeout gives it longer");
    worked.unwrap();
}

#[test]
fn ranks_that_do_different_things_are_told() {
    let results = ranks(2, |mut group| {
        let what = if group.rank() == 0 { "one thing" } else { "another" };
        group.barrier(what).unwrap_err().to_string()
    });
    assert!(results[0].contains("rank 1 did something else than rank 0"), "{results:?}");
}

#[test]
fn ranks_of_this_host_need_no_network() {
    let (listener, address) = listen_locally(u64::from(std::process::id()) << 32 | 77).unwrap();
    let zero = zero(listener, SOON, |mut group| group.all_gather("a test", &group.rank()).unwrap());
    let place = Place { rank: 1, ranks: 2, root: Root::Address(address), job: JOB };
    let mut group = Group::meet(place, &terms(SOON)).unwrap();
    assert!(group.is_on_one_machine());
    assert_eq!(group.place_on_machine(), (1, 2));
    assert_eq!(group.all_gather("a test", &1_usize).unwrap(), [0, 1]);
    assert_eq!(zero.join().unwrap().unwrap(), [0, 1]);
}

/// Connects to rank 0 of two and sends `first`; returns the message of rank 0, and its answer on
/// the socket.
fn rank_zero_meets(first: impl FnOnce(&mut TcpStream)) -> (String, String) {
    let (error, answer) = rank_zero_refuses(first);
    (error.to_string(), answer.what.to_string())
}

/// The same with the causes.
fn rank_zero_refuses(first: impl FnOnce(&mut TcpStream)) -> (Error, Loss) {
    let (listener, address) = listener();
    let root = zero(listener, SOON, drop);
    let mut stream = TcpStream::connect(address).unwrap();
    first(&mut stream);
    let answer = match answer(&mut stream) {
        Frame::Refuse(None, why) => why,
        other => panic!("{other:?}"),
    };
    (root.join().unwrap().unwrap_err(), answer)
}

/// Rank 0, the rank that is refused and a rank that has come have the same cause.
#[test]
fn a_refusal_has_a_cause() {
    let other_world = |stream: &mut TcpStream| introduce(stream, Hello { world: 3, ..hello() });
    let other_version = |stream: &mut TcpStream| Head { version: 77, job: JOB }.write(stream).unwrap();
    let refused =
        [(rank_zero_refuses(other_world), Cause::InvalidInput), (rank_zero_refuses(other_version), Cause::Protocol)];
    for ((root, told), cause) in refused {
        assert_eq!((root.cause(), told.cause), (&cause, cause.clone()), "{root}");
    }
    // Rank 1 has come, and rank 2 does not.
    let (listener, address) = listener();
    let limit = Duration::from_secs(2);
    let mut stream = TcpStream::connect(&address).unwrap();
    introduce(&mut stream, Hello { world: 3, ..hello() });
    let place = |rank, root| Place { rank, ranks: 3, root, job: JOB };
    let root = Group::meet(place(0, Root::Listener(listener)), &terms(limit)).unwrap_err();
    assert_eq!((root.cause(), root.rank()), (&Cause::TimedOut { limit }, Some(2)), "{root}");
    let refusal = answer(&mut stream);
    assert_eq!(refusal, Frame::Refuse(Some(2), Loss::new(root.to_string(), root.cause().clone())));
    let (listener, address) = self::listener();
    let one = place(1, Root::Address(address));
    let one = thread::spawn(move || Group::meet(one, &terms(SOON)).unwrap_err());
    let (mut stream, _) = listener.accept().unwrap();
    Head::of(JOB).write(&mut stream).unwrap();
    refusal.write(&mut stream, MAX_HELLO).unwrap();
    let told = one.join().unwrap();
    assert_eq!((told.cause(), told.rank()), (root.cause(), root.rank()), "{told}");
}

#[test]
fn another_version_is_refused() {
    let (root, answer) = rank_zero_meets(|stream| Head { version: 77, job: JOB }.write(stream).unwrap());
    assert!(root.contains("version 77"), "{root}");
    assert_eq!(root, answer);
}

#[test]
fn ranks_that_do_not_fit_are_refused() {
    let good = hello();
    let mut other = good.settings.clone();
    other.insert("size".into(), json!("8K"));
    let cases = [
        (Hello { world: 3, ..good.clone() }, "--world"),
        (Hello { rank: 0, ..good.clone() }, "two of rank 0"),
        (Hello { rank: 2, ..good.clone() }, "no rank 2"),
        (Hello { rank: usize::MAX, ..good.clone() }, "no rank 18446744073709551615"),
        (Hello { program: "other".into(), ..good.clone() }, "same program"),
        (Hello { settings: other, ..good }, "--size is 4K at rank 0 and 8K at rank 1; give all the same options"),
    ];
    for (hello, part) in cases {
        let (root, answer) = rank_zero_meets(|stream| {
            introduce(stream, hello);
        });
        assert!(root.contains(part), "{root}");
        assert_eq!(root, answer);
    }
}

/// If rank 0 heard one connection after another, these would take longer than its timeout.
#[test]
fn silent_strangers_do_not_keep_ranks_waiting() {
    let (listener, address) = listener();
    let silent: Vec<_> = (0..10).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let zero = zero(listener, SOON, drop);
    let place = Place { rank: 1, ranks: 2, root: Root::Address(address), job: JOB };
    let mut group = Group::meet(place, &terms(SOON)).unwrap();
    drop(group.barrier("a test"));
    zero.join().unwrap().unwrap();
    drop(silent);
}

#[test]
fn strangers_are_ignored() {
    let (listener, address) = listener();
    let strangers = {
        let address = address.clone();
        thread::spawn(move || {
            let mut web = TcpStream::connect(&address).unwrap();
            web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            drop(TcpStream::connect(&address).unwrap());
            for version in [VERSION - 1, VERSION, 77] {
                let mut other = TcpStream::connect(&address).unwrap();
                Head { version, job: 6 }.write(&mut other).unwrap();
                assert!(matches!(answer(&mut other), Frame::Refuse(..)));
                // The head of an older version had no job.
                let mut older = TcpStream::connect(&address).unwrap();
                older.write_all(&[&frame::MAGIC[..], &version.to_be_bytes()].concat()).unwrap();
            }
            let place = Place { rank: 1, ranks: 2, root: Root::Address(address.clone()), job: 6 };
            let error = Group::meet(place, &terms(SOON)).unwrap_err().to_string();
            assert!(error.contains("another job"), "{error}");
            let place = Place { rank: 1, ranks: 2, root: Root::Address(address), job: JOB };
            Group::meet(place, &terms(SOON)).unwrap().conclude(Ok(())).unwrap();
        })
    };
    let place = Place { rank: 0, ranks: 2, root: Root::Listener(listener), job: JOB };
    Group::meet(place, &terms(SOON)).unwrap().conclude(Ok(())).unwrap();
    strangers.join().unwrap();
}

#[test]
fn a_rank_that_ends_before_the_job_begins_is_named_to_all() {
    let what = "ended before the job began";
    let (listener, address) = listener();
    let place = Place { rank: 0, ranks: 4, root: Root::Listener(listener), job: JOB };
    let zero = thread::spawn(move || Group::meet(place, &terms(SOON)).unwrap_err());
    let introduced = |rank| {
        let mut stream = TcpStream::connect(&address).unwrap();
        introduce(&mut stream, Hello { rank, world: 4, ..hello() });
        stream
    };
    let mut two = introduced(2);
    drop(introduced(1));
    assert_eq!(answer(&mut two), Frame::Lost(1, Loss::new(what, Cause::Ended)));
    let error = zero.join().unwrap();
    assert_eq!((error.to_string(), error.rank()), (format!("rank 1 {what}"), Some(1)));
}

/// The ranks that have come are told at once, and those that come later by the address that they
/// know, or that the exchange still has.
#[test]
fn a_rank_that_comes_when_the_meeting_has_failed_is_told_why() {
    let (listener, address) = listener();
    let place = |rank, root| Place { rank, ranks: 4, root, job: JOB };
    let root = place(0, Root::Listener(listener));
    let root = thread::spawn(move || Group::meet(root, &terms(3 * LONG)).unwrap_err());
    let introduced = |rank| {
        let mut stream = TcpStream::connect(&address).unwrap();
        introduce(&mut stream, Hello { rank, world: 4, ..hello() });
        stream
    };
    let mut two = introduced(2);
    drop(introduced(1));
    assert_eq!(answer(&mut two), Frame::Lost(1, Loss::new("ended before the job began", Cause::Ended)));
    // Rank 2 has been told, and is here for the next meeting.
    assert_eq!(answer(&mut introduced(2)), Frame::Over);
    let late = Group::meet(place(3, Root::Address(address.clone())), &terms(LONG)).unwrap_err();
    let root = root.join().unwrap();
    for error in [root, late] {
        assert_eq!((error.cause(), error.rank()), (&Cause::Ended, Some(1)), "{error}");
        assert_eq!(error.to_string(), "rank 1 ended before the job began");
    }
}

/// Rank 0 finds out when the last rank has come, or before.
#[test]
fn a_rank_that_ends_before_the_last_one_comes_is_named() {
    let (listener, address) = listener();
    let mut listener = Some(listener);
    for rank in [1, 2] {
        let mut stream = TcpStream::connect(&address).unwrap();
        Head::of(JOB).write(&mut stream).unwrap();
        let hello = Frame::Hello(Hello { rank, world: 3, ..hello() });
        hello.write(&mut stream, MAX_HELLO).unwrap();
        if rank == 2 {
            // Both wait in the backlog.
            let place = Place { rank: 0, ranks: 3, root: Root::Listener(listener.take().unwrap()), job: JOB };
            let said = Group::meet(place, &terms(SOON)).unwrap_err().to_string();
            assert_eq!(said, "rank 1 ended before the job began");
        }
    }
}

/// Rank 0 that ends without a message is not said to have given one.
#[test]
fn a_root_that_ends_before_the_job_begins_is_named() {
    let (listener, address) = listener();
    let place = Place { rank: 1, ranks: 2, root: Root::Address(address), job: JOB };
    let rank = thread::spawn(move || Group::meet(place, &terms(SOON)).unwrap_err());
    let (mut stream, _) = listener.accept().unwrap();
    Head::read(&mut stream).unwrap();
    Frame::read(&mut stream, MAX_HELLO).unwrap();
    drop(stream);
    let error = rank.join().unwrap();
    let text = error.to_string();
    assert_eq!(error.rank(), Some(0));
    assert!(text.starts_with("rank 0 at 127.0.0.1:") && text.contains("ended before the job began"), "{text}");
    assert!(!text.contains("its message says why"), "{text}");
}

#[test]
fn nobody_waits_for_ever() {
    let (listener, address) = listener();
    let hurry = terms(Duration::from_millis(50));
    let place = Place { rank: 0, ranks: 3, root: Root::Listener(listener), job: JOB };
    let error = Group::meet(place, &hurry).unwrap_err().to_string();
    assert!(error.contains("missing: 1, 2"), "{error}");
    let place = Place { rank: 1, ranks: 3, root: Root::Address(address), job: JOB };
    let error = Group::meet(place, &hurry).unwrap_err();
    assert!(error.to_string().contains("cannot reach rank 0") && error.rank() == Some(0), "{error}");
}

/// A host that lost power does not even close its connections: the kernel has to probe it.
#[test]
fn the_kernel_looks_for_hosts_that_are_gone() {
    let (listener, address) = listener();
    let held = zero(listener, SOON, |group| {
        let stream = group.router.writers[0].1.lock().unwrap();
        (stream.keepalive().unwrap(), stream.tcp_keepalive_time().unwrap(), stream.tcp_user_timeout().unwrap())
    });
    let _stream = one(&address);
    let (probes, first, unanswered) = held.join().unwrap().unwrap();
    assert!(probes && first < SOON && unanswered.is_some_and(|time| time < 2 * SOON), "{first:?} {unanswered:?}");
}

#[test]
fn a_port_in_use_is_said() {
    let (_listener, address) = listener();
    let error = listen(&address).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
}

/// Six ranks in two rows and three columns: gathers in the row and in the column are not mixed up,
/// also while the other row does something else, and rank 0 sleeps.
#[test]
fn parts_gather_on_their_own() {
    let results = ranks(6, |mut group| {
        let job = group.rank();
        let mut row = group.split(job / 3, job).unwrap();
        // The opposite order.
        let mut column = group.split(job % 3, 9 - job).unwrap();
        let mut pair = row.split(usize::from(row.rank() > 0), 0).unwrap();
        if job == 0 {
            thread::sleep(Duration::from_millis(50));
        }
        for _ in 0..if job < 3 { 10 } else { 3 } {
            row.barrier("a row").unwrap();
        }
        let all = (
            (row.rank(), row.all_gather("a row", &job).unwrap()),
            (column.rank(), column.all_gather("a column", &job).unwrap()),
            (pair.rank(), pair.all_gather("a pair", &job).unwrap()),
        );
        drop((row, column, pair));
        group.conclude(Ok(all)).unwrap()
    });
    for (job, (row, column, pair)) in results.into_iter().enumerate() {
        let first = job / 3 * 3;
        assert_eq!(row, (job - first, vec![first, first + 1, first + 2]));
        assert_eq!(column, (1 - job / 3, vec![job % 3 + 3, job % 3]));
        let expected = if job == first { (0, vec![first]) } else { (job - first - 1, vec![first + 1, first + 2]) };
        assert_eq!(pair, expected);
    }
}

#[test]
fn a_death_reaches_every_part() {
    let results = ranks(4, |mut group| {
        let mut part = group.split(group.rank() % 2, 0).unwrap();
        if group.rank() == 3 {
            return None;
        }
        let error = loop {
            if let Err(error) = part.barrier("a test") {
                break error;
            }
        };
        Some((group.rank(), error.to_string()))
    });
    for (rank, text) in results.iter().flatten() {
        assert!(text.contains("rank 3"), "rank {rank} was told {text:?}");
    }
}

#[test]
fn a_part_names_ranks_of_the_job() {
    let results = ranks(3, |mut group| {
        let mut part = group.split(usize::from(group.rank() > 0), 0).unwrap();
        let mine = if group.rank() == 2 { Err(Error::new("no paper")) } else { Ok(()) };
        let told = part.agree("a test", mine).map_err(|failure| failure.to_string());
        group.conclude(Ok(told)).unwrap()
    });
    assert_eq!(results[1..], [Err("rank 2: no paper".to_owned()), Err("no paper".to_owned())]);
}

#[test]
fn a_timeout_may_be_as_long_as_any() {
    let (listener, address) = listener();
    let zero = zero(listener, Duration::MAX, |mut group| group.barrier("the start").map(|()| group));
    let place = Place { rank: 1, ranks: 2, root: Root::Address(address), job: JOB };
    let mut group = Group::meet(place, &terms(Duration::MAX)).unwrap();
    group.barrier("the start").unwrap();
    let leaving = thread::spawn(|| group.conclude(Ok(())));
    zero.join().unwrap().unwrap().unwrap().conclude(Ok(())).unwrap();
    leaving.join().unwrap().unwrap();
}

#[test]
fn a_forked_child_leaves_its_parents_group_alone() {
    rdma_test_support::passes_alone(&["bootstrap::tests::a_child_that_drops_its_parents_group"], &[]);
}

/// Runs in a process of its own, which forks.
#[test]
#[ignore = "run by a_forked_child_leaves_its_parents_group_alone"]
fn a_child_that_drops_its_parents_group() {
    let (listener, address) = listener();
    let zero = zero(listener, SOON, |mut group| group.barrier("the child").and_then(|()| group.conclude(Ok(()))));
    let place = Place { rank: 1, ranks: 2, root: Root::Address(address), job: JOB };
    let mut group = Some(Group::meet(place, &terms(SOON)).unwrap());
    assert!(rdma_test_support::holds_in_child(|| {
        let Some(mut group) = group.take() else { return false };
        let refused = group.barrier("the parent");
        group.aborter().abort("the child ends");
        let concluded = group.conclude(Ok(()));
        refused.is_err() && concluded.is_err()
    }));
    let mut group = group.unwrap();
    group.barrier("the child").unwrap();
    group.conclude(Ok(())).unwrap();
    zero.join().unwrap().unwrap().unwrap();
}
