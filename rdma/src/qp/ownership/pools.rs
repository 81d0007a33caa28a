//! Buffers of a pool in flight.

use super::*;
use crate::Pool;
use crate::error::ErrorKind;

fn pool(pd: &ProtectionDomain, count: usize) -> Pool {
    Pool::builder(pd).class(64, count).build().unwrap()
}

/// Buffers that are in use, or with the device.
fn in_use(pool: &Pool) -> u64 {
    pool.stats()[0].in_use()
}

#[test]
fn a_pooled_buffer_goes_home_from_each_end_of_a_request() {
    let mut rig = Rig::new();
    let pool = pool(&rig.pd, 8);
    // A completion whose buffer is taken, and posted again.
    rig.qp.post_send(op::send(pool.take(64).unwrap())).unwrap();
    rig.succeed(0);
    let buffer = rig.poller.poll().unwrap().unwrap().take_buffer().unwrap();
    assert_eq!(in_use(&pool), 1);
    rig.qp.post_send(op::send(buffer.part(..8))).unwrap();
    // One whose buffer is not taken, and an unsignaled request behind it.
    rig.qp.post_send(op::send((pool.take(8).unwrap(), pool.take(9).unwrap())).unsignaled()).unwrap();
    rig.qp.post_send(op::send(pool.take(64).unwrap())).unwrap();
    assert_eq!(in_use(&pool), 4);
    rig.succeed(1);
    rig.succeed(3);
    while rig.poller.poll().unwrap().is_some() {}
    assert_eq!(in_use(&pool), 0);

    // A failed post gives it back.
    testing::fail("post_send", libc::ENOMEM);
    let refused = rig.qp.post_send(op::send(pool.take(64).unwrap())).unwrap_err();
    assert_eq!(in_use(&pool), 1);
    assert_eq!(refused.into_memory().unwrap().len(), 64);
    assert_eq!(in_use(&pool), 0);

    // The end of the queue pair, after that of the pool: the device has them until then.
    rig.qp.post_recv(pool.take(64).unwrap(), 0).unwrap();
    rig.qp.post_send(op::send(pool.take(64).unwrap())).unwrap();
    drop(pool);
    assert_eq!(regions(), 1);
    drop(rig.qp);
    assert_eq!(regions(), 0);
}

#[test]
fn a_pooled_buffer_leaks_with_a_queue_pair_that_is_not_destroyed() {
    let mut rig = Rig::new();
    let pool = pool(&rig.pd, 2);
    rig.qp.post_send(op::send(pool.take(64).unwrap())).unwrap();
    testing::fail("destroy_qp", libc::EBUSY);
    drop(rig.qp);
    assert_eq!((in_use(&pool), pool.take(64).unwrap().len()), (1, 64));
    assert_eq!(pool.stats()[0].buffers, 2);
    drop(pool);
    assert_eq!(regions(), 1, "the device may still read the buffer");
}

#[test]
fn a_buffer_of_several_domains_is_posted_in_each_with_its_key() {
    let mut rig = Rig::new();
    let (second, third) = (rig.pd.context().alloc_pd().unwrap(), rig.pd.context().alloc_pd().unwrap());
    let pool = Pool::builder(&second).domain(&rig.pd).class(64, 2).build().unwrap();
    let buffer = pool.take(64).unwrap();
    let keys = [&rig.pd, &second, &third].map(|pd| buffer.lkey_in(pd));
    let [Some(here), Some(there), None] = keys else { panic!("{keys:?}") };
    assert_eq!(buffer.lkey(), there);
    rig.qp.post_send(op::send(buffer)).unwrap();
    rig.succeed(0);
    let mut buffer = rig.poller.poll().unwrap().unwrap().take_buffer().unwrap();
    assert_eq!(rig.posted()[0].sges[0].lkey, here);
    // A scope borrows it with its key, too.
    let Rig { qp, poller, cq, .. } = &mut rig;
    let cq = cq.as_raw();
    let lent = qp.scope(poller, std::time::Duration::from_secs(10), |scope| {
        scope.post_send(op::send(buffer.lend(..8))).unwrap();
        let posted = &testing::posted(scope.queue_pair().as_raw())[1];
        testing::complete(cq, wc(posted.wr_id, ibv_wc_status::IBV_WC_SUCCESS, scope.queue_pair().qpn()));
        posted.sges[0].lkey
    });
    assert_eq!(lent.unwrap(), here);

    let elsewhere = Rig::connect(&third, &rig.cq);
    let mut other = Rig { pd: third, cq: rig.cq.clone(), poller: rig.cq.poller(), qp: elsewhere };
    let (address, refused) = (buffer.address(), other.qp.post_send(op::send(buffer)).unwrap_err());
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    buffer = refused.into_memory().unwrap();
    assert_eq!(buffer.address(), address);
    drop(buffer);
    assert_eq!(in_use(&pool), 0);
}
