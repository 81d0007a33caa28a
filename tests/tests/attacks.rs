//! Attacks by programs without `unsafe`: on descriptors that the crate lends, and by a shortage of
//! what a process may have. Nothing panics, hangs, or stops another queue.

#![forbid(unsafe_code)]

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rdma::op::Send;
use rdma::{DeviceSelector, InitOptions, QueuePair};
use rdma_test_support::passes_alone;
use rdma_tests::{LIMIT, Options, VARIABLE, open, pair, wait};

/// A copy of a lent descriptor, as the epoll that it may be.
fn epoll(lent: &impl AsFd) -> Epoll {
    Epoll(lent.as_fd().try_clone_to_owned().unwrap())
}

#[test]
fn a_lent_descriptor_that_is_always_readable_makes_nobody_wait() {
    let opened = open();
    let context = &opened.context;
    let channel = context.create_completion_channel().unwrap();
    let cq = context.cq_builder(16).channel(&channel).build().unwrap();
    // Data that nobody reads: what the epoll watches is readable from now on.
    let (reader, writer) = std::io::pipe().unwrap();
    nix::unistd::write(&writer, b"x").unwrap();
    let always = |data| EpollEvent::new(EpollFlags::EPOLLIN, data);
    let lent = [epoll(&channel), epoll(context)];
    // A descriptor of another kind refuses it, and is none that could be misused so.
    let misused = lent.iter().filter(|epoll| epoll.add(&reader, always(7)).is_ok()).count();
    assert!(!context.is_software() || misused == 2, "{misused}");
    let start = Instant::now();
    let brief = Some(Duration::from_millis(20));
    for _ in 0..3 {
        assert_eq!(channel.next_event(brief).unwrap(), None);
        assert_eq!(channel.try_next_event().unwrap(), None);
        assert!(context.next_event(brief).unwrap().is_none());
        assert!(cq.poller().wait(brief).unwrap().is_none());
    }
    assert!(start.elapsed() < LIMIT);
    // Nor does the end of a copy, or of the pipe, end anything here.
    drop((lent, reader, writer));
    cq.request_notify(false).unwrap();
    assert_eq!(channel.next_event(brief).unwrap(), None);
    cq.close().unwrap();
    channel.close().unwrap();
}

#[test]
fn a_shortage_of_descriptors_is_an_error_at_every_step_and_leaves_nothing_broken() {
    passes_alone(&["descriptors_run_out"], &[]);
}

/// Everything that takes descriptors, from the device to queue pairs.
fn everything(selector: &DeviceSelector) -> Result<(), Box<dyn Error>> {
    let opened = rdma::open(selector)?;
    let channel = opened.context.create_completion_channel()?;
    let pd = opened.context.alloc_pd()?;
    let cq = opened.context.cq_builder(32).channel(&channel).build()?;
    let region = pd.allocate_exposed(4096, rdma_tests::all_rights())?;
    let qp = QueuePair::builder(&pd).cq(&cq).build().map_err(|error| error.to_string())?;
    let qp = qp.init(&InitOptions::new().port(opened.port)).map_err(|failed| failed.to_string())?;
    let _lent: OwnedFd = channel.as_fd().try_clone_to_owned()?;
    drop((qp, region));
    Ok(())
}

#[test]
#[ignore = "run by a_shortage_of_descriptors_is_an_error_at_every_step_and_leaves_nothing_broken"]
fn descriptors_run_out() {
    let name = std::env::var(VARIABLE).unwrap_or_else(|_| "soft0".into());
    let selector: DeviceSelector = name.parse().unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let mut refusals = 0;
    // The first calls find no room for the device itself, later ones for parts of it.
    for limit in 3..64 {
        setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
        let outcome = everything(&selector);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        match outcome {
            Ok(()) => break,
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        refusals += 1;
    }
    assert!((1..61).contains(&refusals), "{refusals}");
    let (mut a, mut b) = pair(Options::default());
    b.qp.post_recv(b.pd.allocate(8).unwrap(), 1).unwrap();
    a.qp.post_send(Send::new(a.pd.allocate(8).unwrap())).unwrap();
    assert!(wait(&mut a.sends).status.is_ok() && wait(&mut b.receives).status.is_ok());
}
