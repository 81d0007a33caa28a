use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use proptest::prelude::*;

use super::*;

const fn address(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), port)
}

const ROUTE: Route = Route { opener: address(1, 40_000), acceptor: address(2, 4791) };
const ACCEPTOR: Identity = Identity { slot: Slot(9), instance: [9; 16] };

fn key(byte: u8) -> Key {
    Key::of_bytes(&[byte; 32]).unwrap()
}

fn first() -> First {
    let opener = Identity { slot: Slot(5), instance: [5; 16] };
    First { purpose: Purpose::Link, protection: Protection::None, target: Slot(9), opener, nonce: [7; NONCE] }
}

/// The terms of a side that sends its frames in the clear.
fn terms(key: &Key) -> Terms<'_> {
    Terms { key, protection: Protection::None }
}

/// Runs the opener's side; without the encryption, which cannot be compared.
fn try_open(socket: &Tcp, key: &Key, route: Route, first: &First) -> Outcome {
    let opened = open(socket, key, route, first, soon())?;
    Ok((opened.acceptor, opened.answer))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Waits for a first message.
fn receive(socket: &Tcp) -> Result<First, HelloError> {
    let mut incoming = Incoming::new();
    loop {
        match incoming.read(socket)? {
            Some(first) => return Ok(first),
            None => thread::yield_now(),
        }
    }
}

type Outcome = Result<(Identity, Answer), HelloError>;
type Accepted = Result<Answer, HelloError>;

/// Runs both sides, each with its key and its view of the route.
fn run(keys: [Key; 2], routes: [Route; 2], answer: Accepted) -> (Outcome, Accepted) {
    let [ours, theirs] = Tcp::pair();
    let [our_key, their_key] = keys;
    thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let first = receive(&theirs)?;
            let accepted = accept(&theirs, terms(&their_key), routes[1], &first, ACCEPTOR, soon(), || answer);
            accepted.map(|(answer, _)| answer)
        });
        let opened = try_open(&ours, &our_key, routes[0], &first());
        drop(ours);
        (opened, accepting.join().unwrap())
    })
}

#[test]
fn two_sides_with_one_key_agree() {
    for answer in [Answer::Welcome, Answer::Known, Answer::Busy] {
        let (opened, accepted) = run([key(1), key(1)], [ROUTE; 2], Ok(answer));
        assert_eq!((opened, accepted), (Ok((ACCEPTOR, answer)), Ok(answer)));
    }
}

#[test]
fn another_key_or_another_address_is_no_proof_and_nothing_is_decided() {
    let other = Route { opener: address(3, 40_000), ..ROUTE };
    let another = Route { acceptor: address(3, 4791), ..ROUTE };
    // Another connection of the same hosts.
    let port = Route { opener: address(1, 40_001), ..ROUTE };
    for (keys, routes) in [
        ([key(1), key(2)], [ROUTE; 2]),
        ([key(1), key(1)], [ROUTE, other]),
        ([key(1), key(1)], [another, ROUTE]),
        ([key(1), key(1)], [ROUTE, port]),
    ] {
        let (opened, accepted) = run(keys, routes, Ok(Answer::Welcome));
        assert_eq!(opened, Err(HelloError::Proof), "the opener proves nothing to it");
        assert!(accepted.is_err());
    }
}

#[test]
fn an_acceptor_that_refuses_after_the_proof_hangs_up() {
    let (opened, accepted) = run([key(1), key(1)], [ROUTE; 2], Err(HelloError::Unconfirmed));
    assert!(matches!(opened, Err(HelloError::System(os::Error { errno: Errno::ECONNRESET, .. }))));
    assert_eq!(accepted, Err(HelloError::Unconfirmed));
}

/// Runs both sides, each with the protection that it wants, over a connection on which somebody may
/// change a byte of First and one of Second.
fn meet(wanted: [Protection; 2], change: [Option<usize>; 2]) -> [Result<bool, HelloError>; 2] {
    let ([ours, middle], [between, theirs]) = (Tcp::pair(), Tcp::pair());
    thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let (key, first) = (key(1), receive(&theirs)?);
            let terms = Terms { key: &key, protection: wanted[1] };
            let accepted = accept(&theirs, terms, ROUTE, &first, ACCEPTOR, soon(), || Ok(Answer::Welcome));
            accepted.map(|(_, records)| records.is_some())
        });
        scope.spawn(move || {
            let carry = |from: &Tcp, to: &Tcp, len: usize, change: Option<usize>| {
                let mut bytes = vec![0; len];
                from.read_exact(&mut bytes, soon())?;
                change.into_iter().for_each(|at| bytes[at] ^= 1);
                to.write_all(&bytes, soon())
            };
            let hello = carry(&middle, &between, FIRST, change[0])
                .and_then(|()| carry(&between, &middle, SECOND + PROOF, change[1]))
                .and_then(|()| carry(&middle, &between, PROOF, None));
            // What follows is carried as it comes, until one side hangs up.
            if hello.is_ok() {
                let (middle, between) = (&middle, &between);
                thread::scope(|scope| {
                    for [from, to] in [[middle, between], [between, middle]] {
                        scope.spawn(move || {
                            while carry(from, to, 1, None).is_ok() {}
                            (from.shut_down(), to.shut_down())
                        });
                    }
                });
            }
        });
        let first = First { protection: wanted[0], ..first() };
        let opened = open(&ours, &key(1), ROUTE, &first, soon()).map(|opened| opened.records.is_some());
        drop(ours);
        [opened, accepting.join().unwrap()]
    })
}

#[test]
fn two_sides_that_want_different_protections_part_and_both_know_why() {
    use Protection::{None as Clear, Tls};
    for wanted in [[Clear, Tls], [Tls, Clear]] {
        let errors = wanted.map(|ours| Err(HelloError::Protection(ours)));
        assert_eq!(meet(wanted, [None, None]), errors);
    }
    let said = HelloError::Protection(Tls).to_string();
    assert!(said.contains("RDMA_SOFT_TLS") && said.contains("does not encrypt"), "{said}");
}

/// Where the messages have the protection.
const FIRST_PROTECTION: usize = 8 + 4 + 2;
const SECOND_PROTECTION: usize = 8 + 4 + 2;

#[test]
fn nobody_on_the_way_can_turn_the_encryption_on_or_off() {
    use Protection::{None as Clear, Tls};
    let (one, other) = (Some(FIRST_PROTECTION), Some(SECOND_PROTECTION));
    for wanted in [[Clear, Clear], [Clear, Tls], [Tls, Clear], [Tls, Tls]] {
        for change in [[one, None], [None, other], [one, other]] {
            let [opened, accepted] = meet(wanted, change);
            assert_eq!(opened, Err(HelloError::Proof), "{wanted:?} {change:?}");
            assert!(accepted.is_err());
        }
    }
}

#[test]
fn two_sides_that_want_encryption_have_it() {
    let clear = meet([Protection::None; 2], [None, None]);
    assert_eq!(clear, [Ok(false), Ok(false)]);
    let both = meet([Protection::Tls; 2], [None, None]);
    if cfg!(feature = "tls") && !tls::has_instructions() {
        rdma_test_support::lacks("a processor that can encrypt");
        return;
    }
    match cfg!(feature = "tls") {
        true => assert_eq!(both, [Ok(true), Ok(true)]),
        false => assert_eq!(both, [Err(HelloError::Encryption); 2]),
    }
}

/// A caller without the key sends back what it gets.
#[test]
fn a_proof_that_is_sent_back_is_none() {
    let [ours, theirs] = Tcp::pair();
    let accepted = thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let first = receive(&theirs)?;
            let decide = || panic!("nothing is proved");
            accept(&theirs, terms(&key(1)), ROUTE, &first, ACCEPTOR, soon(), decide).map(|(answer, _)| answer)
        });
        ours.write_all(&first().bytes(), soon()).unwrap();
        let mut answer = [0; SECOND + PROOF];
        ours.read_exact(&mut answer, soon()).unwrap();
        ours.write_all(&answer[SECOND..], soon()).unwrap();
        accepting.join().unwrap()
    });
    assert_eq!(accepted, Err(HelloError::Proof));
}

/// The acceptor's answer is bound to the handshake like the rest.
#[test]
fn an_answer_that_is_changed_on_the_way_is_refused() {
    let ([ours, middle], [between, theirs]) = (Tcp::pair(), Tcp::pair());
    let opened = thread::scope(|scope| {
        scope.spawn(|| {
            let first = receive(&theirs).unwrap();
            accept(&theirs, terms(&key(1)), ROUTE, &first, ACCEPTOR, soon(), || Ok(Answer::Busy)).unwrap();
        });
        scope.spawn(|| {
            let carry = |from: &Tcp, to: &Tcp, len: usize, change: bool| {
                let mut bytes = vec![0; len];
                from.read_exact(&mut bytes, soon()).unwrap();
                if change {
                    bytes[0] = code(Answer::Welcome);
                }
                to.write_all(&bytes, soon()).unwrap();
            };
            carry(&middle, &between, FIRST, false);
            carry(&between, &middle, SECOND + PROOF, false);
            carry(&middle, &between, PROOF, false);
            carry(&between, &middle, ANSWER + PROOF, true);
        });
        try_open(&ours, &key(1), ROUTE, &first())
    });
    assert_eq!(opened, Err(HelloError::Proof));
}

#[test]
fn a_side_that_falls_silent_or_hangs_up_at_any_byte_ends_the_handshake() {
    let all = first().bytes();
    for cut in 0..FIRST {
        let [ours, theirs] = Tcp::pair();
        ours.write_all(&all[..cut], soon()).unwrap();
        let mut incoming = Incoming::new();
        assert_eq!(incoming.read(&theirs), Ok(None), "{cut}");
        drop(ours);
        let ended = incoming.read(&theirs).unwrap_err();
        assert!(matches!(ended, HelloError::System(os::Error { errno: Errno::ECONNRESET, .. })), "{cut}");
    }
    for cut in [0, 1, SECOND, SECOND + PROOF - 1, SECOND + PROOF] {
        let [ours, theirs] = Tcp::pair();
        let opened = thread::scope(|scope| {
            scope.spawn(move || {
                let message = second(ACCEPTOR, protection_code(Protection::None), &[3; NONCE]);
                let first = receive(&theirs).unwrap();
                let key = key(1);
                let transcript = Transcript { key: &key, route: ROUTE.bytes(), first: first.bytes(), second: message };
                let bytes = [&message[..], &transcript.prove(SECOND_PROOF, &[0])].concat();
                theirs.write_all(&bytes[..cut], soon()).unwrap();
            });
            try_open(&ours, &key(1), ROUTE, &first())
        });
        assert!(opened.is_err(), "{cut}");
    }
}

/// A slow acceptor may give up when its caller takes the handshake for done.
#[test]
fn a_reset_after_the_handshake_lets_the_caller_call_again() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let ours = Tcp::connect(Ipv4Addr::LOCALHOST.into(), listener.local_addr().unwrap(), soon()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    ours.write_all(&[1], soon()).unwrap();
    theirs.peek(&mut [0]).unwrap();
    // A byte that nobody reads makes the close a reset.
    drop(theirs);
    assert!(ours.read_exact(&mut [0], soon()).is_err());
    let error = HelloError::from(Route::of_opener(&ours).unwrap_err());
    assert!(error.is_silence(), "{error}");
}

/// No byte of a message has to come with another one.
#[test]
fn a_first_message_that_comes_byte_by_byte_is_read_and_another_program_is_recognised_early() {
    let [ours, theirs] = Tcp::pair();
    let mut incoming = Incoming::new();
    let all = first().bytes();
    for byte in &all[..FIRST - 1] {
        ours.write_all(&[*byte], soon()).unwrap();
        assert_eq!(incoming.read(&theirs), Ok(None));
    }
    // What follows the message stays where it is.
    ours.write_all(&[all[FIRST - 1], 1, 2], soon()).unwrap();
    assert_eq!(incoming.read(&theirs), Ok(Some(first())));
    assert_eq!(theirs.read(&mut [0; 8]), Ok(2));
    ours.write_all(b"GET / HTTP/1", soon()).unwrap();
    assert_eq!(Incoming::new().read(&theirs), Err(HelloError::Stranger));
}

#[test]
fn a_caller_for_whom_there_is_no_time_is_told_to_call_again() {
    let [ours, theirs] = Tcp::pair();
    tell_busy(&theirs);
    let opened = try_open(&ours, &key(1), ROUTE, &first());
    assert_eq!(opened, Err(HelloError::Busy));
}

#[test]
fn another_version_is_told_ours() {
    let [ours, theirs] = Tcp::pair();
    let mut bytes = first().bytes();
    bytes[8] = 77;
    ours.write_all(&bytes, soon()).unwrap();
    assert_eq!(receive(&theirs), Err(HelloError::Version(77)));
    let mut answer = [0; SECOND];
    ours.read_exact(&mut answer, soon()).unwrap();
    assert_eq!(Reader(&answer).check(), Ok(()), "in our version");
    // An opener of ours says which version the acceptor has.
    let [ours, theirs] = Tcp::pair();
    answer[8] = 78;
    theirs.write_all(&answer, soon()).unwrap();
    assert_eq!(try_open(&ours, &key(1), ROUTE, &first()), Err(HelloError::Version(78)));
}

proptest! {
    /// Whatever comes in the place of each message: the handshake ends, and proves nothing.
    #[test]
    fn any_bytes_in_any_message_end_the_handshake(
        message in 0_usize..4,
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        prefix in 0_usize..13,
    ) {
        let [ours, theirs] = Tcp::pair();
        let bytes = [&first().bytes()[..prefix], &bytes].concat();
        if message == 0 {
            ours.write_all(&bytes, soon()).unwrap();
            drop(ours);
            let read = receive(&theirs);
            prop_assert!(read.is_err() || bytes.len() >= FIRST);
            return Ok(());
        }
        let ended = thread::scope(|scope| {
            if message == 1 {
                // In the place of the opener's proof.
                let accepting = scope.spawn(move || {
                    let first = receive(&theirs)?;
                    let decide = || panic!("nothing is proved");
                    accept(&theirs, terms(&key(1)), ROUTE, &first, ACCEPTOR, soon(), decide).map(drop)
                });
                ours.write_all(&first().bytes(), soon()).unwrap();
                ours.write_all(&bytes, soon()).unwrap();
                ours.shut_down();
                return accepting.join().unwrap().is_err();
            }
            // In the place of the acceptor's messages: from the start, and behind a right one.
            scope.spawn(move || {
                receive(&theirs).unwrap();
                let right = if message == 2 { &[][..] } else { &second(ACCEPTOR, protection_code(Protection::None), &[3; NONCE])[..] };
                let _reset: os::Result<()> = theirs.write_all(&[right, &bytes].concat(), soon());
            });
            open(&ours, &key(1), ROUTE, &first(), soon()).is_err()
        });
        prop_assert!(ended);
    }

    #[test]
    fn first_messages_survive_their_bytes_and_any_bytes_are_checked(
        slots in (1_u16..4095, 1_u16..4095),
        instance: [u8; 16],
        encrypted: bool,
        nonce: [u8; NONCE],
        subject in proptest::option::of(any::<[u8; NONCE]>()),
        port in proptest::option::of((1_u8..5, 1_u16..)),
        garble in proptest::option::of((0..FIRST, 1_u8..)),
    ) {
        let slot = subject.map_or(Purpose::Link, Purpose::Confirm);
        let port = port.map(|(space, port)| Purpose::Port(Space::of_code(space).unwrap(), port));
        let target = Slot(if port.is_some() { 0 } else { slots.0 });
        let opener = Identity { slot: Slot(slots.1), instance };
        let protection = if encrypted { Protection::Tls } else { Protection::None };
        let first = First { purpose: port.unwrap_or(slot), protection, target, opener, nonce };
        let mut bytes = first.bytes();
        prop_assert_eq!(First::parse(&bytes), Ok(first));
        if let Some((at, by)) = garble {
            bytes[at] ^= by;
            // Every byte means something.
            prop_assert_ne!(First::parse(&bytes), Ok(first));
        }
    }
}
