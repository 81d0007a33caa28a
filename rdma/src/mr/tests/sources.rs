//! Attacks on sources and on owners of several regions.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rdma_sys::ibv_access_flags;

use crate::error::{ErrorKind, Failed, Verb};
use crate::mr::{FileSource, Pages, RawSource, SharedOwner, SourceOwner};
use crate::pd::ProtectionDomain;
use crate::testing;
use crate::types::RemoteAccess;

const NONE: RemoteAccess = RemoteAccess::empty();

fn domain() -> ProtectionDomain {
    testing::context().alloc_pd().unwrap()
}

/// Registers and deregisters a source, with and without failures.
fn comes_back<O: SourceOwner>(owner: O, same: impl Fn(&O) -> bool) {
    let pd = domain();
    for access in [RemoteAccess::WRITE, RemoteAccess::READ | RemoteAccess::ATOMIC, RemoteAccess::all()] {
        let calls = testing::accesses().len();
        let Failed { error, object } = pd.register_source(owner.bytes().to_vec(), access).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidOption(limit) if limit.name == "remote_access"), "{error}");
        assert_eq!(error.verb(), Verb::RegisterMr);
        assert_eq!((object.as_slice(), testing::accesses().len()), (owner.bytes(), calls));
    }
    testing::fail("reg_mr", libc::EFAULT);
    let Failed { error, object: owner } = pd.register_source(owner, NONE).unwrap_err();
    assert_eq!((error.errno(), same(&owner)), (Some(libc::EFAULT), true));

    let source = pd.register_source(owner, NONE).unwrap();
    testing::fail("dereg_mr", libc::EBUSY);
    let Failed { error, object: source } = source.deregister::<O>().err().unwrap();
    assert_eq!((error.kind(), testing::live("mr")), (ErrorKind::InUse, 1));
    let Failed { error, object: source } = source.deregister::<RawSource<u8>>().err().unwrap();
    assert_eq!((error.kind(), testing::live("mr")), (ErrorKind::InvalidInput, 1));
    let owner: O = source.deregister().unwrap();
    assert!(same(&owner) && testing::live("mr") == 0);
}

#[test]
fn every_source_comes_back_as_it_was() {
    let mut vector = Vec::with_capacity(7);
    vector.extend([1.5_f32, 2.5]);
    comes_back(vector, |owner| *owner == [1.5, 2.5] && owner.capacity() == 7);
    comes_back::<Box<[u16]>>(Box::from([1, 2, 3]), |owner| **owner == [1, 2, 3]);
    let shared: Arc<[u64]> = Arc::from([1, 2, 3]);
    comes_back(Arc::clone(&shared), |owner| Arc::ptr_eq(owner, &shared));
    comes_back(Arc::new(vec![7_u8; 3]), |owner| ***owner == [7; 3]);
    static BYTES: &[u8] = b"static";
    comes_back(BYTES, |owner| std::ptr::eq(*owner, BYTES));
    comes_back(Pages::new(4097).unwrap(), |owner| owner.len() == 4097);
    #[cfg(not(miri))] // which maps no files
    {
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        // SAFETY: FileSource::new requires a file that nobody changes: a program that runs.
        comes_back(unsafe { FileSource::new(&program) }.unwrap(), |owner| owner.bytes().starts_with(b"\x7fELF"));
    }
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[cfg(feature = "bytes")]
#[test]
fn shared_bytes_are_sources_and_unique_ones_are_owners() {
    let mut whole = bytes::BytesMut::from(&b"head and body"[..]);
    let head = whole.split_to(5);
    let frozen = whole.clone().freeze();
    comes_back(frozen.clone(), |owner| owner == &frozen);
    let pd = domain();
    let mut buffer = pd.register(head).unwrap();
    buffer[0] = b'H';
    let mut head: bytes::BytesMut = buffer.deregister().unwrap();
    head.unsplit(whole);
    assert_eq!(head, b"Head and body"[..]);
    let refused = pd.register(bytes::BytesMut::with_capacity(8)).unwrap_err();
    assert_eq!((refused.error.kind(), refused.object.capacity()), (ErrorKind::InvalidInput, 8));
}

#[test]
fn a_source_is_registered_without_a_right_to_write() {
    let pd = domain();
    let source = pd.register_source(vec![0_u8; 4], NONE).unwrap();
    let read = pd.register_source(vec![0_u8; 4], RemoteAccess::READ).unwrap();
    let buffer = pd.register(vec![0_u8; 4]).unwrap();
    let relaxed = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    let flags = |flags: ibv_access_flags| i32::try_from(flags.0 | relaxed).unwrap();
    let expected = [
        flags(ibv_access_flags(0)),
        flags(ibv_access_flags::IBV_ACCESS_REMOTE_READ),
        flags(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
    ];
    assert_eq!(testing::accesses(), expected);
    assert_eq!((source.access(), read.access()), (NONE, RemoteAccess::READ));
    drop(buffer);
}

#[test]
fn a_source_without_bytes_is_refused_and_comes_back() {
    let pd = domain();
    let Failed { error, object } = pd.register_source(Vec::<u32>::with_capacity(3), NONE).unwrap_err();
    assert_eq!((error.kind(), object.capacity()), (ErrorKind::InvalidInput, 3));
    let Failed { error, object } = pd.register_source(Box::<[()]>::from([(); 4]), NONE).unwrap_err();
    assert_eq!((error.kind(), object.len(), testing::live("mr")), (ErrorKind::InvalidInput, 4, 0));
}

#[test]
fn slices_stay_inside_and_keep_the_region() {
    let source = domain().register_source(vec![1_u8, 2, 3, 4], NONE).unwrap();
    let back = source.slice(2..).unwrap();
    for refused in [back.slice(..3).err(), back.slice(3..).err(), source.slice(..=usize::MAX).err()] {
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::OutOfBounds));
    }
    assert!(source.remote(1..6).is_err());
    let remote = source.remote(1..3).unwrap();
    assert_eq!((remote.address(), remote.len()), (source.address() + 1, 2));
    let Failed { error, object: source } = source.deregister::<Vec<u8>>().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InUse);
    // A slice that is the last gives the owner back, too, whole.
    drop(source);
    assert_eq!((&back[..], back.slice(2..).unwrap().len()), (&[3, 4][..], 0));
    assert_eq!(back.deregister::<Vec<u8>>().unwrap(), [1, 2, 3, 4]);
    assert_eq!(testing::live("mr"), 0);
}

#[test]
fn threads_share_a_source_and_the_last_ends_it() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    static WORDS: [u8; 64] = [7; 64];
    let dropped = Arc::new(AtomicUsize::new(0));
    // SAFETY: RawSource::new requires bytes that stay in place and are not written: a static.
    let owner = unsafe { RawSource::new(NonNull::from(&WORDS).cast(), 64, Counted(dropped.clone())) };
    let source = domain().register_source(owner, NONE).unwrap();
    let sums = thread::scope(|scope| {
        let sum = |source: crate::SourceSlice| move || source.iter().map(|&byte| u32::from(byte)).sum::<u32>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(sum(source.clone()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!((sums, dropped.load(Ordering::Relaxed)), (vec![448; 4], 0));
    testing::fail("dereg_mr", libc::EBUSY);
    drop(source);
    assert_eq!((dropped.load(Ordering::Relaxed), testing::live("mr")), (0, 1), "the owner leaks with its region");
}

#[test]
fn a_shared_owner_comes_back_after_its_last_region() {
    let (first, second) = (domain(), domain());
    let shared = SharedOwner::new(vec![1_u64, 2, 3]);
    let Failed { error, object } = first.register(shared.clone()).unwrap_err();
    assert_eq!((error.verb(), error.kind()), (Verb::MakePrivate, ErrorKind::NotSupported));
    drop(object);
    let regions = [&first, &second, &first].map(|pd| pd.register_exposed(shared.clone(), RemoteAccess::WRITE).unwrap());
    regions[0].store_u64(16, 9, Ordering::Relaxed).unwrap();
    assert_eq!(regions[1].load_u64(16, Ordering::Relaxed).unwrap(), 9);
    assert_eq!(shared.bytes().as_shared().load_u64(16), Ok(9));
    let shared = shared.into_owner().unwrap_err();
    let [one, two, three] = regions;
    let handle: SharedOwner<Vec<u64>> = one.deregister().unwrap();
    // The contents are not lent while others have them, and the region ends all the same.
    assert_eq!(two.revoke().err().unwrap().error.kind(), ErrorKind::NotSupported);
    drop((handle, three));
    assert_eq!(testing::live("mr"), 0);
    assert_eq!(shared.into_owner().unwrap(), [1, 2, 9]);

    // A region that cannot be deregistered keeps its handle, so the owner never comes back.
    let shared = SharedOwner::new(vec![0_u8; 8]);
    let region = first.register_exposed(shared.clone(), RemoteAccess::READ).unwrap();
    testing::fail("dereg_mr", libc::EBUSY);
    drop(region);
    assert!(shared.into_owner().is_err());
}
