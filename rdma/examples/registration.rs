//! The kinds of memory that a program may have already, and how each is registered: given away,
//! lent, shared, in a file, kept by something else. Memory that is allocated for the device, with
//! options. And memory that is registered once for many buffers.
//!
//! `memory.rs` sends some of them. Memory of GPUs is `rdma-cuda`'s.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rdma::{
    Device, DeviceSelector, ErrorKind, FileMap, FileSource, HugePages, Pages, Pool, ProtectionDomain, RawOwner,
    RegionMap, RegisterOptions, RemoteAccess, SharedOwner,
};

fn main() -> Result<(), Box<dyn Error>> {
    let opened = rdma::open(&DeviceSelector::from_env()?)?;
    let pd = opened.context.alloc_pd()?;
    // As if it were a second device.
    let second = opened.context.alloc_pd()?;
    given_away(&pd)?;
    lent(&pd)?;
    of_several_devices(&pd, &second)?;
    files(&pd)?;
    kept_by_others(&pd)?;
    large_pages(&pd)?;
    near_the_device(&pd, opened.context.device())?;
    by_other_rules(&pd)?;
    pooled(&pd, &second)?;
    Ok(())
}

/// Vectors, boxes and pages of any plain elements, which come back as they were.
fn given_away(pd: &ProtectionDomain) -> Result<(), Box<dyn Error>> {
    let numbers: Vec<f32> = pd.register(vec![0.5_f32; 1024])?.deregister()?;
    let boxed: Box<[[u16; 3]]> = pd.register(vec![[1_u16, 2, 3]; 10].into_boxed_slice())?.deregister()?;
    let mut pages = Pages::new(1 << 16)?;
    pages[0] = 7;
    let pages: Pages = pd.register_exposed(pages, RemoteAccess::WRITE)?.deregister()?;
    println!("{} numbers, {} triples and {} bytes came back", numbers.len(), boxed.len(), pages.len());
    #[cfg(feature = "bytes")]
    {
        let bytes: bytes::BytesMut = pd.register(bytes::BytesMut::zeroed(100))?.deregister()?;
        assert_eq!(bytes.len(), 100);
    }
    // What the device refuses comes back, too.
    let failed = pd.register(Vec::<u64>::with_capacity(100)).unwrap_err();
    println!("{}: {} numbers of capacity came back", failed.error, failed.object.capacity());
    Ok(())
}

/// A slice that a function has borrowed. It is registered and deregistered in each call.
fn lent(pd: &ProtectionDomain) -> Result<(), Box<dyn Error>> {
    let mut on_the_stack = [0_u16; 2048];
    pd.register_scoped(&mut on_the_stack, |memory| memory.fill(7))?;
    assert!(on_the_stack.iter().all(|&number| number == 7));
    Ok(())
}

/// One memory, registered with each of several devices.
fn of_several_devices(pd: &ProtectionDomain, second: &ProtectionDomain) -> Result<(), Box<dyn Error>> {
    let table = SharedOwner::new(vec![0_u64; 512]);
    let on_first = pd.register_exposed(table.clone(), RemoteAccess::READ)?;
    let on_second = second.register_exposed(table.clone(), RemoteAccess::READ)?;
    on_first.store_u64(8, 42, Ordering::Release)?;
    println!("the second device reads {}", on_second.load_u64(8, Ordering::Acquire)?);
    drop((on_first, on_second));
    let numbers: Vec<u64> = table.into_owner().map_err(|_| "a region has it")?;
    assert_eq!(numbers[1], 42);
    Ok(())
}

/// A file that peers write to, and one that is only read.
fn files(pd: &ProtectionDomain) -> Result<(), Box<dyn Error>> {
    let file: File = tempfile::tempfile()?;
    file.set_len(1 << 16)?;
    // SAFETY: FileMap::new requires that nobody shortens the file, and that others access it as
    // shared memory: it has no name, and this process alone has it.
    let map = unsafe { FileMap::new(&file)? };
    let table = pd.register_exposed(map, RemoteAccess::READ | RemoteAccess::WRITE)?;
    table.copy_in(0, b"in the file")?;
    let _map: FileMap = table.deregister()?;

    let mut weights = tempfile::tempfile()?;
    weights.write_all(&[1; 4096])?;
    // SAFETY: FileSource::new requires that nobody writes to the file or shortens it: as above.
    let source = unsafe { FileSource::new(&weights)? };
    let source = pd.register_source(source, RemoteAccess::READ)?;
    println!("a file of {} bytes, registered without a right to write", source.len());
    Ok(())
}

/// An arena that this program and peers access at any time, and a map from its addresses to its
/// registered parts.
fn kept_by_others(pd: &ProtectionDomain) -> Result<(), Box<dyn Error>> {
    let arena: Arc<[AtomicU64]> = (0..1024).map(AtomicU64::new).collect();
    let regions = RegionMap::new();
    let options = RegisterOptions::new().remote_access(RemoteAccess::READ);
    for part in arena.chunks(512) {
        let (at, len) = (NonNull::from(part).cast(), size_of_val(part));
        // SAFETY: register_raw requires memory that stays in place and is accessed as shared memory
        // is: an Arc keeps it, and this program accesses it in atomic words.
        regions.insert(unsafe { pd.register_raw(at, len, Arc::clone(&arena), &options)? })?;
    }
    // What an engine is told: an address and a length.
    let address = NonNull::from(&arena[700]).addr().get() as u64;
    let slice = regions.find(address, 16).ok_or("not registered")?;
    println!("{} parts; the word at the address is {}", regions.len(), slice.load_u64(0, Ordering::Relaxed)?);
    drop(slice);
    for region in regions.drain() {
        let owner: RawOwner<Arc<[AtomicU64]>> = region.deregister()?;
        assert!(Arc::ptr_eq(&owner.into_keep_alive(), &arena));
    }
    Ok(())
}

/// What a machine or a device has, or `None` and a line why not.
fn if_there<T>(what: &str, made: Result<T, rdma::Error>) -> Result<Option<T>, rdma::Error> {
    match made {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.kind() {
            // The device or the kernel lacks it; no huge pages are reserved; a sandbox refuses.
            ErrorKind::UnsupportedOption(_) | ErrorKind::OutOfMemory | ErrorKind::RefusedCall(_) => {
                println!("{what}: none here ({error})");
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

/// Huge pages, of those that the administrator has reserved; and those that the kernel makes by
/// itself, for memory that threads allocate before the registration.
fn large_pages(pd: &ProtectionDomain) -> Result<(), Box<dyn Error>> {
    for size in [HugePages::Size2M, HugePages::Size1G] {
        let (what, options) = (format!("pages of {} MiB", size.bytes() >> 20), RegisterOptions::new().huge_pages(size));
        // Local memory, and memory for peers.
        let Some(buffer) = if_there(&what, pd.allocate_with(1 << 20, &options))? else { continue };
        let exposed = options.remote_access(RemoteAccess::WRITE | RemoteAccess::READ);
        let exposed = if_there(&what, pd.allocate_exposed_with(1 << 20, &exposed))?;
        println!("{what}: at {:#x}, and for peers {}", buffer.address(), exposed.is_some());
    }
    let touched = pd.allocate_with(8 << 20, &RegisterOptions::new().touch_threads(4))?;
    println!("{} bytes, allocated by four threads", touched.len());
    Ok(())
}

/// Memory of the NUMA node that the device is at.
fn near_the_device(pd: &ProtectionDomain, device: &Device) -> Result<(), Box<dyn Error>> {
    // Software devices are at none: as if it were the first one.
    let node = device.numa_node().unwrap_or(0);
    let near = pd.allocate_with(1 << 16, &RegisterOptions::new().numa_node(node));
    if let Some(buffer) = if_there("memory of a node", near)? {
        println!("{} bytes of node {node}", buffer.len());
    }
    Ok(())
}

/// Addresses, ordering and pinning other than the usual ones.
fn by_other_rules(pd: &ProtectionDomain) -> Result<(), Box<dyn Error>> {
    // Peers name the bytes by their offsets. They wait for completions, so the order of writes
    // within a request does not matter.
    let options = RegisterOptions::new().remote_access(RemoteAccess::WRITE).relaxed_ordering(true).iova(0);
    if let Some(blocks) = if_there("an address of choice", pd.allocate_exposed_with(1 << 16, &options))? {
        assert_eq!(blocks.remote(4096..)?.address(), 4096);
        println!("byte 4096 is at the address 4096");
    }
    // Nothing is pinned: the device fetches pages as it needs them.
    let on_demand = pd.register_with(vec![0_u8; 1 << 20], &RegisterOptions::new().on_demand(true));
    if let Some(buffer) = if_there("paging on demand", on_demand.map_err(|failed| failed.error))? {
        let vector: Vec<u8> = buffer.deregister()?;
        println!("{} bytes on demand came back", vector.len());
    }
    Ok(())
}

/// Buffers of a pool, for both devices, which any thread gives back.
fn pooled(pd: &ProtectionDomain, second: &ProtectionDomain) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder(pd).domain(second).class(256, 64).class(64 << 10, 8).build()?;
    let (mut short, long) = (pool.take(5)?, pool.take(10_000)?);
    short.copy_from_slice(b"hello");
    thread::scope(|scope| {
        scope.spawn(move || drop((short, long)));
        // Waits, if need be.
        let all: Vec<_> = (0..8).map(|_| pool.take_blocking(64 << 10, None)).collect();
        println!("{} long buffers", all.len());
    });
    for class in pool.stats() {
        println!("of {} bytes: {} taken, {} in use", class.size, class.taken, class.in_use());
    }
    Ok(())
}
