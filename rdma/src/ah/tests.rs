//! Address handles over the test provider.

use rdma_sys::{ibv_wc, ibv_wc_flags};

use super::*;
use crate::qp::{DatagramOptions, QpControl, QueuePair};
use crate::testing::{self, fail};
use crate::transport::Ud;
use crate::types::{Lid, Route};
use crate::{AddressCache, op};

fn path() -> Path {
    let route = Route { gid: "::ffff:10.0.0.2".parse().unwrap(), source_index: 2, hop_limit: 9, ..Route::default() };
    Path { port: 2, route: Some(route), service_level: 3, ..Path::default() }
}

/// The source of a datagram from `from` to `to`.
fn source(from: &str, to: &str) -> Source {
    let mut bytes = [0; Grh::LEN];
    bytes[0] = 0x60;
    bytes[8..24].copy_from_slice(&from.parse::<crate::Gid>().unwrap().to_bytes());
    bytes[24..].copy_from_slice(&to.parse::<crate::Gid>().unwrap().to_bytes());
    let wc = ibv_wc { src_qp: 7, sl: 4, slid: 5, wc_flags: ibv_wc_flags::IBV_WC_GRH.0, ..ibv_wc::default() };
    Source::new(&wc, || Some(Grh::from_bytes(bytes)))
}

#[test]
fn a_handle_keeps_its_domain_and_is_destroyed_with_its_last_clone() {
    let pd = testing::context().alloc_pd().unwrap();
    let address = pd.create_ah(&path()).unwrap();
    assert_eq!(address.path(), path());
    drop(pd);
    assert_eq!((testing::live("ah"), testing::live("pd")), (1, 1));
    let clone = address.clone();
    let failed = address.close().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InUse);
    drop(failed);
    clone.close().unwrap();
    assert_eq!((testing::live("ah"), testing::live("pd")), (0, 0));
}

#[test]
fn a_handle_that_cannot_be_destroyed_comes_back_or_leaks_with_its_domain() {
    let pd = testing::context().alloc_pd().unwrap();
    let address = pd.create_ah(&path()).unwrap();
    fail("destroy_ah", libc::EIO);
    let address = address.close().unwrap_err().object;
    assert_eq!(testing::live("ah"), 1);
    fail("destroy_ah", libc::EIO);
    drop((address, pd));
    assert_eq!((testing::live("ah"), testing::live("pd"), testing::live("context")), (1, 1, 1));
}

#[test]
fn a_path_out_of_range_names_the_option_and_does_not_reach_the_provider() {
    let pd = testing::context().alloc_pd().unwrap();
    let error = pd.create_ah(&path().service_level(16)).unwrap_err();
    assert!(error.to_string().ends_with("the option service_level has an invalid value: it may be 0 to 15"), "{error}");
    let error = pd.create_ah(&path().route(Route::default().flow_label(1 << 20))).unwrap_err();
    assert!(error.to_string().contains("the option flow_label"), "{error}");
    assert!(!testing::calls().contains(&"create_ah"));
}

#[test]
fn a_handle_that_cannot_be_made_says_why() {
    let pd = testing::context().alloc_pd().unwrap();
    fail("create_ah", libc::ETIMEDOUT);
    let error = pd.create_ah(&path()).unwrap_err();
    assert_eq!((error.kind(), error.verb()), (ErrorKind::Timeout, Verb::CreateAh));
    assert!(error.to_string().contains("resolved"), "{error}");
}

#[test]
fn the_way_back_is_the_way_that_it_came() {
    let from = source("fe80::7", "::ffff:10.0.0.1");
    let path = from.path(2, 1);
    let route = path.route.unwrap();
    assert_eq!((path.port, path.lid, path.service_level), (2, Lid(5), 4));
    assert_eq!((route.gid.to_string().as_str(), route.source_index), ("fe80::7", 1));

    let pd = testing::context().alloc_pd().unwrap();
    let address = pd.create_ah_for(2, &from).unwrap();
    let route = address.path().route.unwrap();
    assert_eq!((route.gid.to_string().as_str(), route.source_index), ("fe80::7", 2));
    // Without a GRH the path uses the LID.
    let near = Source { grh: None, ..from };
    assert_eq!(near.path(2, 1).route, None);
    assert_eq!(near.query_path(&pd.context(), 2).unwrap().lid, Lid(5));
}

#[test]
fn what_nobody_can_find_the_way_back_for_is_refused() {
    let context = testing::context();
    let from = source("fe80::7", "::ffff:10.0.0.1");
    let kind = |source: &Source, port| source.query_path(&context, port).unwrap_err().kind();
    assert_eq!(kind(&from, 0), ErrorKind::NotFound);
    assert_eq!(kind(&from, 3), ErrorKind::NotFound);
    assert_eq!(kind(&source("fe80::7", "ff12::1"), 2), ErrorKind::NotFound);
    fail("init_ah_from_wc", libc::ENODATA);
    assert_eq!(kind(&from, 2), ErrorKind::NotFound);
}

#[test]
fn a_port_that_the_device_lacks_does_not_reach_the_provider() {
    let pd = testing::context().alloc_pd().unwrap();
    for port in [0, 3, 255] {
        let error = pd.create_ah(&Path { port, ..path() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    assert!(!testing::calls().contains(&"create_ah"));
}

/// A datagram queue pair that is bound to a port.
fn bound(pd: &ProtectionDomain) -> QueuePair<Ud> {
    let cq = pd.context().create_cq(64).unwrap();
    QueuePair::datagram(pd).cq(&cq).build().unwrap().init(&DatagramOptions::new(1)).unwrap().ready().unwrap()
}

fn client(number: usize) -> Source {
    source(&format!("fe80::{number:x}"), "::ffff:10.0.0.1")
}

/// The number of handles that were made so far.
fn made() -> usize {
    testing::calls().iter().filter(|&&call| call == "create_ah").count()
}

#[test]
fn a_cache_makes_each_handle_once_and_gives_up_the_one_that_was_used_least_recently() {
    let pd = testing::context().alloc_pd().unwrap();
    let qp = bound(&pd);
    let mut cache = AddressCache::new(3);
    assert!(cache.is_empty());
    for round in 0..4 {
        for number in 1..=3 {
            let handle = cache.answer(&qp, &client(number)).unwrap();
            assert_eq!(handle.path(), QpControl::from(&qp).answer_path(&client(number)).unwrap(), "{round}");
        }
    }
    assert_eq!((made(), cache.len(), testing::live("ah")), (3, 3, 3));
    // Client 2 is now the one that was not used for the longest time.
    cache.answer(&qp, &client(1)).unwrap();
    cache.answer(&qp, &client(4)).unwrap();
    assert_eq!((made(), cache.len(), testing::live("ah")), (4, 3, 3));
    for number in [1, 3, 4] {
        cache.answer(&qp, &client(number)).unwrap();
    }
    assert_eq!(made(), 4);
    cache.answer(&qp, &client(2)).unwrap();
    assert_eq!((made(), cache.len()), (5, 3));
    // Any number of clients has at most three.
    for number in 0..100 {
        cache.answer(&qp, &client(number)).unwrap();
        assert!(cache.len() <= 3 && testing::live("ah") <= 3);
    }
    cache.clear();
    assert_eq!((cache.len(), testing::live("ah")), (0, 0));
    // A cache of none has one.
    let mut least = AddressCache::new(0);
    least.answer(&qp, &client(1)).unwrap();
    least.answer(&qp, &client(2)).unwrap();
    assert_eq!((least.len(), testing::live("ah")), (1, 1));
}

#[test]
fn a_cache_keeps_the_domains_of_its_handles_apart_and_alive() {
    let context = testing::context();
    let mut cache = AddressCache::new(64);
    // The domains are dropped, so one that came back at the address of another would be confused.
    for _ in 0..8 {
        let pd = context.alloc_pd().unwrap();
        let qp = bound(&pd);
        let handle = cache.answer(&qp, &client(1)).unwrap();
        assert!(std::ptr::eq(handle.inner.pd.identity(), pd.inner.identity()));
    }
    assert_eq!((cache.len(), testing::live("pd"), testing::live("qp")), (8, 8, 0));
    let pd = context.alloc_pd().unwrap();
    cache.answer(&bound(&pd), &client(1)).unwrap();
    let failed = pd.close().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InUse);
    cache.clear();
    failed.object.close().unwrap();
    drop(context);
    assert_eq!((testing::live("ah"), testing::live("pd"), testing::live("context")), (0, 0, 0));
}

#[test]
fn a_cached_handle_of_another_domain_is_refused_by_a_post_and_lets_go_of_a_foreign_domain() {
    let context = testing::context();
    // SAFETY: ibv_alloc_pd requires an open context, which `context` keeps open.
    let raw = unsafe { (context.table().ibv_alloc_pd)(context.as_raw()) };
    // SAFETY: from_raw requires a live domain that outlives its handles: it is freed below.
    let foreign = unsafe { ProtectionDomain::from_raw(&context, raw, Ownership::Keep) }.unwrap();
    let own = context.alloc_pd().unwrap();
    let (mut one, other) = (bound(&own), bound(&foreign));
    let mut cache = AddressCache::new(4);
    let handle = cache.answer(&other, &client(1)).unwrap();
    let refused = one.post_send(op::send_inline(b"").to(handle, 1, 1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    // The same client, for a queue pair of this domain.
    one.post_send(op::send_inline(b"").to(cache.answer(&one, &client(1)).unwrap(), 1, 1)).unwrap();
    assert_eq!((cache.len(), testing::live("ah")), (2, 2));
    drop((other, foreign));
    assert_eq!(testing::live("ah"), 2, "the cache keeps the handle, and that the domain");
    cache.clear();
    assert_eq!(testing::live("ah"), 1, "the datagram in flight keeps its own");
    drop(one);
    // SAFETY: ibv_dealloc_pd requires a live domain that nothing uses: its handles have ended.
    assert_eq!(unsafe { (context.table().ibv_dealloc_pd)(raw) }, 0);
    assert_eq!((testing::live("ah"), testing::live("pd")), (0, 1));
}

#[test]
fn a_handle_that_cannot_be_made_takes_no_place_in_the_cache() {
    let pd = testing::context().alloc_pd().unwrap();
    let qp = bound(&pd);
    let mut cache = AddressCache::new(1);
    cache.answer(&qp, &client(1)).unwrap();
    fail("create_ah", libc::ETIMEDOUT);
    assert_eq!(cache.answer(&qp, &client(2)).unwrap_err().kind(), ErrorKind::Timeout);
    cache.answer(&qp, &client(1)).unwrap();
    assert_eq!((made(), cache.len()), (2, 1));
    cache.answer(&qp, &client(2)).unwrap();
    assert_eq!((cache.len(), testing::live("ah")), (1, 1));
}
