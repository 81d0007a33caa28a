//! Sources in flight.

use std::sync::Arc;

use super::*;
use crate::RemoteAccess;
use crate::error::ErrorKind;

#[test]
fn a_source_is_in_many_requests_and_comes_back_from_each() {
    let mut rig = Rig::new();
    let bytes: Arc<[u8]> = Arc::from([1, 2, 3, 4]);
    let source = rig.pd.register_source(Arc::clone(&bytes), RemoteAccess::empty()).unwrap();
    rig.qp.post_send(op::send(source.clone()).unsignaled()).unwrap();
    rig.qp.post_send(op::write((source.slice(1..).unwrap(), rig.buffer(8)), remote())).unwrap();
    let lengths = |posted: &Posted| posted.sges.iter().map(|sge| sge.length).collect::<Vec<_>>();
    assert_eq!(rig.posted().iter().map(lengths).collect::<Vec<_>>(), [vec![4], vec![3, 8]]);
    // The program reads it meanwhile, and cannot end the region.
    assert_eq!(source[..], bytes[..]);
    let source = source.deregister::<Arc<[u8]>>().unwrap_err();
    assert_eq!(source.error.kind(), ErrorKind::InUse);

    rig.succeed(1);
    let mut completion = rig.poller.poll().unwrap().unwrap();
    let mut unsignaled = completion.next_unsignaled().unwrap();
    assert!(unsignaled.take_buffer().is_none() && unsignaled.take_exposed().is_none());
    assert_eq!(unsignaled.take_source().unwrap()[..], [1, 2, 3, 4]);
    assert!(completion.take_buffer().is_none() && completion.take_exposed().is_none());
    assert_eq!(completion.take_source().unwrap()[..], [2, 3, 4]);
    assert_eq!(completion.take_buffer().unwrap().len(), 8);
    assert!(completion.take_source().is_none());
    let back: Arc<[u8]> = source.object.deregister().unwrap();
    assert!(Arc::ptr_eq(&back, &bytes) && Arc::strong_count(&bytes) == 2);
    assert_eq!(regions(), 0);
}

#[test]
fn a_source_comes_back_from_a_failed_post_and_from_a_queue_pair_that_ends() {
    let mut rig = Rig::new();
    let source = rig.pd.register_source(&b"static"[..], RemoteAccess::empty()).unwrap();
    testing::fail("post_send", libc::ENOMEM);
    let refused = rig.qp.post_send(op::send([source.clone(), source.clone()])).unwrap_err();
    let [first, second] = refused.into_memory().unwrap();
    assert_eq!((&first[..], &second[..]), (&b"static"[..], &b"static"[..]));
    drop((first, second));

    // Its bytes can be copied when a request is posted.
    rig.qp.post_send(op::send(source.clone()).copied()).unwrap();
    let other = rig.pd.context().alloc_pd().unwrap();
    let foreign = other.register_source(&b"foreign"[..], RemoteAccess::empty()).unwrap();
    assert_eq!(rig.qp.post_send(op::send(foreign)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(regions(), 1);
    rig.qp.reset().unwrap();
    source.deregister::<&[u8]>().unwrap();
    assert_eq!(regions(), 0);
}
