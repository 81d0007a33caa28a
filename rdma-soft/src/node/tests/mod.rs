//! Tests with two processes. The test binary runs itself again as the peer, in one of the roles
//! below. The two processes exchange over the child's standard streams the data that verbs programs
//! exchange.

mod far;
mod hostile;
mod side;

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdma_sys::*;
use rdma_test_support::{Peer, first, passes_alone, role, until};

use self::side::{LONG, Side, pair, spawn};
use super::device::Node;
use super::*;
use crate::engine::{Event, Op, Slot};
use crate::link::Link;
use crate::link::slot;
use crate::link::wire::Body;

fn become_a_stranger() {
    // SAFETY: geteuid has no requirements.
    let result = if unsafe { libc::geteuid() } == 0 {
        // SAFETY: setuid takes a number; this process gives up all its rights.
        unsafe { libc::setuid(65_534) }
    } else {
        0
    };
    assert_eq!(result, 0);
    // SAFETY: PR_SET_DUMPABLE takes numbers and reads no memory.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

fn slot_of(qpn: u64) -> Slot {
    Slot::of_qpn(u32::try_from(qpn).unwrap())
}

/// Runs this process as the peer, in the role that the test names.
#[test]
fn peer() {
    let Some(role) = role() else { return };
    let mut first = first();
    if role == "stranger" || role == "crowd" {
        become_a_stranger();
    }
    let side = Side::after(4 << 20, if role == "many" { 5000 } else { 0 });
    let theirs = first.hear_numbers();
    if role == "impostor" {
        side.node.lock().add_slot(slot_of(theirs[0]));
    }
    side.connect(u32::try_from(theirs[0]).unwrap());
    match role.as_str() {
        // Sends each message back, up to and including a message of one byte.
        "echo" => {
            side.recv(1, 0, 1 << 20);
            first.tell(&side.describe());
            loop {
                let wc = side.wait();
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
                if wc.opcode != ibv_wc_opcode::IBV_WC_RECV {
                    continue;
                }
                side.recv(1, 0, 1 << 20);
                side.send(2, 0, wc.byte_len as usize);
                if wc.byte_len == 1 {
                    side.wait_ok();
                    return;
                }
            }
        }
        // Corrupts the shared link.
        "vandal" => {
            first.tell(&side.describe());
            side.recv(1, 0, 64);
            side.wait_ok();
            first.try_hear();
            let state = side.node.lock();
            state.links().for_each(Link::vandalise);
            // The held lock keeps this process's agent from writing correct words again.
            first.try_hear();
            drop(state);
        }
        // Does nothing until told to end.
        "sleep" | "many" | "impostor" => {
            first.tell(&side.describe());
            first.try_hear();
        }
        // Takes one more slot when the link is up already, and sends from that slot.
        "grower" => {
            first.tell(&side.describe());
            let theirs = first.hear_numbers();
            let other = Side::after(4 << 20, 5000);
            other.connect(u32::try_from(theirs[0]).unwrap());
            first.tell(&other.describe());
            first.try_hear();
            other.send(1, 0, 8);
            first.tell(&other.wait().status.0.to_string());
            first.try_hear();
        }
        // Sends grants that were not requested.
        "generous" => {
            first.tell(&side.describe());
            side.recv(1, 0, 64);
            side.wait_ok();
            let file = std::fs::File::open("/dev/null").unwrap();
            for key in 0..500 {
                let body = Body::default().u64(key << 12 | 7).u64(0).u64(4096);
                let state = side.node.lock();
                let peer = state.peers().next().unwrap();
                if peer.send_region(&body, file.as_fd()).is_err() {
                    drop(state);
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            side.send(2, 0, 8);
            side.wait_ok();
            first.try_hear();
        }
        // Has no free descriptor for the file of a requested region.
        "poor" => {
            first.tell(&side.describe());
            side.send(1, 0, 8);
            side.wait_ok();
            let limit = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
            // SAFETY: setrlimit reads one limit: `limit` is live.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
            for _ in 0..5 {
                let rkey = u32::try_from(theirs[2]).unwrap();
                side.post(1, Op::Write, 0, 8, theirs[1], rkey);
                first.tell(&side.wait().status.0.to_string());
                std::thread::sleep(Duration::from_millis(10));
            }
            first.try_hear();
        }
        // Connects many times and sends nothing.
        "crowd" => {
            let sockets: Vec<_> =
                (0..40).map(|_| slot::connect(slot_of(theirs[0]), Duration::from_secs(5)).unwrap()).collect();
            first.tell("0");
            first.try_hear();
            drop(sockets);
        }
        // Opens the link itself, with rings of its own size, then echoes.
        "first" => {
            first.tell(&side.describe());
            side.recv(1, 2 << 20, 1 << 20);
            side.send(2, 0, 1 << 20);
            loop {
                let wc = side.wait();
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
                if wc.opcode == ibv_wc_opcode::IBV_WC_RECV {
                    side.recv(1, 2 << 20, 1 << 20);
                    side.send(3, 2 << 20, wc.byte_len as usize);
                    if wc.byte_len == 1 {
                        while side.wait_ok() != 3 {}
                        return;
                    }
                }
            }
        }
        // Connects at the same time as the other process.
        "race" => {
            first.tell(&side.describe());
            side.exchange(200);
            first.hear();
        }
        // May neither trace the other process nor be traced by it.
        "stranger" => {
            first.tell(&side.describe());
            side.send(1, 0, 8);
            first.tell(&side.wait().status.0.to_string());
            first.try_hear();
        }
        // Sends until it is killed.
        "flood" => {
            first.tell(&side.describe());
            for i in 0.. {
                side.send(i, 0, 1 << 16);
                if side.wait().status != ibv_wc_status::IBV_WC_SUCCESS {
                    return;
                }
            }
        }
        hostile => hostile::play(hostile, &side, &mut first, &theirs),
    }
}

/// The number of this process's links to another process.
fn links_to(side: &Side, pid: i32) -> usize {
    side.node.lock().peers().filter(|peer| peer.pid == pid).count()
}

/// The number of open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// KiB of shared memory that this process has mapped and that are resident.
fn shared_memory() -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_ours = false;
    let mut total = 0;
    for line in maps.lines() {
        if line.split_whitespace().next().is_some_and(|word| word.contains('-')) {
            is_ours = line.contains("rdma-shared");
        } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| is_ours) {
            total += size.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
        }
    }
    total
}

#[test]
fn messages_of_all_sizes_come_back() {
    let (side, peer, _) = pair("echo", 4 << 20);
    for len in [64, 0, 8, 4096, 65_536, 65_537, 1 << 20, 1] {
        let data: Vec<u8> = (0..len).map(|i: usize| (i * 7 + len).to_ne_bytes()[0]).collect();
        side.set(0, &data);
        side.recv(1, 2 << 20, 1 << 20);
        side.send(2, 0, len);
        let mut ids = [side.wait_ok(), side.wait_ok()];
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        assert_eq!(side.get(2 << 20, len), data);
    }
    peer.finish();
}

#[test]
fn rings_of_four_kilobytes_carry_messages_of_a_megabyte() {
    let side = Side::new(4 << 20);
    let mut peer = Peer::start_with("node::tests::peer", "first", |command| {
        command.env("RDMA_SOFT_RING", "4096");
    });
    side.recv_before_connect();
    peer.tell(&side.describe());
    let theirs = peer.hear_numbers();
    side.connect(u32::try_from(theirs[0]).unwrap());
    let wc = side.wait();
    assert_eq!((wc.status, wc.byte_len), (ibv_wc_status::IBV_WC_SUCCESS, 1 << 20));
    for round in 0..3 {
        side.recv(1, 2 << 20, 1 << 20);
        side.send(2, 0, (1 << 20) - round);
        side.wait_ok();
        side.wait_ok();
    }
    side.recv(1, 2 << 20, 1 << 20);
    side.send(2, 0, 1);
    side.wait_ok();
    side.wait_ok();
    peer.finish();
}

/// Both processes may open a link at the same time; one link results.
#[test]
fn both_may_connect_at_once() {
    for _ in 0..20 {
        let (side, mut peer, _) = pair("race", 4 << 20);
        side.exchange(200);
        assert_eq!(links_to(&side, peer.pid()), 1);
        peer.tell("0");
        peer.finish();
    }
}

/// Runs in a process of its own, because other tests open and close descriptors.
#[test]
#[ignore = "run by a_link_costs_little"]
fn count_what_links_cost() {
    Side::new(4096);
    drop(spawn("sleep"));
    let (before, memory) = (descriptors(), shared_memory());
    let mut peers: Vec<_> = (0..4).map(|_| pair("sleep", 4096)).collect();
    for (side, _, theirs) in &peers {
        side.post(1, Op::Write, 0, 8, theirs[1], u32::try_from(theirs[2]).unwrap());
        side.wait_ok();
    }
    // Each peer has two pipes to this process, and each of the four sides here has a region.
    // Handshakes use more descriptors for a moment.
    let fixed = before + 4 * 2 + 4;
    until("four links have sixteen descriptors", || descriptors() <= fixed + 4 * 4);
    // Each link also maps a page, the region of this side, and the 4 MiB region of the peer. The
    // rest are rings and the peer's directory, whose cost the two processes share.
    let each = ((shared_memory() - memory) / 4).saturating_sub((4 << 10) + 4);
    assert!(each <= 528, "{each} KiB");
    for (_, peer, _) in &mut peers {
        peer.tell("0");
    }
}

#[test]
fn a_link_costs_little() {
    passes_alone(&["node::tests::count_what_links_cost"], &[]);
}

#[test]
fn a_sleeping_process_is_written_to_and_read_from() {
    let (side, mut peer, theirs) = pair("sleep", 1 << 20);
    let rkey = u32::try_from(theirs[2]).unwrap();
    for len in [8, 5000, 1 << 20] {
        let data: Vec<u8> = (0..len).map(|i: usize| (i * 13 + len).to_ne_bytes()[0]).collect();
        side.set(0, &data);
        side.post(1, Op::Write, 0, len, theirs[1], rkey);
        assert_eq!(side.wait_ok(), 1);
        side.set(0, &vec![0; len]);
        side.post(2, Op::Read, 0, len, theirs[1], rkey);
        assert_eq!(side.wait_ok(), 2);
        assert_eq!(side.get(0, len), data);
        // Long enough for every agent to fall asleep.
        std::thread::sleep(Duration::from_millis(20));
    }
    peer.tell("0");
    peer.finish();
}

static EVENTS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Waits for a completion event without polling, so that only the agent can report one.
fn wait_for_event(side: &Side) {
    let start = Instant::now();
    loop {
        let mut events = EVENTS.lock().unwrap();
        if let Some(at) = events.iter().position(|token| *token == side.token) {
            events.swap_remove(at);
            return;
        }
        drop(events);
        assert!(start.elapsed() < LONG, "no event");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn arm(side: &Side) {
    side.node.set_sink(|event| {
        if let Event::Completion { token, .. } = event {
            EVENTS.lock().unwrap().push(token);
        }
        None
    });
    side.node.with(|engine| engine.arm_cq(side.cq, false)).unwrap();
    side.node.prepare_to_sleep();
}

#[test]
fn the_agent_brings_completions_to_who_does_not_poll() {
    let (side, mut peer, _) = pair("echo", 4 << 20);
    for round in 0..50 {
        // Polls in some rounds, so that the agent is in each of its states.
        for _ in 0..(round % 3) * 40 {
            assert!(side.poll().is_none());
        }
        side.recv(1, 2 << 20, 64);
        side.send(2, 0, 64);
        side.wait_ok();
        arm(&side);
        if side.poll().is_none() {
            wait_for_event(&side);
            side.wait_ok();
        }
    }
    // Failures that only a timer can detect: the peer is gone, or never existed.
    peer.kill();
    let side = Side::new(4096);
    side.connect((4094 << 12) | 5);
    arm(&side);
    side.send(1, 0, 8);
    wait_for_event(&side);
    assert_eq!(side.wait().status, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn an_idle_process_does_nothing() {
    let (side, mut peer, theirs) = pair("sleep", 4096);
    side.post(1, Op::Write, 0, 8, theirs[1], u32::try_from(theirs[2]).unwrap());
    side.wait_ok();
    let switches = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", peer.pid())).unwrap();
        let status = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap());
        let agent = status.into_iter().find(|status| status.starts_with("Name:\trdma-soft\n")).unwrap();
        let line = agent.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    std::thread::sleep(Duration::from_millis(50));
    let before = switches();
    std::thread::sleep(Duration::from_millis(500));
    assert!(switches() - before <= 1, "an idle agent woke {} times in half a second", switches() - before);
    peer.tell("0");
    peer.finish();
}

/// Mapping takes long, so a peer that sends grants without end would keep the agent busy.
#[test]
#[ignore = "run by grants_that_nobody_asked_for"]
fn a_grant_that_nobody_asked_for_is_not_mapped() {
    static WARNINGS: AtomicUsize = AtomicUsize::new(0);
    let count = rdma_test_support::OnEvent(|event: &tracing::Event<'_>| {
        let is_warning = *event.metadata().level() <= tracing::Level::WARN;
        WARNINGS.fetch_add(usize::from(is_warning), Ordering::Relaxed);
    });
    tracing::subscriber::set_global_default(count).unwrap();
    let (side, mut peer, _) = pair("generous", 4096);
    side.recv(1, 0, 64);
    side.send(2, 0, 8);
    side.wait_ok();
    side.wait_ok();
    // By then the agent has handled all packets that the peer sent before.
    until("the agent sleeps", || side.node.lock().agent == state::Agent::Asleep);
    assert_eq!(WARNINGS.load(Ordering::Relaxed), 0, "a file that cannot be mapped was looked at");
    peer.tell("0");
    peer.finish();
}

#[test]
fn grants_that_nobody_asked_for() {
    passes_alone(&["node::tests::a_grant_that_nobody_asked_for_is_not_mapped"], &[]);
}

#[test]
fn a_process_with_many_queue_pairs_has_several_numbers() {
    let (side, mut peer, theirs) = pair("many", 4096);
    let (last, rkey) = (theirs[0], u32::try_from(theirs[2]).unwrap());
    side.set(0, b"to the second slot");
    side.post(1, Op::Write, 0, 18, theirs[1], rkey);
    side.wait_ok();
    assert_ne!(last >> 12, 0);
    let state = side.node.lock();
    let slots = state.peers().find(|p| p.pid == peer.pid()).unwrap().slots.clone();
    drop(state);
    assert_eq!(slots.len(), 2);
    assert_eq!(u64::from(slots[1].0), last >> 12);
    peer.tell("0");
    peer.finish();
}

#[test]
fn a_process_without_descriptors_keeps_its_links() {
    let side = Side::new(4096);
    let mut peer = spawn("poor");
    peer.tell(&side.describe());
    let theirs = peer.hear_numbers();
    side.connect(u32::try_from(theirs[0]).unwrap());
    side.recv(1, 0, 8);
    side.wait_ok();
    for _ in 0..5 {
        assert_eq!(peer.hear_numbers(), [0]);
    }
    peer.tell("0");
    peer.finish();
}

#[test]
fn a_number_that_a_peer_gets_later_is_served_on_the_link_that_is_there() {
    let (side, mut peer, theirs) = pair("grower", 4 << 20);
    side.post(1, Op::Write, 0, 18, theirs[1], u32::try_from(theirs[2]).unwrap());
    side.wait_ok();
    let other = Side::new(4096);
    peer.tell(&other.describe());
    let theirs = peer.hear_numbers();
    other.connect(u32::try_from(theirs[0]).unwrap());
    other.post(1, Op::Write, 0, 18, theirs[1], u32::try_from(theirs[2]).unwrap());
    other.wait_ok();
    other.recv(2, 0, 8);
    peer.tell("0");
    assert_eq!(other.wait_ok(), 2);
    assert_eq!(peer.hear_numbers(), [0]);
    peer.tell("0");
    peer.finish();
}

/// A peer that claims this process's slot, too, gets no frames for that slot.
#[test]
fn an_impostor_has_no_number_but_its_own() {
    let (side, mut peer, theirs) = pair("impostor", 4 << 20);
    side.post(1, Op::Write, 0, 18, theirs[1], u32::try_from(theirs[2]).unwrap());
    side.wait_ok();
    let [a, b] = [Side::new(4096), Side::new(4096)];
    a.connect(b.qpn);
    b.connect(a.qpn);
    b.recv(2, 0, 8);
    a.send(3, 0, 8);
    assert_eq!(a.wait_ok(), 3);
    assert_eq!(b.wait_ok(), 2);
    let pid = peer.pid();
    let state = side.node.lock();
    assert!(state.peers().filter(|p| p.pid == pid).all(|p| p.slots == [slot_of(theirs[0])]));
    drop(state);
    peer.tell("0");
    peer.finish();
}

/// Processes of another user that connect and send nothing keep no other process out.
#[test]
fn strangers_who_say_nothing_keep_nobody_out() {
    let side = Side::new(4096);
    let mut crowd = spawn("crowd");
    crowd.tell(&side.describe());
    crowd.hear();
    let start = Instant::now();
    let mut peer = spawn("sleep");
    peer.tell(&side.describe());
    peer.hear();
    // This peer opens the link.
    let pid = peer.pid();
    while links_to(&side, pid) == 0 {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    peer.tell("0");
    peer.finish();
    crowd.tell("0");
    crowd.finish();
}

/// The peer overwrites the words of the ring: only the link to that peer ends.
#[test]
fn a_vandal_loses_its_link() {
    let (side, mut peer, _) = pair("vandal", 4096);
    side.send(1, 0, 8);
    side.wait_ok();
    // No receive is posted for this send, so it is outstanding when the peer corrupts the ring.
    side.send(2, 0, 8);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        assert!(side.poll().is_none());
    }
    peer.tell("0");
    let status = side.wait().status;
    assert_eq!(status, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    peer.tell("0");
    peer.finish();
}

#[test]
fn a_stopped_process_is_waited_for() {
    let (side, mut peer, theirs) = pair("sleep", 4096);
    let rkey = u32::try_from(theirs[2]).unwrap();
    side.post(1, Op::Read, 0, 8, theirs[1], rkey);
    side.wait_ok();
    peer.stop();
    side.recv(9, 0, 8);
    side.post(2, Op::Read, 0, 8, theirs[1], rkey);
    side.send(3, 0, 8);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        if let Some(wc) = side.poll() {
            // Shared memory can be read while its owner is stopped; a send waits for the owner.
            assert_eq!((wc.wr_id, wc.status), (2, ibv_wc_status::IBV_WC_SUCCESS));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    peer.resume();
    peer.kill();
    while side.wait().wr_id != 3 {}
}

/// A peer is waited for even if there is no link to it yet. The test outlasts the time limit of a
/// handshake.
#[test]
fn a_process_that_was_stopped_before_the_first_message_is_waited_for() {
    let (side, mut peer, theirs) = pair("sleep", 4096);
    peer.stop();
    side.post(1, Op::Write, 0, 8, theirs[1], u32::try_from(theirs[2]).unwrap());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(5_500) {
        assert!(side.poll().is_none());
        std::thread::sleep(Duration::from_millis(10));
    }
    peer.resume();
    assert_eq!(side.wait_ok(), 1);
    peer.tell("0");
    peer.finish();
}

#[test]
fn a_killed_process_is_noticed_and_leaves_nothing() {
    for round in 0..12_u64 {
        let side = Side::new(1 << 20);
        let mut peer = spawn("flood");
        peer.tell(&side.describe());
        let theirs = peer.hear_numbers();
        let slot = theirs[0] >> 12;
        side.connect(u32::try_from(theirs[0]).unwrap());
        for i in 0..32 {
            side.recv(i, 0, 1 << 16);
        }
        // Some peers die before the first frame, some in the middle of one.
        let start = Instant::now();
        let mut received = 0;
        while start.elapsed() < Duration::from_micros(round * 700) {
            if let Some(wc) = side.poll() {
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
                side.recv(1, 0, 1 << 16);
                received += 1;
            }
        }
        peer.kill();
        // The peer's death is noticed at some time: before, during or after the post.
        side.send(77, 0, 8);
        let wc = loop {
            let wc = side.wait();
            if wc.wr_id == 77 {
                break wc;
            }
        };
        assert!(
            wc.status == ibv_wc_status::IBV_WC_RETRY_EXC_ERR || wc.status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
            "{:?} after {received} messages",
            wc.status
        );
        let pid = peer.pid();
        assert_eq!(links_to(&side, pid), 0);
        let names = std::fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!names.lines().any(|line| line.ends_with(&format!("@rdma-soft-{slot}"))));
    }
}

/// Two processes get no link if the kernel does not let one of them trace the other.
#[test]
fn a_process_of_other_rights_is_refused() {
    let side = Side::new(4096);
    let mut peer = spawn("stranger");
    peer.tell(&side.describe());
    let theirs = peer.hear_numbers();
    side.connect(u32::try_from(theirs[0]).unwrap());
    side.send(1, 0, 8);
    assert_eq!(side.wait().status, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    // The peer's send fails in the same way.
    assert_eq!(peer.hear_numbers(), [u64::from(ibv_wc_status::IBV_WC_RETRY_EXC_ERR.0)]);
    peer.finish();
}

#[test]
fn a_forked_child_does_not_get_the_parent_s_node() {
    let side = Side::new(4096);
    // SAFETY: fork requires a child that calls only async-signal-safe functions: the child reads a
    // few words and calls _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(NODE.get().is_some());
        // SAFETY: _exit has no requirements; it ends the child without running anything else.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waitpid requires a place for the status: `status` is a live int.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    assert!(Node::get().is_ok_and(|node| std::ptr::eq(node, side.node)));
    assert!(side.poll().is_none());
}
