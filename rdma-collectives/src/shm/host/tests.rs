//! A rank of the host that gives other memory than agreed, or none.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use nix::fcntl::{OFlag, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode;
use nix::unistd::ftruncate;

use super::*;
use crate::bootstrap::{Place, Roles, Terms, Watch};
use crate::cause::Cause;

const LONG: Duration = Duration::from_secs(60);
const PAGE: usize = 4096;
/// The number of the segment that is agreed upon.
const AGREED: u64 = 3;

/// This rank's view of rank 1, and rank 1's side of the socket.
fn pair() -> (Neighbour, UnixStream) {
    let (stream, other) = UnixStream::pair().unwrap();
    (Neighbour { rank: 1, stream, scratch: None, posted: 0, unsent: VecDeque::new() }, other)
}

fn give(to: &UnixStream, number: u64, len: usize, fd: impl AsFd) {
    pass::send(to, &record(number, len), Some(fd.as_fd())).unwrap();
}

/// Takes the agreed segment of a page, as long as `patience` lasts.
fn take(peer: &mut Neighbour, patience: &Patience) -> Result<SegmentView, Error> {
    let mut wait = Wait::default();
    peer.take(AGREED, PAGE, &mut || patience.rest(&mut wait))
}

fn patience(stall: Duration) -> Patience {
    Patience::new(Watch::new(), true, stall)
}

/// The error for memory that rank 1 gave and the ranks have not agreed on.
fn said(give: impl FnOnce(&UnixStream)) -> String {
    let (mut peer, other) = pair();
    give(&other);
    drop(other);
    take(&mut peer, &patience(LONG)).unwrap_err().to_string()
}

fn memfd(len: usize) -> OwnedFd {
    let fd = memfd_create(c"unsealed", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&fd, len.try_into().unwrap()).unwrap();
    fd
}

#[test]
fn other_memory_than_agreed_is_refused() {
    let segment = Segment::new(PAGE).unwrap();
    let fd = || segment.fd();
    let astray = "rank 1 gave other memory than agreed";
    assert_eq!(said(|to| give(to, AGREED + 1, PAGE, fd())), astray);
    assert_eq!(said(|to| give(to, SCRATCH, PAGE, fd())), astray);
    assert_eq!(said(|to| pass::send(to, &record(AGREED, PAGE), None).unwrap()), astray);
    let longer = Segment::new(2 * PAGE).unwrap();
    let sizes = format!("{astray}: {} bytes, and {PAGE} at this rank; give all ranks the same sizes", 2 * PAGE);
    assert_eq!(said(|to| give(to, AGREED, 2 * PAGE, longer.fd())), sizes);
    for len in [0, PAGE - 1, PAGE + 1, 2 * PAGE, usize::MAX, usize::MAX - PAGE + 1, 1 << 62] {
        let text = said(|to| give(to, AGREED, len, fd()));
        assert!(text.contains("rank 1"), "{len} bytes: {text}");
    }
    let text = said(|to| give(to, AGREED, PAGE, memfd(PAGE)));
    assert!(text.starts_with("cannot get memory from rank 1: ") && text.contains("seal"), "{text}");
    let text = said(|to| give(to, AGREED, PAGE, to));
    assert!(text.starts_with("cannot get memory from rank 1: "), "{text}");
    let text = said(|mut to| to.write_all(b"short").unwrap());
    assert!(text.starts_with("cannot get memory from rank 1: "), "{text}");
}

/// Gives scratch memory as long as rank 0 takes it.
fn gives_for_ever(other: &UnixStream, next: impl Fn(u64) -> (u64, usize)) {
    for count in 0.. {
        let (number, len) = next(count);
        let segment = Segment::new(len).unwrap();
        if pass::send(other, &record(number, len), Some(segment.fd())).is_err() {
            return;
        }
    }
}

#[test]
fn a_rank_that_keeps_giving_scratch_memory_is_refused() {
    for next in [
        |count| (SCRATCH + 1 + count, PAGE),
        |count| (SCRATCH + 1 + count, PAGE * (1 + usize::try_from(count % 1000).unwrap())),
        |_| (SCRATCH + 1, PAGE),
        |count| (SCRATCH + 1 + count, PAGE << (count % 2)),
    ] {
        let (mut peer, other) = pair();
        let giving = thread::spawn(move || gives_for_ever(&other, next));
        let refused = take(&mut peer, &patience(LONG)).unwrap_err().to_string();
        assert_eq!(refused, "rank 1 gave other memory than agreed");
        drop(peer);
        giving.join().unwrap();
    }
}

#[test]
fn scratch_memory_that_grows_is_kept() {
    let (mut peer, other) = pair();
    for step in 0..6 {
        let segment = Segment::new(PAGE << step).unwrap();
        give(&other, SCRATCH + 1 + step, PAGE << step, segment.fd());
    }
    give(&other, AGREED, PAGE, Segment::new(PAGE).unwrap().fd());
    take(&mut peer, &patience(LONG)).unwrap();
    let none = || -> Result<(), Error> { unreachable!("nothing is missing") };
    assert_eq!(peer.scratch(SCRATCH + 6, &mut { none }).unwrap().bytes().len(), PAGE << 5);
}

/// A byte at a time would restart a time-out of the socket.
#[test]
fn the_whole_step_has_a_limit() {
    let (mut peer, mut other) = pair();
    let giving = thread::spawn(move || {
        while other.write_all(&[0]).is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
    });
    let late = take(&mut peer, &patience(Duration::from_millis(300))).unwrap_err().to_string();
    assert!(late.starts_with("cannot get memory from rank 1: ") && late.contains("no progress"), "{late}");
    drop(peer);
    giving.join().unwrap();
}

/// The error has the limit, and not the time that was left of it.
#[test]
fn the_limit_of_the_operation_is_told() {
    let terms = Terms::new("test", &(), Roles::Ranks, LONG);
    let mut group = Group::meet(Place::of_threads(1).unwrap().remove(0), &terms).unwrap();
    let limit = Duration::from_millis(100);
    group.limit(Some(limit));
    thread::sleep(limit / 2);
    let (mut peer, _other) = pair();
    let error = take(&mut peer, &patience_of(&group)).err().unwrap();
    assert_eq!(error.cause(), &Cause::TimedOut { limit }, "{error}");
}

#[test]
fn the_failure_of_another_rank_ends_the_wait() {
    let (mut peer, _other) = pair();
    let watch = Watch::new();
    let patience = Patience::new(watch.clone(), true, LONG);
    let taking = thread::spawn(move || take(&mut peer, &patience).unwrap_err().to_string());
    watch.fail(Error::peer("rank 2 ended without a word"));
    assert_eq!(taking.join().unwrap(), "cannot get memory from rank 1: rank 2 ended without a word");
}

#[test]
fn a_process_without_free_descriptors_says_so() {
    rdma_test_support::passes_alone(&["shm::host::tests::no_descriptor_is_free"], &[]);
}

/// Runs in a process of its own, whose files have a limit.
#[test]
#[ignore = "run by a_process_without_free_descriptors_says_so"]
fn no_descriptor_is_free() {
    let (mut peer, other) = pair();
    give(&other, AGREED, PAGE, Segment::new(PAGE).unwrap().fd());
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let mut opened = Vec::new();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    while let Ok(fd) = open("/dev/null", OFlag::O_RDONLY, Mode::empty()) {
        opened.push(fd);
    }
    let refused = take(&mut peer, &patience(LONG));
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.starts_with("cannot get memory from rank 1: Too many open files"), "{refused}");
    assert!(refused.contains("ulimit -n"), "{refused}");
}
