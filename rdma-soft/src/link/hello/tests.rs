use std::net::Ipv4Addr;
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
    First { purpose: Purpose::Link, target: Slot(9), opener, nonce: [7; NONCE] }
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

type Opened = Result<(Identity, Answer), HelloError>;
type Accepted = Result<Answer, HelloError>;

/// Runs both sides, each with its key and its view of the route.
fn run(keys: [Key; 2], routes: [Route; 2], answer: Accepted) -> (Opened, Accepted) {
    let [ours, theirs] = Tcp::pair();
    let [our_key, their_key] = keys;
    thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let first = receive(&theirs)?;
            accept(&theirs, &their_key, routes[1], &first, ACCEPTOR, soon(), || answer)
        });
        let opened = open(&ours, &our_key, routes[0], &first(), soon());
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

/// A caller without the key sends back what it gets.
#[test]
fn a_proof_that_is_sent_back_is_none() {
    let [ours, theirs] = Tcp::pair();
    let accepted = thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let first = receive(&theirs)?;
            accept(&theirs, &key(1), ROUTE, &first, ACCEPTOR, soon(), || panic!("nothing is proved"))
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
            accept(&theirs, &key(1), ROUTE, &first, ACCEPTOR, soon(), || Ok(Answer::Busy)).unwrap();
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
        open(&ours, &key(1), ROUTE, &first(), soon())
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
                let message = second(ACCEPTOR, &[3; NONCE]);
                let first = receive(&theirs).unwrap();
                let key = key(1);
                let transcript = Transcript { key: &key, route: ROUTE.bytes(), first: first.bytes(), second: message };
                let bytes = [&message[..], &transcript.prove(SECOND_PROOF, &[0])].concat();
                theirs.write_all(&bytes[..cut], soon()).unwrap();
            });
            open(&ours, &key(1), ROUTE, &first(), soon())
        });
        assert!(opened.is_err(), "{cut}");
    }
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
    assert_eq!(open(&ours, &key(1), ROUTE, &first(), soon()), Err(HelloError::Version(78)));
}

proptest! {
    /// Whatever comes in the place of each message, in pieces of any length: the handshake ends, and
    /// proves nothing.
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
                    accept(&theirs, &key(1), ROUTE, &first, ACCEPTOR, soon(), || panic!("nothing is proved"))
                });
                ours.write_all(&first().bytes(), soon()).unwrap();
                ours.write_all(&bytes, soon()).unwrap();
                ours.shut_down();
                return accepting.join().unwrap().is_err();
            }
            // In the place of the acceptor's messages: from the start, and behind a right one.
            scope.spawn(move || {
                receive(&theirs).unwrap();
                let right = if message == 2 { &[][..] } else { &second(ACCEPTOR, &[3; NONCE])[..] };
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
        nonce: [u8; NONCE],
        subject in proptest::option::of(any::<[u8; NONCE]>()),
        port in proptest::option::of((1_u8..5, 1_u16..)),
        garble in proptest::option::of((0..FIRST, 1_u8..)),
    ) {
        let slot = subject.map_or(Purpose::Link, Purpose::Confirm);
        let port = port.map(|(space, port)| Purpose::Port(Space::of_code(space).unwrap(), port));
        let target = Slot(if port.is_some() { 0 } else { slots.0 });
        let opener = Identity { slot: Slot(slots.1), instance };
        let first = First { purpose: port.unwrap_or(slot), target, opener, nonce };
        let mut bytes = first.bytes();
        prop_assert_eq!(First::parse(&bytes), Ok(first));
        if let Some((at, by)) = garble {
            bytes[at] ^= by;
            // Every byte means something.
            prop_assert_ne!(First::parse(&bytes), Ok(first));
        }
    }
}
