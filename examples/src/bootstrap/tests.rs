use std::io::Write;
use std::thread;

use super::frame::{Frame, Hello, MAGIC, read_head, write_head};
use super::*;

const SOON: Duration = Duration::from_secs(10);

fn terms(settings: &str) -> Terms {
    Terms { program: "test", settings: settings.to_owned(), roles: Roles::RANKS, timeout: SOON }
}

fn listener() -> (TcpListener, String) {
    let listener = listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Runs `body` in `world` ranks, each a thread.
fn ranks<T: Send + 'static>(world: usize, body: impl Fn(Group) -> T + Clone + Send + 'static) -> Vec<T> {
    let (listener, address) = listener();
    let mut listener = Some(listener);
    let threads: Vec<_> = (0..world)
        .map(|rank| {
            let root = listener.take().map_or_else(|| Root::Address(address.clone()), Root::Listener);
            let body = body.clone();
            thread::spawn(move || body(Group::meet(Place { rank, world, root, job: 5 }, &terms("same")).unwrap()))
        })
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

#[test]
fn gathers_in_the_order_of_ranks() {
    let results = ranks(4, |mut group| {
        for _ in 0..20 {
            group.barrier().unwrap();
        }
        let all = group.all_gather(&[u8::try_from(group.rank()).unwrap(); 3]).unwrap();
        group.conclude(Ok(all)).unwrap()
    });
    let expected: Vec<Vec<u8>> = (0..4).map(|r| vec![r; 3]).collect();
    assert!(results.iter().all(|r| *r == expected));
}

#[test]
fn one_rank_needs_nobody() {
    let results = ranks(1, |mut group| group.all_gather(b"x").unwrap());
    assert_eq!(results, [vec![b"x".to_vec()]]);
}

#[test]
fn a_death_reaches_everybody() {
    let results = ranks(4, |mut group| {
        if group.rank() == 2 {
            return String::new();
        }
        let error = group.barrier().unwrap_err();
        assert_eq!(error.kind(), Kind::Peer);
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
            return group.conclude::<()>(Err(Failure::new("no more paper"))).unwrap_err().to_string();
        }
        let result = group.barrier();
        group.conclude(result).unwrap_err().to_string()
    });
    assert_eq!(results, ["rank 1 failed: no more paper", "no more paper", "rank 1 failed: no more paper"]);
}

#[test]
fn agreement_fails_with_the_first_that_failed() {
    let results = ranks(3, |mut group| {
        let mine = if group.rank() == 0 { Ok(()) } else { Err(Failure::new("no device")) };
        let failure = group.agree(mine).unwrap_err();
        (failure.kind(), failure.to_string())
    });
    assert_eq!(results[0], (Kind::Peer, "rank 1: no device".to_owned()));
    assert_eq!(results[1], (Kind::Failed, "no device".to_owned()));
    assert_eq!(results[2].0, Kind::Peer);
}

/// A rank that leaves because another has failed may be heard of before that one.
#[test]
fn who_leaves_first_is_not_why() {
    let (listener, address) = listener();
    let zero = thread::spawn(move || {
        let place = Place { rank: 0, world: 2, root: Root::Listener(listener), job: 5 };
        let group = Group::meet(place, &terms("same")).unwrap();
        group.watch.set(Failure::peer("rank 7 failed: no more paper"));
        group.receive().unwrap_err().to_string()
    });
    let mut stream = TcpStream::connect(address).unwrap();
    write_head(&mut stream).unwrap();
    Hello { job: 5, rank: 1, world: 2, program: "test".into(), settings: "same".into() }.write(&mut stream).unwrap();
    Frame::Bye.write(&mut stream).unwrap();
    assert_eq!(zero.join().unwrap(), "rank 7 failed: no more paper");
}

/// What rank 0 of two says when this connects to it, and what it answers.
fn rank_zero_meets(first: impl FnOnce(&mut TcpStream)) -> (String, String) {
    let (listener, address) = listener();
    let root = thread::spawn(move || {
        let place = Place { rank: 0, world: 2, root: Root::Listener(listener), job: 5 };
        Group::meet(place, &terms("same")).unwrap_err().to_string()
    });
    let mut stream = TcpStream::connect(address).unwrap();
    first(&mut stream);
    let answer = match read_head(&mut stream).and_then(|_| Frame::read(&mut stream)) {
        Ok(Frame::Refuse(why)) => why,
        other => panic!("{other:?}"),
    };
    (root.join().unwrap(), answer)
}

#[test]
fn another_version_is_refused() {
    let (root, answer) = rank_zero_meets(|stream| {
        stream.write_all(&[&MAGIC[..], &77u32.to_be_bytes()].concat()).unwrap();
    });
    assert!(root.contains("version 77"), "{root}");
    assert_eq!(root, answer);
}

#[test]
fn ranks_that_do_not_fit_are_refused() {
    let good = Hello { job: 5, rank: 1, world: 2, program: "test".into(), settings: "same".into() };
    let cases = [
        (Hello { world: 3, ..good.clone() }, "--world"),
        (Hello { rank: 0, ..good.clone() }, "two of rank 0"),
        (Hello { rank: 2, ..good.clone() }, "no rank 2"),
        (Hello { program: "other".into(), ..good.clone() }, "same program"),
        (Hello { settings: "min=4".into(), ..good }, "same options"),
    ];
    for (hello, part) in cases {
        let (root, answer) = rank_zero_meets(|stream| {
            write_head(stream).unwrap();
            hello.write(stream).unwrap();
        });
        assert!(root.contains(part), "{root}");
        assert_eq!(root, answer);
    }
}

/// One after the other, these would have the door for longer than there is time.
#[test]
fn silent_strangers_do_not_keep_ranks_waiting() {
    let (listener, address) = listener();
    let silent: Vec<_> = (0..10).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let zero = thread::spawn(move || {
        Group::meet(Place { rank: 0, world: 2, root: Root::Listener(listener), job: 5 }, &terms("same")).map(drop)
    });
    let place = Place { rank: 1, world: 2, root: Root::Address(address), job: 5 };
    let mut group = Group::meet(place, &terms("same")).unwrap();
    drop(group.barrier());
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
            let place = Place { rank: 1, world: 2, root: Root::Address(address.clone()), job: 6 };
            let error = Group::meet(place, &terms("same")).unwrap_err().to_string();
            assert!(error.contains("another job"), "{error}");
            let place = Place { rank: 1, world: 2, root: Root::Address(address), job: 5 };
            Group::meet(place, &terms("same")).unwrap().conclude(Ok(())).unwrap();
        })
    };
    let place = Place { rank: 0, world: 2, root: Root::Listener(listener), job: 5 };
    Group::meet(place, &terms("same")).unwrap().conclude(Ok(())).unwrap();
    strangers.join().unwrap();
}

#[test]
fn nobody_waits_for_ever() {
    let (listener, address) = listener();
    let hurry = Terms { timeout: Duration::from_millis(50), ..terms("same") };
    let place = Place { rank: 0, world: 3, root: Root::Listener(listener), job: 5 };
    let error = Group::meet(place, &hurry).unwrap_err().to_string();
    assert!(error.contains("missing: 1, 2"), "{error}");
    let place = Place { rank: 1, world: 3, root: Root::Address(address), job: 5 };
    let error = Group::meet(place, &hurry).unwrap_err().to_string();
    assert!(error.contains("cannot reach rank 0"), "{error}");
}

#[test]
fn a_port_in_use_is_said() {
    let (_listener, address) = listener();
    let error = listen(&address).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
}
