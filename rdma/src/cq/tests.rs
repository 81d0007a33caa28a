//! Completion queues and channels, over the test provider.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rdma_sys::ibv_wc;

use super::{Backoff, Wakeup};
use crate::error::{ErrorKind, Verb};
use crate::transport::Rc;
use crate::{InitOptions, QueuePair, testing};

#[test]
fn a_queue_keeps_its_channel_and_device() {
    let context = testing::context();
    let channel = context.create_completion_channel().unwrap();
    let cq = context.cq_builder(16).channel(&channel).build().unwrap();
    assert_eq!(channel.close().unwrap_err().error.kind(), ErrorKind::InUse);
    drop(context);
    assert_eq!((testing::live("channel"), testing::live("context")), (1, 1));
    cq.close().unwrap();
    assert_eq!((testing::live("cq"), testing::live("channel"), testing::live("context")), (0, 0, 0));
}

#[test]
fn an_event_names_the_queue_and_is_already_acknowledged() {
    let context = testing::context();
    let channel = context.create_completion_channel().unwrap();
    let first = context.cq_builder(16).channel(&channel).build().unwrap();
    let second = context.cq_builder(16).channel(&channel).build().unwrap();
    assert_ne!(first.id(), second.id());
    for cq in [&second, &first] {
        cq.request_notify(false).unwrap();
        testing::complete(cq.as_raw(), ibv_wc::default());
        testing::complete(cq.as_raw(), ibv_wc::default());
    }
    assert_eq!(channel.next_event(None).unwrap(), Some(second.id()));
    assert_eq!(testing::calls().last(), Some(&"ack_cq_events"));
    assert_eq!(channel.try_next_event().unwrap(), Some(first.id()));
    assert_eq!(channel.try_next_event().unwrap(), None);
}

#[test]
fn the_descriptor_that_is_lent_can_neither_be_filled_nor_made_to_block_the_queue() {
    let context = testing::context();
    let channel = context.create_completion_channel().unwrap();
    let cq = context.cq_builder(16).channel(&channel).build().unwrap();
    assert_eq!(channel.as_raw_fd(), channel.as_fd().as_raw_fd());
    let mut file = std::fs::File::from(channel.as_fd().try_clone_to_owned().unwrap());
    assert!(file.write_all(&u64::MAX.to_ne_bytes()).is_err(), "it cannot be written");
    // SAFETY: fcntl with F_SETFL accepts any flags; without flags it makes the test's descriptor
    // blocking.
    assert_eq!(unsafe { libc::fcntl(channel.as_raw_fd(), libc::F_SETFL, 0) }, 0);
    let readable = || crate::wait::is_readable(Verb::GetCqEvent, channel.as_fd()).unwrap();
    assert_eq!(channel.try_next_event().unwrap(), None);
    assert!(!readable());
    cq.request_notify(false).unwrap();
    testing::complete(cq.as_raw(), ibv_wc::default());
    assert!(readable());
    assert_eq!(channel.try_next_event().unwrap(), Some(cq.id()));
    assert!(!readable());
}

#[test]
fn waiting_ends_at_the_deadline() {
    let channel = testing::context().create_completion_channel().unwrap();
    let start = Instant::now();
    assert_eq!(channel.next_event(Some(Duration::from_millis(20))).unwrap(), None);
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(channel.next_event(Some(Duration::ZERO)).unwrap(), None);
}

#[test]
fn a_broken_channel_is_an_error_and_an_interruption_is_not() {
    let channel = testing::context().create_completion_channel().unwrap();
    testing::fail("get_cq_event", libc::EINTR);
    assert_eq!(channel.next_event(Some(Duration::ZERO)).unwrap(), None);
    testing::fail("get_cq_event", libc::EIO);
    let error = channel.next_event(None).unwrap_err();
    assert_eq!((error.verb(), error.errno()), (Verb::GetCqEvent, Some(libc::EIO)));
}

#[test]
fn sizes_and_channels_that_make_no_sense_do_not_reach_the_provider() {
    let context = testing::context();
    let other = testing::context().create_completion_channel().unwrap();
    assert_eq!(context.create_cq(0).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(context.create_cq(u32::MAX).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(
        context.cq_builder(8).completion_vector(u32::MAX).build().unwrap_err().kind(),
        ErrorKind::NoCompletionVector(1)
    );
    assert_eq!(context.cq_builder(8).channel(&other).build().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(!testing::calls().contains(&"create_cq"));
}

#[test]
fn a_queue_that_cannot_be_destroyed_keeps_what_it_uses() {
    let context = testing::context();
    let channel = context.create_completion_channel().unwrap();
    let cq = context.cq_builder(16).channel(&channel).build().unwrap();
    drop((context, channel));
    testing::fail("destroy_cq", libc::EBUSY);
    let cq = cq.close().unwrap_err().object;
    testing::fail("destroy_cq", libc::EBUSY);
    drop(cq);
    assert_eq!((testing::live("cq"), testing::live("channel"), testing::live("context")), (1, 1, 1));
}

#[test]
fn a_queue_is_resized_to_no_less_than_is_reserved() {
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).unwrap();
    let build = || QueuePair::builder(&pd).cq(&cq).max_send_wr(8).max_recv_wr(4).build();
    let _first = build().unwrap();
    build().unwrap_err();
    assert_eq!((cq.resize(24).unwrap(), cq.depth()), (24, 24));
    let _second = build().unwrap();
    let error = cq.resize(23).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CompletionQueueTooSmall { needed: 24, free: 23 });
    assert_eq!(cq.resize(0).unwrap_err().kind(), ErrorKind::InvalidInput);
    testing::fail("resize_cq", libc::EINVAL);
    assert_eq!(cq.resize(100).unwrap_err().verb(), Verb::ResizeCq);
    assert_eq!(cq.depth(), 24);
}

#[test]
fn a_wait_ends_with_a_completion_or_another_descriptor() {
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    for has_channel in [true, false] {
        let builder = QueuePair::builder(&pd).max_send_wr(1).max_recv_wr(1);
        let cq = context.cq_builder(2);
        let cq = if has_channel { cq.events() } else { cq }.build().unwrap();
        let (prepared, mut poller) = (builder.cq(&cq).build().unwrap(), cq.poller());
        assert_eq!(poller.completion_queue().channel().is_some(), has_channel);
        let mut qp = prepared.into_manual();
        poller.set_backoff(Backoff::SLEEP);
        // This channel's events stand for another source that a service waits on.
        let other = context.create_completion_channel().unwrap();
        let timer = context.cq_builder(1).channel(&other).build().unwrap();
        let soon = Some(Duration::from_millis(5));
        assert!(matches!(poller.wait_or_readable(&other, soon).unwrap(), Wakeup::TimedOut));
        timer.request_notify(false).unwrap();
        testing::complete(timer.as_raw(), ibv_wc::default());
        assert!(matches!(poller.wait_or_readable(&other, None).unwrap(), Wakeup::Readable));
        // A completion takes precedence over the readable descriptor.
        qp.post_recv((), 7).unwrap();
        let wr_id = testing::posted(qp.as_raw())[0].wr_id;
        testing::complete(poller.completion_queue().as_raw(), ibv_wc { wr_id, ..ibv_wc::default() });
        let Wakeup::Completion(completion) = poller.wait_or_readable(&other, None).unwrap() else { panic!("nothing") };
        assert_eq!(completion.token(), 7);
    }
}

#[test]
fn a_message_ends_in_its_buffer_whatever_the_device_counts() {
    let context = testing::context();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let mut qp = QueuePair::<Rc>::builder(&pd).cq(&cq).build().unwrap().init(&InitOptions::new()).unwrap();
    for (counted, len) in [(0, 0), (3, 3), (8, 8), (9, 8), (u32::MAX, 8)] {
        qp.post_recv(pd.allocate(8).unwrap(), 0).unwrap();
        let wr_id = testing::posted(qp.qp.as_raw()).last().unwrap().wr_id;
        testing::complete(cq.as_raw(), ibv_wc { wr_id, byte_len: counted, ..ibv_wc::default() });
        let mut poller = cq.poller();
        let mut message = poller.poll().unwrap().unwrap().received().unwrap();
        assert_eq!((message.len(), message.as_ref().len(), message.iter_mut().len()), (len, len, len), "{counted}");
        assert_eq!(message.into_buffer().len(), 8);
    }
}
