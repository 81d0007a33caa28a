use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// A link, and the socket of the other side.
fn link() -> (Stream, Tcp) {
    Stream::on_a_socket(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The two sides of a link.
fn links() -> (Stream, Stream) {
    let ((mut one, theirs), (mut other, _)) = (link(), link());
    other.socket = theirs;
    assert!(drain(&mut one) == (vec![], Ok(false)) && drain(&mut other) == (vec![], Ok(false)));
    (one, other)
}

fn header(number: u64) -> Header {
    Header([number, 1 << 63, 3, 4, 5, u64::MAX])
}

/// The bytes of a frame, written by hand.
fn frame(number: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    header(number).0.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    bytes.extend_from_slice(payload);
    bytes
}

fn push(link: &mut Stream, number: u64, payload: &[u8]) -> bool {
    link.try_push(&header(number), &Gather::of(&[Source::of(payload)]))
}

/// The numbers and payloads of frames.
type Frames = Vec<(u64, Vec<u8>)>;

/// The frames that a drain handles.
fn drain(link: &mut Stream) -> (Frames, Result<bool, Ended>) {
    let mut frames = Vec::new();
    let mut budget = usize::MAX;
    let handle = Each::new(|head, payload| {
        assert_eq!(*head, header(head.0[0]));
        let mut bytes = vec![0; payload.len()];
        payload.copy_to_slice(&mut bytes);
        frames.push((head.0[0], bytes));
    });
    let drained = link.drain(&mut budget, handle);
    (frames, drained)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn frames_go_out_as_the_format_says() {
    let (mut link, theirs) = link();
    assert!(push(&mut link, 1, b"") && push(&mut link, 2, b"two"));
    assert_eq!(theirs.read(&mut [0]).unwrap_err().errno, Errno::EAGAIN, "nothing is sent before the flush");
    link.flush().unwrap();
    let expected = [frame(1, b""), frame(2, b"two")].concat();
    let mut bytes = vec![0; expected.len()];
    theirs.read_exact(&mut bytes, soon()).unwrap();
    assert_eq!(bytes, expected);
    assert!(!link.has_unsent() && link.is_idle());
}

#[test]
fn frames_that_are_cut_at_any_byte_arrive_once_and_in_order() {
    let all = [frame(1, b""), frame(2, b"x"), frame(3, &[7; 100])].concat();
    for cut in 0..=all.len() {
        let (mut link, theirs) = link();
        let mut arrived = Vec::new();
        for part in [&all[..cut], &all[cut..]] {
            theirs.write_all(part, soon()).unwrap();
            let (frames, drained) = drain(&mut link);
            assert_eq!(drained, Ok(false));
            arrived.extend(frames);
        }
        assert_eq!(arrived, [(1, vec![]), (2, b"x".to_vec()), (3, vec![7; 100])], "cut at {cut}");
        assert!(link.is_idle() && !link.has_frames());
    }
}

#[test]
fn a_connection_that_ends_at_any_byte_gives_the_whole_frames_and_then_its_end() {
    let all = [frame(1, b""), frame(2, b"two")].concat();
    for cut in 0..=all.len() {
        let (mut link, theirs) = link();
        theirs.write_all(&all[..cut], soon()).unwrap();
        // A child that another test forks may have a copy of the descriptor for a moment.
        theirs.shut_down();
        drop(theirs);
        let (frames, drained) = drain(&mut link);
        let whole = usize::from(cut >= HEAD) + usize::from(cut == all.len());
        assert_eq!((frames.len(), drained), (whole, Err(Ended::Closed)), "ends at {cut}");
        assert!(link.has_frames() && !link.is_idle());
        assert_eq!(drain(&mut link), (vec![], Err(Ended::Closed)), "it stays ended");
        assert!(!push(&mut link, 1, b""));
    }
}

#[test]
fn a_frame_that_is_too_long_ends_the_link_before_its_bytes_come() {
    for len in [u32::try_from(MAX_PAYLOAD).unwrap() + 1, u32::MAX] {
        let (mut link, theirs) = link();
        theirs.write_all(&frame(1, b"one"), soon()).unwrap();
        theirs.write_all(&len.to_le_bytes(), soon()).unwrap();
        let (frames, drained) = drain(&mut link);
        assert_eq!((frames.len(), drained), (1, Err(Ended::Corrupt)));
        assert_eq!(link.flush(), Err(Ended::Corrupt));
    }
    let (mut link, theirs) = link();
    theirs.write_all(&frame(1, &vec![9; MAX_PAYLOAD]), soon()).unwrap();
    assert_eq!(drain(&mut link), (vec![(1, vec![9; MAX_PAYLOAD])], Ok(false)));
}

#[test]
fn a_peer_that_does_not_read_blocks_after_the_buffer_and_all_frames_arrive_later() {
    let (mut link, mut other) = links();
    let payload = vec![5; MAX_PAYLOAD];
    let mut sent = 0;
    for _ in 0..1000 {
        while push(&mut link, sent, &payload) {
            sent += 1;
        }
        link.flush().unwrap();
        if link.is_full {
            break;
        }
    }
    assert!(sent < 100 && link.is_idle() && !link.may_continue());
    assert!(!link.has_frames(), "the agent sleeps until the socket is writable");
    let mut arrived = 0;
    while arrived < sent {
        let (frames, drained) = drain(&mut other);
        assert_eq!(drained, Ok(false));
        for (number, bytes) in frames {
            assert_eq!((number, bytes.len()), (arrived, MAX_PAYLOAD));
            arrived += 1;
        }
        assert_eq!(drain(&mut link), (vec![], Ok(false)));
        assert_eq!(link.deliver(Transmit::Idle), Ok(false));
    }
    assert!(!link.has_unsent() && link.has_room());
}

#[test]
fn a_large_payload_goes_out_from_where_it_lies_behind_the_frames_that_wait() {
    let (mut link, theirs) = link();
    let payload: Vec<u8> = (0..LARGE).map(|at| (at * 7).to_le_bytes()[0]).collect();
    let parts = [&payload[..1], &payload[1..5000], &[], &payload[5000..]].map(Source::of);
    assert!(push(&mut link, 1, b"small"));
    assert!(link.try_push(&header(2), &Gather::of(&parts)));
    assert!(!link.has_unsent(), "sent without a flush, and without a copy");
    let expected = [frame(1, b"small"), frame(2, &payload)].concat();
    let mut bytes = vec![0; expected.len()];
    theirs.read_exact(&mut bytes, soon()).unwrap();
    assert!(bytes == expected);
}

#[test]
fn large_and_small_frames_arrive_whole_and_in_order_however_much_the_kernel_takes() {
    let (mut link, mut other) = links();
    let payload: Vec<u8> = (0..MAX_PAYLOAD + 256).map(|at| (at * 7 + at / 256).to_le_bytes()[0]).collect();
    let part = |number: u64| {
        let start = usize::try_from(number % 251).unwrap();
        let len = [MAX_PAYLOAD, 3, LARGE, 0, LARGE + 1, LARGE - 1][usize::try_from(number % 6).unwrap()];
        &payload[start..start + len]
    };
    let (mut pushed, mut arrived, mut copied) = (0, 0, 0);
    while arrived < 1000 {
        loop {
            let (one, two) = part(pushed).split_at(part(pushed).len() / 3);
            if !link.try_push(&header(pushed), &Gather::of(&[one, two].map(Source::of))) {
                break;
            }
            copied += u32::from(part(pushed).len() >= LARGE && link.has_unsent());
            pushed += 1;
            if pushed % 4 == 0 {
                assert!(link.deliver(Transmit::Idle).is_ok());
            }
        }
        assert!(link.deliver(Transmit::Blocked).is_ok());
        let (frames, drained) = drain(&mut other);
        assert_eq!(drained, Ok(false));
        for (number, bytes) in frames {
            assert!(number == arrived && bytes == part(number), "frame {number} after {arrived}");
            arrived += 1;
        }
        assert_eq!(drain(&mut link), (vec![], Ok(false)));
    }
    assert!(copied > 0, "the kernel has taken a part of a large frame, too");
}

#[test]
fn a_payload_that_is_not_mapped_any_more_faults_as_a_copy_of_it_does() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
    use nix::sys::signal::Signal;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    let (ours, theirs) = link();
    let len = core::num::NonZeroUsize::new(LARGE).unwrap();
    // SAFETY: `mmap` requires that the mapping replaces none: the kernel chooses the place.
    let mapped = unsafe { mmap_anonymous(None, len, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) }.unwrap();
    // SAFETY: `from_raw` requires readable bytes. This test breaks that, as an application does
    // that unmaps registered memory: the accesses fault, which ends a child of this process.
    let gone = [unsafe { Source::from_raw(mapped.as_ptr().cast(), LARGE) }];
    let gone = Gather::of(&gone);
    assert_eq!(ours.socket.write_from([b"", b""], b"", &gone).unwrap_err().errno, Errno::EFAULT);
    assert_eq!(theirs.read(&mut [0]).unwrap_err().errno, Errno::EAGAIN);
    // SAFETY: `fork` requires that the child calls no function that may need a lock of another
    // thread: it makes system calls, copies, and allocates, which glibc allows.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // A sanitizer has a handler, which would end the process in another way.
            // SAFETY: signal requires a handler that may run at any time: SIG_DFL is none.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            // A child has none of its parent's sockets.
            let (mut link, _theirs) = link();
            let status = i32::from(link.try_push(&header(1), &gone));
            // SAFETY: _exit takes a number.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None).unwrap();
            assert!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGSEGV, _)), "{ended:?}");
        }
    }
}

/// A handler that has every large frame in parts, and puts them together again.
#[derive(Default)]
struct Parts {
    /// The header and the bytes of each frame.
    frames: Vec<(Header, Vec<u8>)>,
    /// The lengths of the places that are given, in turn; none for 0.
    places: Vec<usize>,
    /// Calls of `fill`.
    calls: usize,
    /// Calls of `handle`, and of `fill` with bytes.
    handled: usize,
}

impl Parts {
    /// The word of a header with the offset, of a frame from its start on (`header`).
    const WHOLE: u64 = 5;

    fn add(&mut self, header: &Header, bytes: &[u8]) {
        self.handled += 1;
        if header.0[4] == Self::WHOLE {
            return self.frames.push((*header, bytes.to_vec()));
        }
        let (first, all) = self.frames.last_mut().unwrap();
        assert_eq!(*header, first.behind(u32::try_from(all.len()).unwrap()));
        all.extend_from_slice(bytes);
    }
}

impl Handler for &mut Parts {
    fn handle(&mut self, header: &Header, payload: Source<'_>) {
        let mut bytes = vec![0; payload.len()];
        payload.copy_to_slice(&mut bytes);
        self.add(header, &bytes);
    }

    fn may_cut(&self, header: &Header, len: usize) -> bool {
        assert!((LARGE..=MAX_PAYLOAD).contains(&len));
        // A frame of an odd number is taken whole.
        header.0[0] % 2 == 0
    }

    fn fill(&mut self, header: &Header, len: usize, read: impl FnOnce(Target<'_>) -> usize) -> Option<usize> {
        self.calls += 1;
        let place = self.places.get(self.calls % self.places.len().max(1)).copied().unwrap_or(len).min(len);
        if place == 0 {
            return None;
        }
        let mut bytes = vec![0; place];
        let count = read(Target::of(&mut bytes));
        if count > 0 {
            self.add(header, &bytes[..count]);
        }
        Some(count)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 8, ..ProptestConfig::default() })]

    #[test]
    fn frames_that_are_handled_in_parts_arrive_whole_and_in_order(
        lens in proptest::collection::vec(
            prop_oneof![Just(MAX_PAYLOAD), Just(LARGE), Just(LARGE - 1), Just(3), LARGE..MAX_PAYLOAD, 0_usize..200],
            1..8,
        ),
        cuts in proptest::collection::vec(prop_oneof![1_usize..200, 1_usize..100_000], 1..12),
        places in proptest::collection::vec(prop_oneof![Just(usize::MAX), Just(0), 1_usize..70_000], 0..4),
        budget in prop_oneof![Just(usize::MAX), 1_usize..100_000],
        looks in any::<bool>(),
    ) {
        let bytes = |len: usize| (0..len).map(|at| (at * 7 + at / 256).to_le_bytes()[0]).collect::<Vec<_>>();
        let (mut link, theirs) = link();
        let mut parts = Parts { places, ..Parts::default() };
        let sent: Vec<u8> = (0..).zip(&lens).flat_map(|(number, len)| frame(number, &bytes(*len))).collect();
        let (mut at, mut turn) = (0, 0);
        while at < sent.len() {
            let end = sent.len().min(at + cuts[turn % cuts.len()]);
            theirs.write_all(&sent[at..end], soon()).unwrap();
            (at, turn) = (end, turn + 1);
            loop {
                if looks && link.is_idle() {
                    break;
                }
                let before = parts.handled;
                let more = link.drain(&mut budget.clone(), &mut parts).unwrap();
                if !more && parts.handled == before {
                    break;
                }
            }
        }
        prop_assert!(link.is_idle() && link.rest.is_none() && !link.has_frames());
        let whole = parts.frames.iter().map(|(_, bytes)| bytes.len()).collect::<Vec<_>>();
        prop_assert_eq!(whole, lens);
        for (number, (head, payload)) in (0..).zip(&parts.frames) {
            prop_assert_eq!(*head, header(number));
            prop_assert!(*payload == bytes(payload.len()));
        }
    }
}

/// Fills the socket and some of the link's own buffer, and returns the number of frames. The side
/// is blocked then.
fn fill(link: &mut Stream) -> u64 {
    for sent in 0.. {
        assert!(push(link, sent, &[5; 1 << 12]));
        let more = link.deliver(Transmit::Blocked).unwrap();
        if link.has_unsent() {
            assert!(!more);
            return sent + 1;
        }
    }
    0
}

#[test]
fn a_full_socket_is_not_written_again_before_a_look_finds_it_writable() {
    let (mut link, mut other) = links();
    let sent = fill(&mut link);
    let unsent = |link: &Stream| link.out.unsent().iter().map(|part| part.len()).sum::<usize>();
    assert!(link.is_idle() && !link.may_continue() && !link.has_work());
    assert!(push(&mut link, sent, b"") && !link.may_continue(), "a new frame waits behind the others");
    let before = unsent(&link);
    let (frames, _) = drain(&mut other);
    assert!(!frames.is_empty());
    // The socket is writable, but nobody has looked.
    assert_eq!(link.deliver(Transmit::Blocked), Ok(false));
    assert_eq!(unsent(&link), before);
    assert!(!link.is_idle() && link.may_continue() && link.has_work());
    assert_eq!(link.deliver(Transmit::Blocked), Ok(true), "there is room for more");
    assert_eq!(unsent(&link), 0);
}

#[test]
fn a_full_socket_is_read_and_its_end_is_noticed() {
    let (mut link, mut other) = links();
    fill(&mut link);
    assert!(push(&mut other, 7, b"seven"));
    assert_eq!(other.deliver(Transmit::Idle), Ok(false));
    assert!(!link.is_idle());
    assert_eq!(drain(&mut link), (vec![(7, b"seven".to_vec())], Ok(false)));
    assert!(link.is_idle() && !link.may_continue());
    drop(other);
    assert!(!link.is_idle());
    assert_eq!(drain(&mut link), (vec![], Err(Ended::Closed)));
}

#[test]
fn a_budget_stops_a_drain_and_the_rest_comes_later() {
    let (mut link, theirs) = link();
    theirs.write_all(&[frame(1, &[1; 100]), frame(2, b"")].concat(), soon()).unwrap();
    let mut numbers = Vec::new();
    let mut budget = 1;
    assert_eq!(link.drain(&mut budget, Each::new(|head, _| numbers.push(head.0[0]))), Ok(true));
    assert_eq!((numbers.as_slice(), budget), (&[1][..], 0));
    assert!(link.has_frames() && !link.is_idle());
    assert_eq!(drain(&mut link).0, [(2, vec![])]);
}

#[test]
fn a_look_at_a_socket_finds_what_came_and_the_drain_after_it_does_not_read_again() {
    let (mut link, theirs) = link();
    assert!(link.is_idle() && !link.has_frames());
    theirs.write_all(&frame(1, b""), soon()).unwrap();
    assert!(!link.is_idle());
    theirs.write_all(&frame(2, b""), soon()).unwrap();
    drop(theirs);
    assert_eq!(drain(&mut link), (vec![(1, vec![])], Ok(false)));
    assert!(link.has_frames(), "a thread that goes to sleep reads the socket first");
    assert_eq!(drain(&mut link), (vec![(2, vec![])], Err(Ended::Closed)));
}

/// The length of a small buffer, and of its longest frame.
const CAPACITY: usize = 1000;
const LONGEST: usize = 90;

/// A use of the buffer.
#[derive(Debug, Clone)]
enum Step {
    Push(usize),
    Send(usize),
}

proptest! {
    #[test]
    fn the_send_buffer_is_a_queue(
        steps in proptest::collection::vec(
            prop_oneof![
                (1_usize..=LONGEST).prop_map(Step::Push),
                Just(Step::Push(LONGEST)),
                (0_usize..3 * LONGEST).prop_map(Step::Send),
            ],
            0..120,
        ),
    ) {
        let mut buffer = SendBuffer::new(CAPACITY);
        let mut expected = std::collections::VecDeque::new();
        let mut next = 0_u8;
        for step in steps {
            match step {
                Step::Push(len) => {
                    let fits = buffer.fits(len);
                    let space = buffer.reserve(len);
                    prop_assert_eq!(space.is_some(), fits);
                    if let Some(space) = space {
                        next = next.wrapping_add(1);
                        space.fill(next);
                        buffer.push(len);
                        expected.extend(std::iter::repeat_n(next, len));
                    } else {
                        // Two frames less the buffer's end may be lost to its shape, no more.
                        prop_assert!(expected.len() + 2 * LONGEST > CAPACITY);
                    }
                }
                Step::Send(count) => {
                    let count = count.min(expected.len());
                    buffer.advance(count);
                    expected.drain(..count);
                }
            }
            let [one, other] = buffer.unsent();
            prop_assert!(one.iter().chain(other).eq(expected.iter()));
            prop_assert_eq!(buffer.is_empty(), expected.is_empty());
        }
    }

    #[test]
    fn any_bytes_are_frames_or_the_end(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        small in any::<bool>(),
        cuts in proptest::collection::vec(0_usize..2000, 0..5),
    ) {
        let mut bytes = bytes;
        if small && bytes.len() >= 4 {
            bytes[1..4].fill(0);
        }
        let (mut link, theirs) = link();
        let mut at = 0;
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let end = cut.clamp(at, bytes.len());
            theirs.write_all(&bytes[at..end], soon()).unwrap();
            at = end;
            let mut budget = usize::MAX;
            let mut handled = 0;
            let drained = link.drain(&mut budget, Each::new(|_, payload| handled += HEAD + payload.len()));
            prop_assert!(handled <= bytes.len());
            prop_assert!(matches!(drained, Ok(false) | Err(Ended::Corrupt)));
        }
    }
}
