//! Forks: a child opens the device anew, whatever its parent did; the objects that it inherits fail
//! every call.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdma_mem::SharedMemory;
use rdma_sys::*;
use rdma_test_support::{holds_in_child, passes_alone};

use crate::common::{self, Config, Endpoint, Request, Side, verbs};

/// A forked child and a stream to it.
struct Child {
    pid: libc::pid_t,
    stream: UnixStream,
}

impl Child {
    /// Forks a child that runs only `body`.
    fn fork(body: impl FnOnce(&mut UnixStream)) -> Self {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        // SAFETY: the other threads of this program do what a fork may interrupt; the child ends
        // with `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(ours);
            let failed = catch_unwind(AssertUnwindSafe(|| body(&mut theirs))).is_err();
            // SAFETY: `_exit` has no requirement; the child ends without running destructors.
            unsafe { libc::_exit(failed.into()) };
        }
        Self { pid, stream: ours }
    }

    fn succeeded(self) {
        drop(self.stream);
        let mut status = 0;
        // SAFETY: a valid out parameter.
        assert_eq!(unsafe { libc::waitpid(self.pid, &raw mut status, 0) }, self.pid);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    }
}

fn tell(stream: &mut UnixStream, Endpoint { qpn, addr, rkey }: Endpoint) {
    stream.write_all(&[u64::from(qpn), addr, rkey.into()].map(u64::to_ne_bytes).concat()).unwrap();
}

fn hear(stream: &mut UnixStream) -> Endpoint {
    let mut number = || {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    };
    let (qpn, addr, rkey) = (number(), number(), number());
    Endpoint { qpn: u32::try_from(qpn).unwrap(), addr, rkey: u32::try_from(rkey).unwrap() }
}

/// Connects to a peer that also calls this function; exchanges a message in each direction and a
/// read.
fn exchange(stream: &mut UnixStream) {
    let side = Side::new(Config::default());
    side.put(0, &[7; 64]);
    tell(stream, side.endpoint());
    let other = hear(stream);
    side.connect(other);
    assert_eq!(side.post_recv(1, &[side.sge(64, 64)]), 0);
    meet(stream);
    assert_eq!(side.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 2, &[side.sge(0, 64)])), 0);
    let read = Request::new(ibv_wr_opcode::IBV_WR_RDMA_READ, 3, &[side.sge(128, 64)]).remote(other.addr, other.rkey);
    assert_eq!(side.post(&read), 0);
    let mut done: Vec<u64> = (0..3)
        .map(|_| {
            let wc = side.wait();
            assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS, "request {}", wc.wr_id);
            wc.wr_id
        })
        .collect();
    done.sort_unstable();
    assert_eq!(done, [1, 2, 3]);
    assert_eq!(side.peek(64, 64), [7; 64]);
    assert_eq!(side.peek(128, 64), [7; 64]);
    meet(stream);
}

/// Waits until the peer also calls this function.
fn meet(stream: &mut UnixStream) {
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

/// Exchanges the endpoints of two children; they [`meet`] each other twice.
fn relay(one: &mut UnixStream, other: &mut UnixStream) {
    let (ours, theirs) = (hear(one), hear(other));
    tell(one, theirs);
    tell(other, ours);
    for _ in 0..2 {
        // Neither child goes on before the other one has come: it would send to a queue pair that
        // is not connected yet, or destroy one that the other child still reads from.
        for child in [&mut *one, &mut *other] {
            child.read_exact(&mut [0]).unwrap();
        }
        for child in [&mut *one, &mut *other] {
            child.write_all(b"x").unwrap();
        }
    }
}

/// Whether the parent's objects refuse all calls in a child.
pub(crate) fn is_inert(side: &Side) -> bool {
    let mut wc = ibv_wc::default();
    // SAFETY: live objects; the verbs see that this is another process.
    let polled = unsafe { ibv_poll_cq(side.cq, 1, &raw mut wc) };
    // SAFETY: the parent's queue pair, of which the child has a copy: refused.
    let destroyed = unsafe { (verbs().ibv_destroy_qp)(side.qp) };
    // SAFETY: the parent's context, of which the child has a copy: refused.
    let allocated = unsafe { (verbs().ibv_alloc_pd)(side.context) };
    // SAFETY: the parent's context, of which the child has a copy: refused.
    let closed = unsafe { (verbs().ibv_close_device)(side.context) };
    let posted = [side.post_recv(1, &[]), side.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 2, &[]))];
    polled < 0 && allocated.is_null() && closed != 0 && [destroyed, posted[0], posted[1]] == [libc::ENODEV; 3]
}

#[test]
fn a_child_opens_the_device_anew() {
    passes_alone(&["fork::families"], &[]);
}

/// A pre-fork server: the parent uses the device and forks; its children connect to it, to each
/// other and to their own children.
#[test]
#[ignore = "run by a_child_opens_the_device_anew"]
fn families() {
    let before = Side::new(Config::default());
    before.connect(before.endpoint());
    let use_it = |id| {
        assert_eq!(before.post_recv(id, &[before.sge(0, 8)]), 0);
        assert_eq!(before.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, id + 1, &[before.sge(8, 8)])), 0);
        assert_ne!(before.wait().wr_id, before.wait().wr_id);
    };
    use_it(10);
    let child = |stream: &mut UnixStream| {
        assert!(is_inert(&before));
        // With the parent first, then with the sibling.
        exchange(stream);
        assert!(is_inert(&before));
        exchange(stream);
        let after = Side::new(Config::default());
        let mut grandchild = Child::fork(|stream| {
            assert!(is_inert(&before) && is_inert(&after));
            exchange(stream);
        });
        exchange(&mut grandchild.stream);
        grandchild.succeeded();
    };
    let mut children = [Child::fork(child), Child::fork(child)];
    for child in &mut children {
        exchange(&mut child.stream);
    }
    let [one, other] = &mut children;
    relay(&mut one.stream, &mut other.stream);
    children.into_iter().for_each(Child::succeeded);
    use_it(20);
}

#[test]
fn children_that_are_forked_in_the_middle_of_everything_work() {
    passes_alone(&["fork::in_the_middle"], &[]);
}

/// The device's own threads set up links, emit events and close sockets while the process forks.
#[test]
#[ignore = "run by children_that_are_forked_in_the_middle_of_everything_work"]
fn in_the_middle() {
    let server = Side::new(Config::default());
    server.connect(server.endpoint());
    for _ in 0..24 {
        // Each child makes the parent's agent accept a link, which is torn down while the next
        // child is forked.
        let mut child = Child::fork(exchange);
        exchange(&mut child.stream);
        child.succeeded();
    }
}

/// Microseconds from the start of the first open of a process to its fork: the open takes a few
/// hundred.
const MOMENTS: [u64; 12] = [0, 10, 20, 40, 60, 80, 120, 160, 240, 320, 480, 700];

#[test]
fn children_that_are_forked_while_another_thread_opens_the_device_first_open_it_too() {
    passes_alone(&["fork::during_the_first_open"], &[]);
    passes_alone(&["fork::during_the_first_open"], &[("RDMA_SOFT_LOG", "trace")]);
}

/// No fork handler is installed when the fork begins, so it may interrupt any step of the open.
/// Each process in which that happens is forked before this one has opened anything.
#[test]
#[ignore = "run by children_that_are_forked_while_another_thread_opens_the_device_first_open_it_too"]
fn during_the_first_open() {
    let use_it = || {
        let side = Side::new(Config::default());
        side.connect(side.endpoint());
        assert_eq!(side.post_recv(1, &[side.sge(0, 8)]), 0);
        assert_eq!(side.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 2, &[side.sge(8, 8)])), 0);
        assert_ne!(side.wait().wr_id, side.wait().wr_id);
    };
    let opens_and_forks = |moment| {
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| {
                start.wait();
                use_it();
            });
            start.wait();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(moment) {}
            let child_works = holds_in_child(|| catch_unwind(use_it).is_ok());
            opener.join().is_ok() && child_works
        })
    };
    for moment in MOMENTS.repeat(8) {
        assert!(holds_in_child(|| opens_and_forks(moment)), "forked after {moment} microseconds");
    }
}

#[test]
fn children_that_are_forked_while_memory_is_shared_share_memory() {
    passes_alone(&["fork::sharing"], &[]);
}

#[test]
#[ignore = "run by children_that_are_forked_while_memory_is_shared_share_memory"]
fn sharing() {
    let end = Instant::now() + Duration::from_secs(2);
    let share = || drop(SharedMemory::new(4096).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < end {
                    share();
                }
            });
        }
        while Instant::now() < end {
            let child = Child::fork(|_| {
                // SAFETY: alarm has no requirement; it ends a child that hangs.
                unsafe { libc::alarm(20) };
                share();
            });
            child.succeeded();
        }
    });
}

#[test]
fn children_that_are_forked_while_the_devices_are_made_have_devices() {
    for _ in 0..40 {
        passes_alone(&["fork::first_list"], &[]);
    }
}

#[test]
#[ignore = "run by children_that_are_forked_while_the_devices_are_made_have_devices"]
fn first_list() {
    let list = || {
        let mut count = 0;
        // SAFETY: valid for writes.
        let list = unsafe { (verbs().ibv_get_device_list)(&raw mut count) };
        assert!(!list.is_null() && count == 1);
    };
    let begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.store(true, Ordering::Relaxed);
            list();
        });
        while !begun.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        let child = || {
            Child::fork(|_| {
                // SAFETY: alarm has no requirement; it ends a child that hangs.
                unsafe { libc::alarm(20) };
                list();
            })
        };
        [child(), child(), child()].into_iter().for_each(Child::succeeded);
    });
}

#[test]
fn a_child_connects_by_the_connection_manager() {
    passes_alone(&["fork::families_of_managers"], &[]);
}

#[test]
#[ignore = "run by a_child_connects_by_the_connection_manager"]
fn families_of_managers() {
    let cm = rdma_soft::rdmacm();
    // SAFETY: the function has no requirement.
    let channel = unsafe { (cm.rdma_create_event_channel)() };
    assert!(!channel.is_null());
    let create = |channel, id: &mut *mut rdma_cm_id| {
        // SAFETY: a channel of this table, an out parameter.
        unsafe { (cm.rdma_create_id)(channel, id, std::ptr::null_mut(), rdma_port_space::RDMA_PS_TCP) }
    };
    let mut id = std::ptr::null_mut();
    assert_eq!(create(channel, &mut id), 0);
    Child::fork(|_| {
        let mut other = std::ptr::null_mut();
        assert_eq!(create(channel, &mut other), -1);
        // SAFETY: alive, in the parent; here it fails.
        assert_eq!(unsafe { (cm.rdma_destroy_id)(id) }, -1);
        // SAFETY: the function has no requirement.
        let own = unsafe { (cm.rdma_create_event_channel)() };
        assert_eq!(create(own, &mut other), 0);
        // SAFETY: alive, and made in this process.
        let gone = unsafe { (cm.rdma_destroy_id)(other) };
        assert_eq!(gone, 0);
    })
    .succeeded();
    // SAFETY: alive.
    assert_eq!(unsafe { (cm.rdma_destroy_id)(id) }, 0);
}

#[test]
fn an_on_demand_region_stays_with_the_parent() {
    passes_alone(&["fork::on_demand_family"], &[]);
}

/// After the fork, parent and child have memory of their own at the region's address.
#[test]
#[ignore = "run by an_on_demand_region_stays_with_the_parent"]
fn on_demand_family() {
    let side = Side::new(Config::default());
    side.connect(side.endpoint());
    let memory = Box::into_raw(Box::new([0_u8; 8]));
    let access = common::ALL_ACCESS | ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
    // SAFETY: a live domain, and memory that is never freed and read only while no request runs.
    let region = unsafe { verbs().ibv_reg_mr(side.pd, memory.cast(), 8, access) };
    assert!(!region.is_null());
    // SAFETY: a live region.
    let rkey = unsafe { (*region).rkey };
    let write = |bytes: &[u8; 8]| {
        side.put(0, bytes);
        let write = Request::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, 1, &[side.sge(0, 8)]);
        assert_eq!(side.post(&write.remote(memory.expose_provenance() as u64, rkey)), 0);
        side.success(1);
    };
    // SAFETY: memory of this process, to which no request writes now.
    let read = || unsafe { memory.read_volatile() };
    write(b"together");
    let mut child = Child::fork(|stream| {
        // SAFETY: the parent's region, of which the child has a copy: refused.
        assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, libc::ENODEV);
        stream.read_exact(&mut [0]).unwrap();
        assert_eq!(read(), *b"together");
    });
    write(b"separate");
    child.stream.write_all(&[0]).unwrap();
    child.succeeded();
    assert_eq!(read(), *b"separate");
    // SAFETY: a live region, which is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, 0);
}
