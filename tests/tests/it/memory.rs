//! Memory that the program already has: owners, sources, memory of several regions, memory that is
//! registered while it is borrowed. On the device under test.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma::{FileMap, FileSource, Pages, RawOwner, RegisterOptions, RemoteAccess, SharedOwner, WcStatus, op};
use rdma_tests::{LIMIT, LOCAL, Options, all_rights, buffer, pair, pattern, poll, read, skipped_on_iwarp, wait};

const NONE: RemoteAccess = RemoteAccess::empty();

/// A file whose bytes are in the program: read-only pages of a file's map.
static PROGRAM: &[u8] = include_bytes!("memory.rs");

#[test]
fn elements_travel_and_their_owners_come_back() {
    let (mut a, mut b) = pair(Options::default());
    let floats: Vec<f32> = (0_u16..3000).map(f32::from).collect();
    let expected = floats.clone();
    let message = a.pd.register(floats).unwrap();
    let sink = b.pd.register(vec![0_f32; 3000].into_boxed_slice()).unwrap();
    b.qp.post_recv(sink, 0).unwrap();
    a.qp.post_send(op::send(message)).unwrap();
    let sink = wait(&mut b.receives).buffer();
    assert_eq!(sink.elements::<f32>().unwrap(), expected);
    assert_eq!(*sink.deregister::<Box<[f32]>>().unwrap(), expected);
    assert_eq!(wait(&mut a.sends).buffer().deregister::<Vec<f32>>().unwrap(), expected);

    let mut pages = Pages::new(10_000).unwrap();
    pages.copy_from_slice(&pattern(10_000, 1));
    b.qp.post_recv(b.pd.register(Pages::new(10_000).unwrap()).unwrap(), 0).unwrap();
    a.qp.post_send(op::send(a.pd.register(pages).unwrap())).unwrap();
    let received: Pages = wait(&mut b.receives).buffer().deregister().unwrap();
    assert_eq!(received[..], pattern(10_000, 1));
    wait(&mut a.sends);
}

#[test]
fn sources_are_sent_and_written_from_while_they_are_read() {
    let (mut a, mut b) = pair(Options::default());
    let table: Arc<[u8]> = pattern(100_000, 2).into();
    let shared = a.pd.register_source(Arc::clone(&table), NONE).unwrap();
    let program = a.pd.register_source(PROGRAM, NONE).unwrap();
    b.qp.post_recv(b.pd.allocate(table.len()).unwrap(), 0).unwrap();
    a.qp.post_send(op::send(shared.clone()).unsignaled()).unwrap();
    let region = b.pd.allocate_exposed(PROGRAM.len(), all_rights()).unwrap();
    a.qp.post_send(op::write(program.clone(), region.remote(..).unwrap())).unwrap();
    assert_eq!(shared[..], table[..]);
    assert_eq!(wait(&mut b.receives).buffer()[..], table[..]);
    assert_eq!(wait(&mut a.sends).status, Ok(()));
    // On iWARP a write completes once it is sent; a read ends after it has arrived.
    assert_eq!(read(&mut a, region.remote(..1).unwrap()), PROGRAM[..1]);
    let mut written = vec![0; PROGRAM.len()];
    region.copy_out(0, &mut written).unwrap();
    assert_eq!(written, PROGRAM);
    // The poller keeps the memory of its latest completion until it is used again.
    assert!(poll(&mut a.sends).is_none());
    program.deregister::<&[u8]>().unwrap();
    assert!(Arc::ptr_eq(&shared.deregister::<Arc<[u8]>>().unwrap(), &table));
}

#[test]
fn peers_read_a_source_and_do_not_write_it() {
    let (mut a, b) = pair(Options::default());
    let source = b.pd.register_source(vec![7_u32; 1000], RemoteAccess::READ).unwrap();
    let bytes = read(&mut a, source.remote(400..800).unwrap());
    assert_eq!(bytes, [7, 0, 0, 0].repeat(100));
    if skipped_on_iwarp(&a.context, LOCAL) {
        return;
    }
    a.qp.post_send(op::write(buffer(&a.pd, b"no"), source.remote(..).unwrap())).unwrap();
    assert_eq!(wait(&mut a.sends).status.unwrap_err().status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(source.deregister::<Vec<u32>>().unwrap(), [7; 1000]);
}

#[test]
fn a_source_without_rights_is_closed_to_peers() {
    let (mut a, b) = pair(Options::default());
    if skipped_on_iwarp(&a.context, LOCAL) {
        return;
    }
    let source = b.pd.register_source(PROGRAM, NONE).unwrap();
    a.qp.post_send(op::read(a.pd.allocate(8).unwrap(), source.remote(..8).unwrap())).unwrap();
    assert_eq!(wait(&mut a.sends).status.unwrap_err().status, WcStatus::REM_ACCESS_ERR);
}

#[test]
fn memory_is_lent_for_a_function() {
    let (mut a, mut b) = pair(Options::default());
    let (words, mut sink) = ([1_u64, 2, 3, 4], [0_u16; 8]);
    b.qp.post_recv(b.pd.allocate(64).unwrap(), 0).unwrap();
    let mut sent = words;
    a.pd.register_scoped(&mut sent, |memory| {
        let lent = memory.lend(1..3);
        let (qp, poller) = (&mut a.qp, &mut a.sends);
        qp.scope(poller, LIMIT, |scope| scope.post_send(op::send(lent)).map_err(|refused| refused.error()))
    })
    .unwrap()
    .unwrap()
    .unwrap();
    let received = wait(&mut b.receives);
    assert_eq!((received.byte_len, received.buffer().elements::<u64>().unwrap()[..2].to_vec()), (16, vec![2, 3]));

    let (pd, qp, poller) = (&b.pd, &mut b.qp, &mut b.receives);
    pd.register_scoped(&mut sink, |memory| {
        let lent = memory.lend_mut(2..5);
        qp.scope(poller, LIMIT, |scope| {
            scope.post_recv(lent).map_err(|refused| refused.error())?;
            // Not before: on iWARP, a message without a receive ends the connection.
            a.qp.post_send(op::send(buffer(&a.pd, &[9; 6]))).map_err(|refused| refused.error())
        })
    })
    .unwrap()
    .unwrap()
    .unwrap();
    assert_eq!((words, sink), (sent, [0, 0, 0x0909, 0x0909, 0x0909, 0, 0, 0]));
    wait(&mut a.sends);
}

#[test]
fn one_memory_is_in_several_domains() {
    let (mut a, b) = pair(Options::default());
    let table = SharedOwner::new(vec![0_u64; 512]);
    let local = a.pd.register_exposed(table.clone(), NONE).unwrap();
    let remote = b.pd.register_exposed(table.clone(), all_rights()).unwrap();
    local.store_u64(0, 42, Ordering::Release).unwrap();
    // Its own bytes, by the other domain's key.
    a.qp.post_send(op::write(local.slice(..8).unwrap(), remote.remote(8..16).unwrap())).unwrap();
    assert_eq!(wait(&mut a.sends).status, Ok(()));
    let bytes = read(&mut a, remote.remote(..16).unwrap());
    assert_eq!(bytes, [42_u64.to_ne_bytes(), 42_u64.to_ne_bytes()].concat());
    drop((local, remote));
    let words = table.into_owner().expect("no region has it");
    assert_eq!(words[..3], [42, 42, 0]);
}

#[test]
fn peers_reach_memory_that_something_else_keeps() {
    let (mut a, b) = pair(Options::default());
    let counters: Arc<[AtomicU64]> = (0..64).map(AtomicU64::new).collect();
    let (at, len) = (NonNull::from(&counters[..]).cast(), size_of_val(&counters[..]));
    let options = RegisterOptions::new().remote_access(RemoteAccess::READ);
    // SAFETY: register_raw requires initialised memory that stays valid, accessed in atomic words:
    // the Arc keeps them, and they are atomics.
    let region = unsafe { b.pd.register_raw(at, len, Arc::clone(&counters), &options) }.unwrap();
    counters[3].store(33, Ordering::Release);
    let bytes = read(&mut a, region.remote(24..40).unwrap());
    assert_eq!(bytes, [33_u64.to_ne_bytes(), 4_u64.to_ne_bytes()].concat());
    let owner: RawOwner<Arc<[AtomicU64]>> = region.deregister().unwrap();
    assert_eq!(Arc::strong_count(&owner.into_keep_alive()), 2);
}

#[test]
fn a_file_that_is_shortened_fails_requests_and_not_the_process() {
    let (mut a, mut b) = pair(Options::default());
    let file = File::from(rdma::mem::shared::memfd(c"shortened").unwrap());
    file.set_len(16384).unwrap();
    // SAFETY: FileMap::new requires a file that nobody shortens, because an access of this process
    // would raise SIGBUS: this test shortens it, and then no code but the device's accesses it.
    let map = unsafe { FileMap::new(&file) }.unwrap();
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let registered = b.pd.register_exposed(map, access);
    let Ok(region) = registered else {
        assert!(!b.context.is_software(), "{:?}", registered.err());
        rdma_tests::skip("the kernel pins no file of this file system");
        return;
    };
    let remote = region.remote(8192..).unwrap();
    a.qp.post_send(op::write(buffer(&a.pd, &pattern(5000, 5)), remote)).unwrap();
    assert_eq!(wait(&mut a.sends).status, Ok(()));
    // On iWARP a write completes once it is sent; a read ends after it has arrived.
    assert_eq!(read(&mut a, remote.slice(..1).unwrap()), pattern(1, 5));
    let mut written = vec![0; 5000];
    file.read_exact_at(&mut written, 8192).unwrap();
    assert_eq!(written, pattern(5000, 5));
    b.qp.post_recv(region.slice(..100).unwrap(), 0).unwrap();
    a.qp.post_send(op::send(buffer(&a.pd, b"received into the file"))).unwrap();
    assert_eq!(wait(&mut b.receives).status, Ok(()));
    wait(&mut a.sends);
    if !b.context.is_software() {
        // Its pages are pinned, and it goes on.
        return;
    }
    file.set_len(8192).unwrap();
    a.qp.post_send(op::write(buffer(&a.pd, &pattern(5000, 6)), remote)).unwrap();
    assert_eq!(wait(&mut a.sends).status.unwrap_err().status, WcStatus::REM_ACCESS_ERR);
    region.deregister::<FileMap>().unwrap();

    // As the local memory of a request, too.
    let (mut a, _b) = pair(Options::default());
    // SAFETY: as above: once the file is shortened, only the device accesses it.
    let map = unsafe { FileSource::new(&file) }.unwrap();
    let source = a.pd.register_source(map, NONE).unwrap();
    file.set_len(0).unwrap();
    a.qp.post_send(op::send(source)).unwrap();
    assert_eq!(wait(&mut a.sends).status.unwrap_err().status, WcStatus::LOC_PROT_ERR);
}
