//! Attacks on the options of a registration: what contradicts is refused before anything is done,
//! and gives the owner back.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rdma_sys::ibv_access_flags;

use crate::error::{Error, ErrorKind, Failed, Verb};
use crate::mr::memory::RawMemory;
use crate::mr::pages::{STEP, Touch, touch};
use crate::mr::{FileMap, FileSource, HugePages, Pages, Prefetch, RegisterOptions, SharedOwner};
use crate::pd::ProtectionDomain;
use crate::testing;
use crate::types::RemoteAccess;

const RELAXED: i32 = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 as i32;
const LOCAL_WRITE: i32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32;
const WRITE: i32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 as i32;

fn domain() -> ProtectionDomain {
    testing::context().alloc_pd().unwrap()
}

fn options() -> RegisterOptions {
    RegisterOptions::new()
}

/// Asserts that an option was refused by its name, and that the device was not asked.
#[track_caller]
fn is_refused(error: Error, name: &str, words: &str, is_unsupported: bool) {
    let limit = match error.kind() {
        ErrorKind::InvalidOption(limit) if !is_unsupported => limit,
        ErrorKind::UnsupportedOption(limit) if is_unsupported => limit,
        kind => panic!("{kind:?}"),
    };
    assert_eq!(limit.name, name);
    assert!(error.to_string().contains(name) && error.to_string().contains(words), "{error}");
    assert_eq!((testing::accesses().len(), testing::live("mr")), (0, 0));
}

/// Registers a vector in every way, and asserts that each is refused and gives the vector back.
#[track_caller]
fn refused_everywhere(options: &RegisterOptions, name: &str, words: &str, is_unsupported: bool) {
    let pd = domain();
    let vector = |capacity| {
        let mut vector = Vec::<u64>::with_capacity(capacity);
        vector.extend([1, 2]);
        vector
    };
    let Failed { error, object } = pd.register_with(vector(7), options).unwrap_err();
    is_refused(error, name, words, is_unsupported);
    assert_eq!((&object[..], object.capacity()), (&[1, 2][..], 7));
    let Failed { error, object } = pd.register_exposed_with(object, options).unwrap_err();
    is_refused(error, name, words, is_unsupported);
    assert_eq!((&object[..], object.capacity()), (&[1, 2][..], 7));
    let Failed { error, object } = pd.register_source_with(object, options).unwrap_err();
    is_refused(error, name, words, is_unsupported);
    assert_eq!((&object[..], object.capacity()), (&[1, 2][..], 7));
    let mut object = object;
    let error = pd.register_scoped_with(&mut object, options, |_| panic!("called")).map(drop).unwrap_err();
    is_refused(error, name, words, is_unsupported);
    static WORDS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    // SAFETY: register_raw requires initialised memory that stays valid, accessed in atomic words:
    // a static of atomics.
    let raw = unsafe { pd.register_raw(NonNull::from(&WORDS).cast(), 16, "kept", options) };
    let Failed { error, object } = raw.unwrap_err();
    is_refused(error, name, words, is_unsupported);
    assert_eq!(object, "kept");
}

#[test]
fn local_memory_is_relaxed_and_exposed_memory_is_not() {
    let pd = domain();
    let mut expected = Vec::new();
    drop(pd.register(vec![0_u8; 4]).unwrap());
    expected.push(LOCAL_WRITE | RELAXED);
    drop(pd.allocate_with(4, &options().relaxed_ordering(false)).unwrap());
    expected.push(LOCAL_WRITE);
    pd.register_scoped(&mut [0_u8; 4], |_| ()).unwrap();
    expected.push(LOCAL_WRITE | RELAXED);
    pd.register_scoped_with(&mut [0_u8; 4], &options().relaxed_ordering(false), |_| ()).unwrap();
    expected.push(LOCAL_WRITE);
    drop(pd.register_source(vec![0_u8; 4], RemoteAccess::empty()).unwrap());
    expected.push(RELAXED);
    drop(pd.register_exposed(vec![0_u8; 4], RemoteAccess::WRITE).unwrap());
    drop(pd.allocate_exposed(4, RemoteAccess::WRITE).unwrap());
    expected.extend([LOCAL_WRITE | WRITE; 2]);
    let relaxed = options().remote_access(RemoteAccess::WRITE).relaxed_ordering(true);
    drop(pd.register_exposed_with(vec![0_u8; 4], &relaxed).unwrap());
    expected.push(LOCAL_WRITE | WRITE | RELAXED);
    // Without rights for peers, others may see the bytes before the completion all the same.
    let shared = SharedOwner::new(vec![0_u8; 4]);
    drop(pd.register_exposed(shared, RemoteAccess::empty()).unwrap());
    expected.push(LOCAL_WRITE);
    assert_eq!(testing::accesses(), expected);
}

#[test]
fn a_library_without_optional_flags_registers_all_the_same() {
    let pd = domain();
    for errno in [libc::EOPNOTSUPP, libc::EINVAL] {
        testing::fail("reg_mr", errno);
        drop(pd.register(vec![0_u8; 4]).unwrap());
    }
    assert_eq!(testing::accesses(), [LOCAL_WRITE | RELAXED, LOCAL_WRITE, LOCAL_WRITE | RELAXED, LOCAL_WRITE]);
    // A refusal of what is no flag is not asked again.
    testing::fail("reg_mr", libc::ENOMEM);
    assert_eq!(pd.register(vec![0_u8; 4]).unwrap_err().error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(testing::accesses().len(), 5);
}

#[test]
fn local_memory_gives_peers_no_right() {
    let pd = domain();
    for access in [RemoteAccess::READ, RemoteAccess::all()] {
        let options = options().remote_access(access);
        let Failed { error, object } = pd.register_with(vec![1_u8, 2], &options).unwrap_err();
        is_refused(error, "remote_access", "peers do not reach local memory", false);
        assert_eq!(object, [1, 2]);
        is_refused(pd.allocate_with(4, &options).unwrap_err(), "remote_access", "local", false);
        let error = pd.register_scoped_with(&mut [0_u8], &options, |_| panic!("called")).map(drop).unwrap_err();
        is_refused(error, "remote_access", "local", false);
    }
    let options = options().remote_access(RemoteAccess::READ | RemoteAccess::WRITE);
    let error = pd.register_source_with(vec![1_u8], &options).unwrap_err().error;
    is_refused(error, "remote_access", "READ at most", false);
}

#[test]
fn what_the_device_or_the_memory_lacks_is_refused_by_name() {
    refused_everywhere(&options().on_demand(true), "on_demand", "the device has no on-demand paging", true);
    for size in [HugePages::Size2M, HugePages::Size1G] {
        refused_everywhere(&options().huge_pages(size), "huge_pages", "what the Pages were made with", false);
    }
    refused_everywhere(&options().numa_node(0), "numa_node", "what the Pages were made with", false);
    let pd = domain();
    let pages = Pages::new(100).unwrap();
    let Failed { error, object } = pd.register_with(pages, &options().huge_pages(HugePages::Size2M)).unwrap_err();
    is_refused(error, "huge_pages", "allocated without", false);
    assert_eq!(object.len(), 100);
    let error = pd.register_implicit().unwrap_err();
    is_refused(error, "on_demand", "no implicit", true);
}

#[test]
fn a_node_that_does_not_exist_is_refused() {
    for node in [1023, 1024, u32::MAX] {
        let error = Pages::with_options(100, &options().numa_node(node)).unwrap_err();
        // A container may forbid the call.
        let is_named = matches!(error.kind(), ErrorKind::UnsupportedOption(limit) if limit.name == "numa_node");
        assert!(is_named || error.kind() == ErrorKind::RefusedCall("mbind"), "{error}");
        let exposed = options().numa_node(node).remote_access(RemoteAccess::READ);
        assert_eq!(domain().allocate_exposed_with(100, &exposed).unwrap_err().kind(), error.kind());
    }
    assert_eq!(testing::accesses(), []);
}

#[test]
fn a_chosen_address_is_that_of_the_device_and_of_peers() {
    let pd = domain();
    let read = options().remote_access(RemoteAccess::READ);
    for iova in [0, 1 << 40, u64::MAX - (1 << 20) + 1] {
        let region = pd.register_exposed_with(Pages::new(8192).unwrap(), &read.clone().iova(iova)).unwrap();
        assert_eq!(testing::iovas().pop(), Some(iova));
        let (whole, end) = (region.remote(..).unwrap(), region.slice(4096..).unwrap().remote(1..3).unwrap());
        assert_eq!((whole.address(), whole.len(), end.address(), end.len()), (iova, 8192, iova + 4097, 2));
        // The contents are where they were.
        region.copy_in(4097, &[7]).unwrap();
        let pages: Pages = region.deregister().unwrap();
        assert_eq!((pages[4096], pages[4097]), (0, 7));
    }
    // The memory's own address is no other one.
    let pages = Pages::new(64).unwrap();
    let own = pages.as_ptr().addr() as u64;
    let before = testing::iovas().len();
    let region = pd.register_exposed_with(pages, &read.clone().iova(own)).unwrap();
    assert_eq!((region.remote(..).unwrap().address(), testing::iovas().len()), (own, before));
    let buffer = pd.register_with(region.deregister::<Pages>().unwrap(), &options().iova(own)).unwrap();
    assert_eq!(buffer.address(), own);
}

#[test]
fn an_address_that_may_not_be_is_refused() {
    let pd = domain();
    let own = |pages: &Pages| pages.as_ptr().addr() as u64;
    for iova in [1, 4095, 4097] {
        let Failed { error, object } =
            pd.register_exposed_with(Pages::new(64).unwrap(), &options().iova(iova)).unwrap_err();
        is_refused(error, "iova", "at the place of its page", false);
        assert_eq!(object.len(), 64);
    }
    let end = u64::MAX - 4095;
    let Failed { error, object } =
        pd.register_exposed_with(Pages::new(4096).unwrap(), &options().iova(end)).unwrap_err();
    is_refused(error, "iova", "below 2^64 less the length", false);
    // Requests copy from the address of local memory and of sources, so it is the processor's.
    let other = own(&object).wrapping_add(1 << 30);
    let Failed { error, object } = pd.register_with(object, &options().iova(other)).unwrap_err();
    is_refused(error, "iova", "at which requests copy", false);
    let Failed { error, object } = pd.register_source_with(object, &options().iova(other)).unwrap_err();
    is_refused(error, "iova", "exposed memory may have another", false);
    assert_eq!(object.len(), 4096);
    let error = pd.register_scoped_with(&mut [0_u8; 4], &options().iova(0), |_| panic!("called")).map(drop);
    is_refused(error.unwrap_err(), "iova", "at which requests copy", false);
}

#[test]
fn threads_touch_every_page_and_change_no_byte() {
    let pd = domain();
    let len = 3 * STEP + 12_345;
    let filled: Vec<u8> = (0..=250).cycle().take(len).collect();
    for threads in [1, 3, 1000] {
        let options = options().touch_threads(threads);
        let buffer = pd.register_with(filled.clone(), &options).unwrap();
        assert!(buffer[..] == filled[..]);
        let exposed = pd.register_exposed_with(buffer.deregister::<Vec<u8>>().unwrap(), &options).unwrap();
        let source = pd.register_source_with(exposed.deregister::<Vec<u8>>().unwrap(), &options).unwrap();
        assert!(source[..] == filled[..]);
        let mut vector: Vec<u8> = source.deregister().unwrap();
        pd.register_scoped_with(&mut vector[1..], &options, |memory| assert_eq!(memory[0], 1)).unwrap();
        let pages = Pages::with_options(len, &options).unwrap();
        assert!(pages.iter().all(|&byte| byte == 0) && pages.len() == len);
        assert_eq!(pd.allocate_with(len, &options).unwrap().len(), len);
        // Read-only memory is a source, too.
        drop(pd.register_source_with(&include_bytes!("options.rs")[..], &options).unwrap());
    }
}

#[test]
fn each_part_of_a_range_is_touched_once() {
    let vector = vec![3_u8; 5000];
    for (len, threads, step) in [(5000, 4, 1), (5000, 3, 4096), (1, 9, 1), (5000, 0, usize::MAX), (5000, usize::MAX, 1)]
    {
        for writes in [false, true] {
            let how = Touch { writes, may_fault: false };
            // SAFETY: touch requires valid memory that others access atomically, if at all: the
            // vector's bytes, which nobody else has.
            unsafe { touch(NonNull::from(&vector[0]), len, threads, step, how) }.unwrap();
        }
    }
    assert!(vector.iter().all(|&byte| byte == 3));
}

/// A touch does not lose what others write at the same time.
#[test]
fn touching_loses_no_concurrent_write() {
    let words: Arc<[AtomicU64]> = (0..4096).map(|_| AtomicU64::new(0)).collect();
    let (at, len) = (NonNull::from(&words[..]).cast(), size_of_val(&words[..]));
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = testing::SetOnDrop(&ends);
        let writer = scope.spawn(|| {
            let mut count = 0;
            while !ends.load(Ordering::Relaxed) {
                words.iter().for_each(|word| _ = word.fetch_add(1, Ordering::Relaxed));
                count += 1;
            }
            count
        });
        let pd = domain();
        for _ in 0..20 {
            let options = options().touch_threads(2).remote_access(RemoteAccess::READ);
            // SAFETY: register_raw requires initialised memory that stays valid, accessed in atomic
            // words: the Arc keeps it, and all accesses are those.
            drop(unsafe { pd.register_raw(at, len, Arc::clone(&words), &options) }.unwrap());
        }
        drop(end);
        let count = writer.join().unwrap();
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == count));
    });
}

/// The kernel answers for memory whose accesses may fault, so a file that ends early raises no
/// signal.
#[test]
#[cfg(not(miri))] // which maps no files
fn touching_the_map_of_a_file_that_ends_early_fails() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 16).unwrap();
    let pd = domain();
    let touched = options().touch_threads(2);
    // SAFETY: FileMap::new requires that nobody shortens the file, because an access of this
    // process would raise SIGBUS: none does after the file is shortened.
    let map = unsafe { FileMap::new(&file) }.unwrap();
    let region = pd.register_exposed_with(map, &touched).unwrap();
    let map: FileMap = region.deregister().unwrap();
    file.set_len(0).unwrap();
    match pd.register_exposed_with(map, &touched) {
        Err(failed) => assert_eq!((failed.error.verb(), failed.error.errno()), (Verb::RegisterMr, Some(libc::EFAULT))),
        // A kernel before 5.14 touches nothing.
        Ok(region) => drop(region),
    }
    let program = File::open(std::env::current_exe().unwrap()).unwrap();
    // SAFETY: FileSource::new requires a file that nobody changes: a program that runs.
    drop(pd.register_source_with(unsafe { FileSource::new(&program) }.unwrap(), &touched).unwrap());
}

/// More bytes than there are addresses: an allocation would fail in another way.
#[test]
fn an_allocation_that_is_refused_allocates_nothing() {
    let (pd, long) = (domain(), usize::MAX / 2);
    let read = options().remote_access(RemoteAccess::READ);
    is_refused(pd.allocate_with(long, &read).unwrap_err(), "remote_access", "local", false);
    for iova in [0, 4096] {
        is_refused(pd.allocate_with(long, &options().iova(iova)).unwrap_err(), "iova", "requests copy", false);
    }
    let refused = |options: &RegisterOptions| pd.allocate_exposed_with(long, options).unwrap_err();
    is_refused(refused(&read.clone().iova(1)), "iova", "at the place of its page", false);
    is_refused(refused(&read.clone().iova(u64::MAX - 4095)), "iova", "2^64 less the length", false);
    // No such node either, which only the allocation would find.
    let on_demand = options().on_demand(true).numa_node(1023);
    is_refused(pd.allocate_with(4, &on_demand).unwrap_err(), "on_demand", "no on-demand paging", true);
    let on_demand = on_demand.remote_access(RemoteAccess::READ);
    is_refused(pd.allocate_exposed_with(4, &on_demand).unwrap_err(), "on_demand", "no on-demand paging", true);
}

#[test]
fn pages_of_no_bytes_are_refused() {
    for options in
        [options(), options().touch_threads(1), options().numa_node(0), options().huge_pages(HugePages::Size2M)]
    {
        assert_eq!(Pages::with_options(0, &options).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(domain().allocate_with(0, &options).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn an_owner_of_pages_knows_how_they_were_allocated() {
    for threads in [0, 1] {
        let pages = || Pages::with_options(100, &options().touch_threads(threads)).unwrap();
        let placed = RawMemory::new(pages()).placed();
        assert_eq!(placed.is_touched, threads == 1);
        let memory = || domain().register(pages()).unwrap().into_memory().unwrap();
        assert_eq!(RawMemory::new(memory()).placed(), placed);
        assert_eq!(RawMemory::new(SharedOwner::new(pages())).placed(), placed);
        assert_eq!(RawMemory::new(SharedOwner::new(memory()).clone()).placed(), placed);
        assert_eq!(RawMemory::of_source(pages()).placed(), placed);
        assert_eq!(RawMemory::of_source(Arc::new(pages())).placed(), placed);
    }
}

#[test]
fn huge_pages_are_there_or_the_error_says_why_not() {
    for size in [HugePages::Size2M, HugePages::Size1G] {
        let huge = options().huge_pages(size).touch_threads(2);
        match Pages::with_options(5000, &huge) {
            Ok(pages) => {
                assert_eq!((pages.len(), pages.as_ptr().addr() % size.bytes()), (5000, 0));
                let buffer = domain().register_with(pages, &huge).unwrap();
                assert_eq!(buffer.deregister::<Pages>().unwrap().len(), 5000);
            }
            Err(error) => {
                let is_named =
                    matches!(error.kind(), ErrorKind::UnsupportedOption(limit) if limit.name == "huge_pages");
                assert!(is_named || error.kind() == ErrorKind::OutOfMemory, "{error}");
                assert!(error.to_string().contains("/sys/kernel/mm/hugepages"), "{error}");
            }
        }
        assert_eq!(Pages::with_options(usize::MAX - 1, &huge).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }
}

/// The flags of the mapping that holds an address.
#[cfg(all(target_os = "linux", not(miri)))]
fn flags_of_mapping(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_here, mut flags) = (false, None);
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |digits: &str| usize::from_str_radix(digits, 16).ok();
        if let Some((first, end)) = range.and_then(|(first, end)| Some((number(first)?, number(end)?))) {
            is_here = (first..end).contains(&address);
        } else if let Some(found) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
            flags = Some(format!("{found} "));
        }
    }
    flags.expect("the mapping is in smaps")
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn pages_that_are_touched_may_be_huge() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    for (len, threads, is_advised) in [(STEP, 1, true), (5 * STEP / 2, 3, true), (STEP, 0, false), (STEP / 2, 1, false)]
    {
        let pages = Pages::with_options(len, &options().touch_threads(threads)).unwrap();
        let flags = flags_of_mapping(pages.as_ptr().addr());
        assert_eq!(flags.contains(" hg "), is_advised, "{len} bytes, {threads} threads: {flags}");
        assert!(pages.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn pinned_memory_needs_no_advice() {
    let pd = domain();
    let buffer = pd.allocate(64).unwrap();
    buffer.prefetch(Prefetch::Write).unwrap();
    buffer.prefetch_and_wait(Prefetch::NoFault).unwrap();
    let source = pd.register_source(vec![1_u8], RemoteAccess::empty()).unwrap();
    source.prefetch(Prefetch::Read).unwrap();
    let region = pd.allocate_exposed(64, RemoteAccess::READ).unwrap();
    region.prefetch(Prefetch::Read).unwrap();
    region.slice(..8).unwrap().prefetch_and_wait(Prefetch::Read).unwrap();
}
