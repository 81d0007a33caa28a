//! Attacks on owners: each comes back once, whole, whatever fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::error::{ErrorKind, Failed, Verb};
use crate::mr::{FileMap, Memory, MemoryOwner, Pages, RawOwner, RegisterOptions};
use crate::pd::ProtectionDomain;
use crate::testing;
use crate::types::RemoteAccess;

fn domain() -> ProtectionDomain {
    testing::context().alloc_pd().unwrap()
}

/// A vector of two elements, with capacity for more.
fn vector<T>(elements: [T; 2]) -> Vec<T> {
    let mut vector = Vec::with_capacity(7);
    vector.extend(elements);
    vector
}

/// Registers and deregisters an owner in all ways, with and without failures; `same` says whether
/// the owner is what it was.
fn comes_back<O: MemoryOwner<Placement = crate::Host>>(owner: O, same: impl Fn(&O) -> bool) {
    let pd = domain();
    testing::fail("reg_mr", libc::EFAULT);
    let Failed { error, object: owner } = pd.register(owner).unwrap_err();
    assert_eq!((error.verb(), error.errno(), same(&owner)), (Verb::RegisterMr, Some(libc::EFAULT), true));
    testing::fail("reg_mr", libc::EFAULT);
    let Failed { object: owner, .. } = pd.register_exposed(owner, RemoteAccess::READ).unwrap_err();
    assert!(same(&owner));

    let buffer = pd.register(owner).unwrap();
    testing::fail("dereg_mr", libc::EBUSY);
    let Failed { error, object: buffer } = buffer.deregister::<O>().err().unwrap();
    assert_eq!((error.kind(), testing::live("mr")), (ErrorKind::InUse, 1));
    let owner: O = buffer.deregister().unwrap();
    assert!(same(&owner) && testing::live("mr") == 0);

    let region = pd.register_exposed(owner, RemoteAccess::empty()).unwrap();
    testing::fail("dereg_mr", libc::EBUSY);
    let Failed { error, object: region } = region.deregister::<O>().err().unwrap();
    assert_eq!((error.kind(), testing::live("mr")), (ErrorKind::InUse, 1));
    let owner: O = region.deregister().unwrap();
    assert!(same(&owner) && testing::live("mr") == 0);
}

#[test]
fn every_owner_comes_back_as_it_was() {
    let owner = vector([1_u8, 2]);
    let at = owner.as_ptr();
    comes_back(owner, |owner| *owner == [1, 2] && owner.capacity() == 7 && owner.as_ptr() == at);
    comes_back(vector([1.5_f64, 2.5]), |owner| *owner == [1.5, 2.5] && owner.capacity() == 7);
    comes_back(vector([[1_u16; 3]; 2]), |owner| owner.len() == 2 && owner.capacity() == 7);
    comes_back::<Box<[u128]>>(Box::from([1, 2, 3]), |owner| **owner == [1, 2, 3]);
    let mut pages = Pages::new(5000).unwrap();
    pages[4999] = 9;
    comes_back(pages, |owner| owner.len() == 5000 && owner[4999] == 9);
    #[cfg(not(miri))] // which has no memfd
    comes_back(crate::mem::SharedMemory::new(64).unwrap(), |owner| owner.len() == 64);
}

#[test]
#[cfg(not(miri))] // which maps no files
fn a_file_is_exposed_and_never_lent() {
    let (pd, file) = (domain(), tempfile::tempfile().unwrap());
    // SAFETY: FileMap::new requires a file that nobody shortens: this test alone has it.
    let map = |file: &std::fs::File| unsafe { FileMap::new(file) };
    let Failed { error, object: empty } = pd.register_exposed(map(&file).unwrap(), RemoteAccess::READ).unwrap_err();
    assert_eq!((error.kind(), empty.bytes().len()), (ErrorKind::InvalidInput, 0));
    file.set_len(100).unwrap();
    let Failed { error, object: owner } = pd.register(map(&file).unwrap()).unwrap_err();
    assert_eq!((error.verb(), error.kind()), (Verb::MakePrivate, ErrorKind::NotSupported));
    testing::fail("reg_mr", libc::EFAULT);
    let owner = pd.register_exposed(owner, RemoteAccess::WRITE).unwrap_err().object;
    let region = pd.register_exposed(owner, RemoteAccess::WRITE).unwrap();
    region.copy_in(92, b"the file").unwrap();
    let owner: FileMap = region.deregister().unwrap();
    let mut seen = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut seen, 92).unwrap();
    assert_eq!((&seen, owner.bytes().len(), testing::live("mr")), (b"the file", 100, 0));
    let read_only = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(map(&read_only).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn memory_comes_back_registered_or_as_memory() {
    let pd = domain();
    let memory: Memory = pd.register(vec![3_u16; 4]).unwrap().into_memory().unwrap();
    testing::fail("reg_mr", libc::EFAULT);
    let memory = pd.register(memory).unwrap_err().object;
    testing::fail("reg_mr", libc::EFAULT);
    let memory = pd.register_exposed(memory, RemoteAccess::READ).unwrap_err().object;
    assert_eq!(memory[..], [3, 0, 3, 0, 3, 0, 3, 0]);
    // Memory is registered as its owner, so exposed memory is never lent without being private.
    let region = pd.register_exposed(memory, RemoteAccess::READ).unwrap();
    let refused = region.deregister::<Memory>().err().unwrap();
    assert_eq!((refused.error.kind(), testing::live("mr")), (ErrorKind::InvalidInput, 1));
    assert_eq!(refused.object.deregister::<Vec<u16>>().unwrap(), [3; 4]);
}

#[test]
fn memory_without_bytes_is_refused_and_comes_back() {
    fn refused<O: MemoryOwner>(owner: O) -> O {
        let Failed { error, object } = domain().register(owner).unwrap_err();
        assert_eq!((error.kind(), testing::live("mr")), (ErrorKind::InvalidInput, 0));
        object
    }
    assert_eq!(refused(Vec::<u64>::with_capacity(3)).capacity(), 3);
    assert_eq!(refused(vec![(); 5]).len(), 5);
    assert_eq!(refused(Box::<[[u32; 0]]>::from([[]; 6])).len(), 6);
    assert!(refused(Box::<[u8]>::default()).is_empty());
}

#[test]
fn an_owner_in_use_or_of_another_type_stays_registered() {
    let mut buffer = domain().register(vec![7_u32; 4]).unwrap();
    let refused = buffer.deregister::<Box<[u32]>>().err().unwrap();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    buffer = refused.object.deregister::<Vec<i32>>().err().unwrap().object;
    let front = buffer.split_to(4);
    let refused = buffer.deregister::<Vec<u32>>().err().unwrap();
    assert_eq!(refused.error.kind(), ErrorKind::InUse);
    let mut whole = front;
    whole.unsplit(refused.object).unwrap();
    assert_eq!(whole.deregister::<Vec<u32>>().unwrap(), [7; 4]);

    let region = domain().register_exposed(vec![7_u8; 4], RemoteAccess::READ).unwrap();
    let slice = region.slice(1..2).unwrap();
    let refused = region.deregister::<Vec<u8>>().err().unwrap();
    assert_eq!(refused.error.kind(), ErrorKind::InUse);
    drop(slice);
    assert_eq!(refused.object.deregister::<Vec<u8>>().unwrap(), [7; 4]);
    assert_eq!(testing::live("mr"), 0);
}

/// Counts its drops, and panics in each.
struct Bomb(Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        assert!(thread::panicking(), "the owner's");
    }
}

/// 64 static bytes, in atomic words.
fn words() -> NonNull<u8> {
    static WORDS: [AtomicU64; 8] = [const { AtomicU64::new(1) }; 8];
    NonNull::from(&WORDS).cast()
}

/// Raw memory, what keeps it, and the number of times that the latter was dropped.
fn raw() -> (NonNull<u8>, Bomb, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    (words(), Bomb(Arc::clone(&dropped)), dropped)
}

/// # Safety
///
/// None: the memory is static.
fn register(pd: &ProtectionDomain, (at, bomb): (NonNull<u8>, Bomb)) -> Result<crate::ExposedRegion, Failed<Bomb>> {
    // SAFETY: register_raw requires initialised memory that stays valid, accessed in atomic words:
    // `words` is a static of atomic words.
    unsafe { pd.register_raw(at, 64, bomb, &RegisterOptions::new().remote_access(RemoteAccess::READ)) }
}

#[test]
fn what_keeps_raw_memory_is_dropped_once_after_the_last_slice() {
    let pd = domain();
    let (at, bomb, dropped) = raw();
    testing::fail("reg_mr", libc::EFAULT);
    let bomb = register(&pd, (at, bomb)).unwrap_err().object;
    let region = register(&pd, (at, bomb)).unwrap();
    assert_eq!(region.load_u64(56, Ordering::Relaxed).unwrap(), 1);
    let slice = region.slice(..8).unwrap();
    drop(region);
    assert_eq!((dropped.load(Ordering::Relaxed), testing::live("mr")), (0, 1));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(slice))).is_err());
    assert_eq!((dropped.load(Ordering::Relaxed), testing::live("mr")), (1, 0));

    // A region that cannot be deregistered leaks what keeps the memory.
    let (at, bomb, dropped) = raw();
    let region = register(&pd, (at, bomb)).unwrap();
    testing::fail("dereg_mr", libc::EBUSY);
    drop(region);
    assert_eq!((dropped.load(Ordering::Relaxed), testing::live("mr")), (0, 1));
}

#[test]
fn raw_memory_is_never_lent() {
    let pd = domain();
    let (at, bomb, dropped) = raw();
    // SAFETY: as in `register`: a static of atomic words stays valid.
    let owner = unsafe { RawOwner::new(at, 64, bomb) };
    let Failed { error, object: owner } = pd.register(owner).unwrap_err();
    assert_eq!((error.verb(), error.kind()), (Verb::MakePrivate, ErrorKind::NotSupported));
    // What cannot be registered anyway is not made private before.
    // SAFETY: RawOwner::new requires memory that stays valid: any address is, for no bytes.
    let empty = unsafe { RawOwner::new(NonNull::dangling(), 0, ()) };
    let error = pd.register(empty).unwrap_err().error;
    assert_eq!((error.verb(), error.kind()), (Verb::RegisterMr, ErrorKind::InvalidInput));
    let region = pd.register_exposed(owner, RemoteAccess::READ).unwrap();
    let owner: RawOwner<Bomb> = region.deregister().unwrap();
    let region = pd.register_exposed(owner, RemoteAccess::READ).unwrap();
    // On another thread, as the owner is Send: its drop panics there, once. The provider counts for
    // each thread.
    let there = thread::spawn(|| {
        assert!(catch_unwind(AssertUnwindSafe(|| region.revoke())).is_err());
        testing::live("mr")
    });
    assert_eq!(there.join().unwrap() + testing::live("mr"), 0);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn elements_are_aligned_and_whole() {
    let mut buffer = domain().register(vec![0_u64; 4]).unwrap();
    buffer.elements_mut::<u64>().unwrap().copy_from_slice(&[1, 2, 3, 4]);
    assert_eq!(buffer.elements::<[u64; 2]>().unwrap(), [[1, 2], [3, 4]]);
    assert!(buffer.elements::<[u8; 5]>().is_err() && buffer.elements::<()>().is_err());
    let odd = buffer.split_off(1);
    let Err(error) = odd.elements::<u16>() else { panic!() };
    assert_eq!((error.verb(), error.kind()), (Verb::Access, ErrorKind::InvalidInput));
    assert_eq!(odd.elements::<u8>().unwrap().len(), 31);
}

#[test]
#[cfg(not(miri))] // which has no fork
fn a_forked_child_gets_no_owner_back_and_frees_nothing() {
    let pd = domain();
    let shared: Arc<[u8]> = Arc::from([7; 64]);
    let source = pd.register_source(Arc::clone(&shared), RemoteAccess::empty()).unwrap();
    let buffer = pd.register(vec![1_u8; 64]).unwrap();
    let keep = Arc::new(());
    // SAFETY: as in `register`: a static of atomic words stays valid.
    let owner = unsafe { RawOwner::new(words(), 64, Arc::clone(&keep)) };
    let region = pd.register_exposed(owner, RemoteAccess::READ).unwrap();
    let quiet = rdma_test_support::holds_in_child(|| {
        let calls = testing::calls().len();
        let Err(buffer) = buffer.deregister::<Vec<u8>>() else { return false };
        let Err(region) = region.deregister::<RawOwner<Arc<()>>>() else { return false };
        let Err(source) = source.deregister::<Arc<[u8]>>() else { return false };
        let kinds = [buffer.error.kind(), region.error.kind(), source.error.kind()];
        let refused = pd.register(vec![2_u8; 3]).err().is_some_and(|failed| failed.object == [2; 3]);
        // SAFETY: as in `register`: a static of atomic words stays valid.
        let raw = unsafe { RawOwner::new(words(), 64, ()) };
        let refused = refused && pd.register(raw).is_err_and(|failed| failed.error.kind() == ErrorKind::Forked);
        let readable = buffer.object[..] == [1; 64] && source.object[..] == [7; 64];
        drop((buffer, region, source));
        let kept = Arc::strong_count(&shared) == 2 && Arc::strong_count(&keep) == 2;
        kinds == [ErrorKind::Forked; 3] && refused && readable && kept && testing::calls().len() == calls
    });
    assert!(quiet);
}
