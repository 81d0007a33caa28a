//! Connections between two processes: the death of one in every state, a stopped process, forks;
//! and what the environment changes: timeouts, and the number of devices.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use rdma_sys::*;
use rdma_test_support::{Peer, first, passes_alone, role};

use crate::cm_support::*;

const TCP: rdma_port_space = rdma_port_space::RDMA_PS_TCP;
const UDP: rdma_port_space = rdma_port_space::RDMA_PS_UDP;

/// A second process with an id and a listener.
struct Puppet(Peer);

impl Puppet {
    fn start() -> Self {
        Self(Peer::start("cm_processes::other_process", "puppet"))
    }

    fn ask(&mut self, command: &str) -> String {
        self.0.ask(command)
    }

    fn tell(&mut self, command: &str) {
        assert_eq!(self.ask(command), "0", "{command}");
    }

    fn expect(&mut self, event: Event) {
        assert_eq!(self.ask("take"), format!("{} 0", name(event)));
    }
}

/// The other process runs only this test.
#[test]
fn other_process() {
    if role().is_none() {
        return;
    }
    let mut first = first();
    let channel = Channel::new();
    let (mut listener, mut id): (Option<Id>, Option<Id>) = (None, None);
    while let Some(line) = first.try_hear() {
        let mut words = line.split(' ');
        let (command, number) = (words.next().unwrap(), words.next().map_or(0, |word| word.parse::<u16>().unwrap()));
        let current = || id.as_ref().unwrap();
        let answer = match command {
            "listen" => {
                let asked = channel.tcp();
                assert_eq!(asked.bind(loopback(0)), 0);
                assert_eq!(asked.listen(i32::from(number)), 0);
                let port = asked.port();
                listener = Some(asked);
                port.to_string()
            }
            "resolve" => {
                let asking = channel.tcp();
                resolve(&asking, &channel, loopback(number));
                id = Some(asking);
                "0".to_owned()
            }
            "take" => {
                let told = channel.next();
                if told.code == Event::RDMA_CM_EVENT_CONNECT_REQUEST {
                    id = Some(told.request());
                }
                format!("{} {}", name(told.code), told.status)
            }
            "connect" => current().connect(b"from another process", 3).to_string(),
            "accept" => current().accept(b"to another process", 4).to_string(),
            "establish" => current().establish().to_string(),
            "disconnect" => current().disconnect().to_string(),
            _ => format!("what is {line}?"),
        };
        first.tell(&answer);
    }
    drop((listener, id));
}

/// The other process listens, and this one connects.
fn asked() -> (Puppet, Id, Channel) {
    let mut other = Puppet::start();
    let port = other.ask("listen 4").parse().unwrap();
    let (id, channel) = resolved(TCP, loopback(port));
    assert_eq!(id.connect(b"hello", 5), 0);
    (other, id, channel)
}

/// This process listens, and the other one connects.
fn asking() -> (Puppet, Id, Channel, Told) {
    let (listener, channel, to) = listener(TCP, 4);
    let mut other = Puppet::start();
    other.tell(&format!("resolve {}", to.port()));
    other.tell("connect");
    let told = channel.next();
    assert_eq!(&told.private[..20], b"from another process");
    (other, listener, channel, told)
}

#[test]
fn two_processes_connect() {
    let (mut other, id, channel) = asked();
    other.expect(Event::RDMA_CM_EVENT_CONNECT_REQUEST);
    other.tell("accept");
    let told = channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!((&told.private[..18], told.conn.qp_num), (&b"to another process"[..], 4));
    assert_eq!(id.establish(), 0);
    other.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    other.tell("disconnect");
    channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(id.disconnect(), 0);
    other.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
}

#[test]
fn the_listener_dies_before_it_takes_the_request() {
    let (mut other, _id, channel) = asked();
    other.0.kill();
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
}

#[test]
fn the_listener_dies_before_it_answers() {
    let (mut other, _id, channel) = asked();
    other.expect(Event::RDMA_CM_EVENT_CONNECT_REQUEST);
    other.0.kill();
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
}

#[test]
fn the_listener_dies_before_its_answer_is_confirmed() {
    let (mut other, id, channel) = asked();
    other.expect(Event::RDMA_CM_EVENT_CONNECT_REQUEST);
    other.tell("accept");
    channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    other.0.kill();
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    assert_eq!(id.establish(), libc::EINVAL);
}

#[test]
fn the_listener_dies_when_connected() {
    for disconnected in [false, true] {
        let (mut other, id, channel) = asked();
        other.expect(Event::RDMA_CM_EVENT_CONNECT_REQUEST);
        other.tell("accept");
        channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
        assert_eq!(id.establish(), 0);
        if disconnected {
            other.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
            assert_eq!(id.disconnect(), 0);
            other.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
        }
        other.0.kill();
        channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    }
}

#[test]
fn the_client_dies_before_it_is_answered() {
    let (mut other, _listener, channel, told) = asking();
    let id = told.request();
    other.0.kill();
    // No event reports the death, but the answer fails.
    channel.expect_silence(Duration::from_millis(30));
    until("the answer fails", || id.accept(b"", 1) == libc::EINVAL);
}

#[test]
fn the_client_dies_before_it_confirms() {
    let (mut other, _listener, channel, told) = asking();
    let _id = told.request();
    assert_eq!(_id.accept(b"", 1), 0);
    other.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    other.0.kill();
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
}

#[test]
fn the_client_dies_when_connected() {
    let (mut other, _listener, channel, told) = asking();
    let id = told.request();
    assert_eq!(id.accept(b"", 1), 0);
    other.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    other.tell("establish");
    channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    other.0.kill();
    channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
}

#[test]
fn a_dead_process_s_port_is_free() {
    let mut other = Puppet::start();
    let port: u16 = other.ask("listen 4").parse().unwrap();
    let channel = Channel::new();
    let id = channel.tcp();
    assert_eq!(id.bind(loopback(port)), libc::EADDRINUSE);
    other.0.kill();
    assert_eq!(id.bind(loopback(port)), 0);
    assert_eq!(id.listen(1), 0);
}

#[test]
fn in_a_forked_child_everything_is_inert() {
    let Pair { active: (active, channel), passive: (passive, other), listener } = connected();
    let event = {
        let id = other.tcp();
        assert_eq!(id.resolve_addr(loopback(5)), 0);
        let event = other.take();
        ack(event);
        id
    };
    let inert = || {
        let mut taken = ptr::null_mut();
        // SAFETY: alive; an out parameter.
        let code = unsafe { (cm().rdma_get_cm_event)(channel.0, &raw mut taken) };
        // SAFETY: alive, in the parent; here it fails.
        let destroyed = unsafe { (cm().rdma_destroy_id)(event.0) };
        outcome(code) == libc::ENODEV
            && outcome(destroyed) == libc::ENODEV
            && active.disconnect() == libc::ENODEV
            && passive.bind(loopback(0)) == libc::ENODEV
            && listener.listen(1) == libc::ENODEV
    };
    // SAFETY: the child calls functions that fail at once, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(!inert());
        // SAFETY: ends the child without running anything else.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a valid out parameter.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    // The parent's connection is unaffected.
    assert_eq!(active.disconnect(), 0);
    other.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
}

#[test]
fn a_process_that_stands_still_is_given_up() {
    with_short_times("cm_processes::standing_still");
}

#[test]
#[ignore = "run by a_process_that_stands_still_is_given_up"]
fn standing_still() {
    let mut other = Puppet::start();
    let port = other.ask("listen 4").parse().unwrap();
    other.0.stop();
    let (id, channel) = resolved(TCP, loopback(port));
    assert_eq!(id.connect(b"", 5), 0);
    channel.expect_status(Event::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
}

#[test]
fn an_end_that_nobody_agrees_to_comes_all_the_same() {
    with_short_times("cm_processes::nobody_agrees");
}

#[test]
#[ignore = "run by an_end_that_nobody_agrees_to_comes_all_the_same"]
fn nobody_agrees() {
    let Pair { active, passive: _passive, listener: _listener } = connected();
    assert_eq!(active.0.disconnect(), 0);
    active.1.expect_status(Event::RDMA_CM_EVENT_DISCONNECTED, -libc::ETIMEDOUT);
    active.1.expect(Event::RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

#[test]
fn a_full_queue_is_asked_again() {
    with_short_times("cm_processes::full_queue");
}

#[test]
#[ignore = "run by a_full_queue_is_asked_again"]
fn full_queue() {
    let (_listener, channel, to) = listener(TCP, 2);
    let clients: Vec<_> = (0..3).map(|_| resolved(TCP, to)).collect();
    for (id, _) in &clients {
        assert_eq!(id.connect(b"", 5), 0);
    }
    // The third request is repeated until the backlog has space.
    for _ in 0..3 {
        assert_eq!(channel.next().request().reject(b""), 0);
    }
    for (_, channel) in &clients {
        channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    }
    // Without space the request fails after its retries.
    let clients: Vec<_> = (0..3).map(|_| resolved(TCP, to)).collect();
    for (id, channel) in &clients {
        assert_eq!(id.connect(b"", 5), 0);
        assert!(!channel.is_readable(Duration::from_millis(5)));
    }
    clients[2].1.expect_status(Event::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
}

#[test]
fn a_shortage_of_descriptors_is_not_an_address_of_others() {
    with_short_times("cm_processes::no_descriptors");
}

#[test]
#[ignore = "run by a_shortage_of_descriptors_is_not_an_address_of_others"]
fn no_descriptors() {
    // An address reserved for documentation, which no host has.
    let nowhere = "192.0.2.77:0".parse().unwrap();
    let channel = Channel::new();
    let id = channel.tcp();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: valid for writes.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let none = libc::rlimit { rlim_cur: 0, ..limit };
    // SAFETY: valid for reads. What is open stays open.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
    let short = id.bind(nowhere);
    // SAFETY: setrlimit reads a limit that lives during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    assert_eq!((short, id.bind(nowhere)), (libc::EMFILE, libc::ENODEV));
    assert_eq!(id.bind(loopback(0)), 0);
}

/// Clients of a listener whose process has no descriptor for another connection learn it, and do
/// not wait for their retries.
#[test]
fn a_listener_without_free_descriptors_refuses() {
    passes_alone(&["cm_processes::no_descriptor_for_connections"], &[]);
}

#[test]
#[ignore = "run by a_listener_without_free_descriptors_refuses"]
fn no_descriptor_for_connections() {
    for (space, refused) in [(TCP, Event::RDMA_CM_EVENT_REJECTED), (UDP, Event::RDMA_CM_EVENT_UNREACHABLE)] {
        let (_listener, _channel, to) = listener(space, 4);
        let (id, channel) = resolved(space, to);
        // Takes the smallest number that is free, which is beyond the limit then.
        let free = File::open("/dev/null").unwrap();
        let limit = libc::rlimit { rlim_cur: u64::try_from(free.as_raw_fd()).unwrap(), rlim_max: 1024 };
        // SAFETY: setrlimit reads a limit that lives during the call. What is open stays open.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        assert_eq!(id.connect(b"", 5), 0);
        channel.expect_status(refused, 3);
        let limit = libc::rlimit { rlim_cur: 1024, ..limit };
        // SAFETY: setrlimit reads a limit that lives during the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    }
}

/// The ids of a destroyed channel end, as in the kernel. librdmacm forbids any use of such an id;
/// here C may still destroy it.
#[test]
fn the_end_of_a_channel_is_the_end_of_its_ids() {
    let (_listener, channel, to) = listener(TCP, 2);
    // SAFETY: the function has no requirement.
    let own = unsafe { (cm().rdma_create_event_channel)() };
    let mut id = ptr::null_mut();
    // SAFETY: alive; an out parameter.
    assert_eq!(unsafe { (cm().rdma_create_id)(own, &raw mut id, ptr::null_mut(), TCP) }, 0);
    let id = Id::adopt(id);
    assert_eq!(id.resolve_addr(to), 0);
    assert_eq!(id.resolve_route(), 0);
    assert_eq!(id.connect(b"", 5), 0);
    let passive = channel.next().request();
    assert_eq!(passive.accept(b"", 5), 0);
    // SAFETY: alive, and not used below.
    unsafe { (cm().rdma_destroy_event_channel)(own) };
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    assert_eq!(id.establish(), libc::EINVAL);
}

#[test]
#[ignore = "run by an_id_is_on_the_device_of_its_address"]
fn an_address_of_the_second_device() {
    let mut count = -1;
    // SAFETY: valid for writes.
    let list = unsafe { (cm().rdma_get_devices)(&raw mut count) };
    assert_eq!(count, 2);
    // SAFETY: a list of two and an end.
    let [first, second, end] = unsafe { list.cast::<[*mut ibv_context; 3]>().read() };
    assert!(first != second && end.is_null());
    // SAFETY: a list that was just made.
    unsafe { (cm().rdma_free_devices)(list) };
    let channel = Channel::new();
    for (address, context) in
        [("127.0.0.1", first), ("127.0.0.2", second), ("::ffff:127.0.0.2", second), ("::1", first)]
    {
        let id = channel.tcp();
        assert_eq!(id.bind(SocketAddr::new(address.parse().unwrap(), 0)), 0);
        assert_eq!(id.public().verbs, context, "{address}");
    }
}

#[test]
fn an_id_is_on_the_device_of_its_address() {
    for link_layer in ["ethernet", "infiniband"] {
        let environment = [("RDMA_SOFT_DEVICES", "2"), ("RDMA_SOFT_LINK_LAYER", link_layer)];
        passes_alone(&["cm_processes::an_address_of_the_second_device"], &environment);
    }
}
