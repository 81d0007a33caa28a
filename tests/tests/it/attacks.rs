//! Attacks by programs without `unsafe`: on descriptors that the crate lends, and by exhausting a
//! limit of the process. No call panics or hangs, and no other queue stops.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rdma::op;
use rdma::{DeviceSelector, InitOptions, QueuePair};
use rdma_test_support::passes_alone;
use rdma_tests::{LIMIT, Options, Side, VARIABLE, open, pair, wait};

/// Duplicates a lent descriptor and treats it as an epoll descriptor.
fn epoll(lent: &impl AsFd) -> Epoll {
    Epoll(lent.as_fd().try_clone_to_owned().unwrap())
}

#[test]
fn a_lent_descriptor_that_is_always_readable_makes_nobody_wait() {
    let opened = open();
    let context = &opened.context;
    let channel = context.create_completion_channel().unwrap();
    let cq = context.cq_builder(16).channel(&channel).build().unwrap();
    // Unread data: the pipe is readable from now on, and so is an epoll that watches it.
    let (reader, writer) = nix::unistd::pipe().unwrap();
    nix::unistd::write(&writer, b"x").unwrap();
    let always = |data| EpollEvent::new(EpollFlags::EPOLLIN, data);
    let lent = [epoll(&channel), epoll(context)];
    // A descriptor of another kind refuses the addition, and cannot be misused in this way.
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
    // Closing the copies or the pipe stops nothing here either.
    drop((lent, reader, writer));
    cq.request_notify(false).unwrap();
    assert_eq!(channel.next_event(brief).unwrap(), None);
    cq.close().unwrap();
    channel.close().unwrap();
}

#[test]
fn a_shortage_of_descriptors_is_an_error_at_every_step_and_leaves_nothing_broken() {
    passes_alone(&["attacks::descriptors_run_out"], &[]);
}

/// Creates every object that takes descriptors, from the device to queue pairs.
fn everything(selector: &DeviceSelector) -> Result<(), Box<dyn Error>> {
    let opened = rdma::open(selector)?;
    let channel = opened.context.create_completion_channel()?;
    let pd = opened.context.alloc_pd()?;
    let cq = opened.context.cq_builder(32).channel(&channel).build()?;
    let region = pd.allocate_exposed(4096, rdma_tests::all_rights())?;
    let qp = QueuePair::builder(&pd).cq(&cq).build().map_err(|error| error.to_string())?;
    let _lent: OwnedFd = channel.as_fd().try_clone_to_owned()?;
    if opened.context.capabilities().manual_connect {
        drop(qp.init(&InitOptions::new().port(opened.port)).map_err(|failed| failed.to_string())?);
    }
    drop(region);
    Ok(())
}

#[test]
#[ignore = "run by a_shortage_of_descriptors_is_an_error_at_every_step_and_leaves_nothing_broken"]
fn descriptors_run_out() {
    let name = std::env::var(VARIABLE).unwrap_or_else(|_| "soft0".into());
    let selector: DeviceSelector = name.parse().unwrap();
    if !name.starts_with("soft") {
        // libibverbs loads its providers once in a process, and keeps a failure.
        everything(&selector).unwrap();
    }
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let mut refusals = 0;
    // The lowest limits leave no descriptors for the device itself, higher ones too few for its
    // objects.
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
    message(&mut a, &mut b);
}

/// Sends one message from `a` to `b` and takes both completions.
fn message(a: &mut Side, b: &mut Side) {
    b.qp.post_recv(b.pd.allocate(8).unwrap(), 1).unwrap();
    a.qp.post_send(op::send(a.pd.allocate(8).unwrap())).unwrap();
    assert!(wait(&mut a.sends).status.is_ok() && wait(&mut b.receives).status.is_ok());
}

#[test]
#[allow(clippy::mem_forget, clippy::forget_non_drop, reason = "that is what is tested")]
fn a_forgotten_poller_or_completion_hides_no_other() {
    let (mut a, mut b) = pair(Options::default());
    message(&mut a, &mut b);
    for token in 0..8 {
        b.qp.post_recv(b.pd.allocate(8).unwrap(), token).unwrap();
        a.qp.post_send(op::send(a.pd.allocate(8).unwrap()).token(token)).unwrap();
    }
    // Completions that a poller has fetched from the CQ survive the poller's leak.
    let cq = a.sends.completion_queue();
    let mut tokens = vec![wait(&mut a.sends).token];
    std::mem::forget(std::mem::replace(&mut a.sends, cq.poller()));
    tokens.push(wait(&mut a.sends).token);
    let other = cq.poller();
    loop {
        let Some(completion) = a.sends.poll().unwrap() else { continue };
        tokens.push(completion.token());
        std::mem::forget(completion);
        break;
    }
    std::mem::forget(std::mem::replace(&mut a.sends, other));
    tokens.extend((3..8).map(|_| wait(&mut a.sends).token));
    tokens.sort_unstable();
    assert_eq!(tokens, (0..8).collect::<Vec<_>>());
    for _ in 0..8 {
        assert!(wait(&mut b.receives).status.is_ok());
    }
    // A scope finds its completions too.
    b.qp.post_recv(b.pd.allocate(8).unwrap(), 1).unwrap();
    let buffer = a.pd.allocate(8).unwrap();
    let Side { qp, sends, .. } = &mut a;
    qp.scope(sends, LIMIT, |scope| scope.post_send(op::send(buffer.lend(..))).map_err(|refused| refused.error()))
        .unwrap()
        .unwrap();
    assert!(wait(&mut b.receives).status.is_ok());
}

/// Uses its queue pairs once more when dropped.
struct Late(Side, Side);

impl Drop for Late {
    fn drop(&mut self) {
        message(&mut self.0, &mut self.1);
    }
}

#[test]
fn objects_in_thread_locals_work_until_their_thread_has_ended() {
    thread_local! { static KEPT: RefCell<Option<Late>> = const { RefCell::new(None) } }
    let thread = thread::spawn(|| {
        // Accessed before the library's thread-local values, so that its destructor runs after
        // theirs.
        KEPT.with(|kept| assert!(kept.borrow().is_none()));
        let (mut a, mut b) = pair(Options::default());
        message(&mut a, &mut b);
        KEPT.set(Some(Late(a, b)));
    });
    thread.join().unwrap();
    let (mut a, mut b) = pair(Options::default());
    message(&mut a, &mut b);
}
