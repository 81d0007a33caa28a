//! Ranks that meet by an exchange or by addresses: whatever the exchange holds or does, they meet
//! or say why not, and leave nothing in it.

use std::io::Read;
use std::net::SocketAddr;

use tempfile::TempDir;

use super::super::rendezvous::{KEY, Record};
use super::*;

/// As [`terms`], for ranks of this host.
fn near(timeout: Duration) -> Terms {
    terms(timeout).listens_at("127.0.0.1:0".parse().unwrap())
}

/// Runs the ranks in threads, each with an exchange of its own, and gathers the ranks.
fn all_meet<E: Exchange + 'static>(world: usize, terms: &Terms, exchange: impl Fn() -> E) {
    let threads: Vec<_> = (0..world)
        .map(|rank| {
            let (mut exchange, terms) = (exchange(), terms.clone());
            thread::spawn(move || works(Group::meet_by(&mut exchange, rank, world, &terms).unwrap()))
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), (0..world).collect::<Vec<_>>());
    }
}

/// What the ranks gather before they end.
fn works(mut group: Group) -> Vec<usize> {
    let ranks = group.all_gather("the ranks", &group.rank()).unwrap();
    group.conclude(Ok(ranks)).unwrap()
}

fn directory() -> (TempDir, Directory) {
    let directory = tempfile::tempdir().unwrap();
    let exchange = Directory::new(directory.path(), "a job").unwrap();
    (directory, exchange)
}

fn is_empty(directory: &TempDir) -> bool {
    std::fs::read_dir(directory.path()).unwrap().next().is_none()
}

/// The message of rank 1 of two when the exchange holds this value.
fn refused(value: &[u8], timeout: Duration) -> String {
    let mut exchange = Threads::new();
    exchange.set(KEY, value).unwrap();
    Group::meet_by(&mut exchange, 1, 2, &near(timeout)).unwrap_err().to_string()
}

/// The record that rank 0 has set, whose addresses are others.
fn record(addresses: &[SocketAddr]) -> Vec<u8> {
    let mut exchange = Recorder::default();
    // Rank 0 fails as the exchange does, so nothing listens any more.
    Group::meet_by(&mut exchange, 0, 2, &near(SOON)).unwrap_err();
    let mut record = Record::of(&exchange.value).unwrap();
    record.addresses = addresses.to_vec();
    record.to_bytes().unwrap()
}

/// An exchange that fails, and keeps what it was to set and whether it was to delete that.
#[derive(Default)]
struct Recorder {
    value: Vec<u8>,
    is_deleted: bool,
}

impl Exchange for Recorder {
    fn set(&mut self, _: &str, value: &[u8]) -> Result<(), Error> {
        self.value = value.to_vec();
        Err(Error::new("the store\n\u{1b}[2J is full"))
    }

    fn get(&mut self, _: &str, _: Duration) -> Result<Vec<u8>, Error> {
        Err(Error::invalid("the store\n\u{1b}[2J is gone"))
    }

    fn delete(&mut self, _: &str) -> Result<(), Error> {
        self.is_deleted = true;
        Err(Error::new("the store\n\u{1b}[2J is read-only"))
    }
}

/// An address at which nobody listens.
fn deserted() -> SocketAddr {
    let (listener, _) = listener();
    listener.local_addr().unwrap().as_socket().unwrap()
}

/// A program that does this with each connection, while the sender lives.
fn program(serve: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().flatten().for_each(serve));
    address
}

/// Sends back what comes.
fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 1024];
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
}

#[test]
fn ranks_meet_by_threads_at_all_addresses_of_the_host() {
    let exchange = Threads::new();
    for world in 1..=4 {
        all_meet(world, &terms(SOON), || exchange.clone());
        assert!(exchange.is_empty());
    }
}

#[test]
fn ranks_meet_by_a_directory() {
    let (directory, exchange) = directory();
    for world in 1..=4 {
        all_meet(world, &near(SOON), || exchange.clone());
        assert!(is_empty(&directory));
    }
}

#[test]
fn ranks_meet_by_an_interface() {
    all_meet(2, &terms(SOON).listens_on("lo"), {
        let exchange = Threads::new();
        move || exchange.clone()
    });
}

/// A rank that is fast may look for the second group while rank 0 still makes the first.
#[test]
fn groups_meet_one_after_the_other_by_one_exchange() {
    let exchange = Threads::new();
    let threads: Vec<_> = (0..3)
        .map(|rank| {
            let mut exchange = exchange.clone();
            thread::spawn(move || {
                let groups = (0..20).map(|_| Group::meet_by(&mut exchange, rank, 3, &near(SOON)).unwrap());
                groups.map(works).collect::<Vec<_>>()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), vec![[0, 1, 2]; 20]);
    }
}

/// A loopback address of this process alone, with a port below those that the kernel chooses.
fn own_address(last: u8) -> String {
    let id = std::process::id();
    format!("127.{}.{}.{last}:20077", 1 + id / 256 % 200, id % 256)
}

#[test]
fn ranks_meet_at_addresses() {
    let addresses: Vec<String> = (1..=3).map(own_address).collect();
    let threads: Vec<_> = (0..3)
        .map(|rank| {
            let addresses = addresses.clone();
            thread::spawn(move || works(Group::meet_at(&addresses, rank, &terms(SOON)).unwrap()))
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), [0, 1, 2]);
    }
}

#[test]
fn addresses_that_make_no_sense_are_refused() {
    let meet = |addresses: &[&str], rank| Group::meet_at(addresses, rank, &terms(SOON)).unwrap_err();
    for (addresses, rank) in [(&[][..], 0), (&["localhost:1", "localhost"], 0), (&["localhost:1", "localhost:2"], 2)] {
        assert_eq!(meet(addresses, rank).kind(), ErrorKind::InvalidInput, "{addresses:?}");
    }
    // An address of documentation, which no host has.
    let error = meet(&["192.0.2.1:7000", "192.0.2.2:7000"], 0).to_string();
    assert!(error.contains("is not an address of this host"), "{error}");
}

/// Rank 0 takes ranks with other addresses for another job's, which they are told.
#[test]
fn ranks_with_other_addresses_are_told() {
    let addresses = [own_address(9), "127.0.0.1:1".to_owned()];
    let root = {
        let addresses = addresses.clone();
        thread::spawn(move || works(Group::meet_at(&addresses, 0, &terms(SOON)).unwrap()))
    };
    let error = Group::meet_at(&[addresses[0].as_str(), "127.0.0.1:2"], 1, &terms(SOON)).unwrap_err().to_string();
    assert!(error.contains("give all ranks of a job the same addresses"), "{error}");
    works(Group::meet_at(&addresses, 1, &terms(SOON)).unwrap());
    root.join().unwrap();
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let hurry = Duration::from_millis(50);
    let (directory, mut exchange) = directory();
    let error = Group::meet_by(&mut exchange, 0, 3, &near(hurry)).unwrap_err().to_string();
    assert!(error.contains("missing: 1, 2") && error.contains("with the same exchange"), "{error}");
    assert!(is_empty(&directory));
    let error = Group::meet_by(&mut exchange, 0, 2, &near(hurry)).unwrap_err();
    assert_eq!(error.rank(), Some(1), "{error}");
    let error = Group::meet_by(&mut exchange, 2, 3, &near(hurry)).unwrap_err();
    assert_eq!(error.rank(), Some(0));
    let error = error.to_string();
    assert!(error.starts_with("rank 0 has not told the exchange within 0 s where it listens"), "{error}");
    assert!(is_empty(&directory));
}

/// All ranks learn it, and the next job finds nothing of this one.
#[test]
fn ranks_that_do_not_agree_leave_nothing() {
    let (directory, exchange) = directory();
    let other = Terms::new("other", &(), Roles::Ranks, SOON);
    let threads = [near(SOON), other].into_iter().enumerate().map(|(rank, terms)| {
        let mut exchange = exchange.clone();
        thread::spawn(move || Group::meet_by(&mut exchange, rank, 2, &terms).unwrap_err().to_string())
    });
    let threads: Vec<_> = threads.collect();
    for error in threads.into_iter().map(|thread| thread.join().unwrap()) {
        assert!(error.contains("run the same program everywhere"), "{error}");
    }
    assert!(is_empty(&directory));
}

/// Rank 1 does not fit, learns it, and meets again by the same exchange, while rank 0 still waits
/// to tell rank 2.
#[test]
fn ranks_meet_again_after_a_meeting_that_has_failed() {
    let (directory, exchange) = directory();
    let (told, has_told) = channel();
    let start = |rank: usize, told: Option<Sender<String>>, wait: Option<Receiver<String>>| {
        let mut exchange = exchange.clone();
        thread::spawn(move || {
            let before = wait.map(|wait| wait.recv().unwrap());
            let other = Terms::new("other", &(), Roles::Ranks, LONG).listens_at("127.0.0.1:0".parse().unwrap());
            let first = if rank == 1 { other } else { near(LONG) };
            let error = Group::meet_by(&mut exchange, rank, 3, &first).unwrap_err().to_string();
            if let Some(told) = told {
                told.send(error.clone()).unwrap();
            }
            assert!(before.is_none_or(|before| before == error), "{error}");
            assert!(error.contains("run the same program everywhere"), "{error}");
            works(Group::meet_by(&mut exchange, rank, 3, &near(LONG)).unwrap())
        })
    };
    let ranks = [start(0, None, None), start(1, Some(told), None), start(2, None, Some(has_told))];
    for rank in ranks {
        assert_eq!(rank.join().unwrap(), [0, 1, 2]);
    }
    assert!(is_empty(&directory));
}

#[test]
fn a_value_that_rank_0_does_not_set_is_refused_at_once() {
    let good = String::from_utf8(record(&[deserted()])).unwrap();
    let cases: [(Vec<u8>, &str); 10] = [
        (b"".into(), "\"\""),
        (b"\xff\0garbage\x1b[2J\n".into(), "\"\u{fffd}\\0garbage\\u{1b}[2J\\n\""),
        (vec![b' '; MAX_VALUE + 1], "8193 bytes"),
        (vec![b'['; MAX_VALUE], "[[["),
        (b"127.0.0.1:80".into(), "\"127.0.0.1:80\""),
        (good.replace("rdma-job", "other-job").into(), "a value of \"other-job\""),
        (good.replace("127.0.0.1", "nowhere").into(), "\"{"),
        (good.replace("\"job\":", "\"work\":").into(), "\"{"),
        (record(&[]), "0 addresses"),
        (record(&[deserted(); 65]), "65 addresses"),
    ];
    for (value, what) in cases {
        let said = refused(&value, SOON);
        let start = "the exchange holds under rdma-collectives/root what rank 0 of a job does not set: ";
        assert!(said.starts_with(start) && said.contains(what) && said.len() < 400, "{what}: {said}");
    }
    let version = format!("\"version\":{VERSION}");
    let said = refused(good.replace(&version, "\"version\":77,\"more\":[[]]").as_bytes(), SOON);
    assert!(said.starts_with("rank 0 speaks version 77"), "{said}");
}

/// A rank tells nothing of itself to what listens at a wrong address, and says what it has found.
#[test]
fn addresses_of_others_are_told() {
    let zero = [0, 0, 0, 0];
    let wrong = [
        (deserted(), "refused"),
        (program(drop), ""),
        (program(echo), "something else listens there"),
        (program(|mut stream| drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"))), ""),
        ((zero, 0).into(), ""),
    ];
    for (address, what) in wrong {
        let said = refused(&record(&[address]), Duration::from_millis(50));
        let start = format!("cannot find rank 0 within 0 s where the exchange says that it listens ({address}: ");
        assert!(said.starts_with(&start) && said.contains(what), "{said}");
    }
    let (listener, address) = listener();
    let other = self::zero(listener, SOON, works);
    let said = refused(&record(&[address.parse().unwrap()]), Duration::from_millis(50));
    assert!(said.contains("give all ranks of a job the same --root and --job"), "{said}");
    let place = Place { rank: 1, ranks: 2, root: Root::Address(address), job: JOB };
    works(Group::meet(place, &terms(SOON)).unwrap());
    other.join().unwrap().unwrap();
}

/// As on hosts that have networks in common and others not.
#[test]
fn rank_0_is_found_among_addresses_of_others() {
    let (mut ours, mut theirs) = (Threads::new(), Threads::new());
    let root = {
        let mut ours = ours.clone();
        thread::spawn(move || works(Group::meet_by(&mut ours, 0, 2, &near(SOON)).unwrap()))
    };
    let mut record = Record::of(&ours.get(KEY, SOON).unwrap()).unwrap();
    // The kernel takes connections that nobody reads.
    let (_silent, silent) = listener();
    let wrong = [deserted(), silent.parse().unwrap(), program(echo), program(drop)];
    record.addresses.splice(0..0, wrong);
    theirs.set(KEY, &record.to_bytes().unwrap()).unwrap();
    works(Group::meet_by(&mut theirs, 1, 2, &near(SOON)).unwrap());
    root.join().unwrap();
}

/// The leftover of a job whose rank 0 was killed.
#[test]
fn a_record_of_an_earlier_job_is_passed_over() {
    let (directory, exchange) = directory();
    let (tried, has_tried) = channel();
    let earlier = program(move |_| tried.send(()).unwrap_or_default());
    exchange.clone().set(KEY, &record(&[deserted(), earlier])).unwrap();
    let mut theirs = exchange.clone();
    let one = thread::spawn(move || works(Group::meet_by(&mut theirs, 1, 2, &near(SOON)).unwrap()));
    has_tried.recv().unwrap();
    works(Group::meet_by(&mut exchange.clone(), 0, 2, &near(SOON)).unwrap());
    one.join().unwrap();
    assert!(is_empty(&directory));
}

/// A job with another name in the same directory is not disturbed.
#[test]
fn a_record_of_another_job_is_not_touched() {
    let (directory, mut other) = directory();
    other.set(KEY, b"another job's").unwrap();
    all_meet(2, &near(SOON), || Directory::new(directory.path(), "this job").unwrap());
    assert_eq!(other.get(KEY, Duration::ZERO).unwrap(), b"another job's");
}

#[test]
fn an_exchange_that_fails_is_told() {
    let mut exchange = Recorder::default();
    let said = Group::meet_by(&mut exchange, 0, 2, &near(SOON)).unwrap_err().to_string();
    let what = "cannot tell the other ranks by the exchange where rank 0 listens: ";
    assert_eq!(said, format!("{what}the store \\u{{1b}}[2J is full"));
    // Rank 0 has not relied on it that nothing was set.
    assert!(exchange.is_deleted);
    let error = Group::meet_by(&mut exchange, 1, 2, &near(SOON)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let what = "cannot get from the exchange where rank 0 listens: ";
    assert_eq!(error.to_string(), format!("{what}the store \\u{{1b}}[2J is gone"));
}

/// The job can do its work.
#[test]
fn an_exchange_that_keeps_a_record_is_told_and_no_failure() {
    static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    struct Keeper(Threads);
    impl Exchange for Keeper {
        fn set(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
            self.0.set(key, value)
        }
        fn get(&mut self, key: &str, limit: Duration) -> Result<Vec<u8>, Error> {
            self.0.get(key, limit)
        }
        fn delete(&mut self, _: &str) -> Result<(), Error> {
            Err(Error::new("the store is read-only"))
        }
    }
    let (exchange, terms) = (Threads::new(), near(SOON).notices(|text| NOTICES.lock().unwrap().push(text.to_owned())));
    all_meet(2, &terms, || Keeper(exchange.clone()));
    let expected = "test: the exchange keeps the addresses of this job: the store is read-only";
    assert_eq!(*NOTICES.lock().unwrap(), [expected]);
}

/// So that no rank finds it again.
#[test]
fn the_record_is_deleted_before_the_job_begins() {
    let mut exchange = Threads::new();
    let root = {
        let mut exchange = exchange.clone();
        thread::spawn(move || works(Group::meet_by(&mut exchange, 0, 2, &near(SOON)).unwrap()))
    };
    let group = Group::meet_by(&mut exchange, 1, 2, &near(SOON)).unwrap();
    assert!(exchange.is_empty());
    works(group);
    root.join().unwrap();
}
