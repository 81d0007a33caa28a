//! Options of a registration: order of writes, paging on demand, huge pages, nodes, threads, chosen
//! addresses. On the device under test; what the device or the machine lacks must say so.

use std::sync::atomic::Ordering;

use rdma::{
    AtomicCapability, Error, ErrorKind, ExposedRegion, HugePages, Pages, Prefetch, ProtectionDomain, RegisterOptions,
    RemoteAccess, SourceSlice, WcStatus, op,
};
use rdma_tests::{LIMIT, LOCAL, Options, Side, all_rights, buffer, is_iwarp, pair, pattern, read, skip};
use rdma_tests::{skipped_on_iwarp, wait};

const NONE: RemoteAccess = RemoteAccess::empty();

fn options() -> RegisterOptions {
    RegisterOptions::new()
}

/// Whether the device or the machine lacks this option; fails on any other error.
fn lacks(error: Error, option: &str) -> bool {
    match error.kind() {
        ErrorKind::UnsupportedOption(limit) if limit.name == option => {
            skip(&error.to_string());
            true
        }
        _ => panic!("{error}"),
    }
}

/// Writes to a region of the peer, reads it back, and compares it with the contents there.
fn carries(a: &mut Side, region: &ExposedRegion, local: rdma::Buffer) {
    let expected = local.to_vec();
    let remote = region.remote(..expected.len()).unwrap();
    a.qp.post_send(op::write(local, remote)).unwrap();
    assert_eq!(wait(&mut a.sends).status, Ok(()));
    // On iWARP a write completes once it is sent; a read ends after it has arrived.
    assert_eq!(read(a, remote), expected);
    let mut there = vec![0; expected.len()];
    region.copy_out(0, &mut there).unwrap();
    assert_eq!(there, expected);
}

/// A buffer with contents, of memory with options.
fn filled(a: &Side, len: usize, seed: u8, options: &RegisterOptions) -> rdma::Result<rdma::Buffer> {
    let mut buffer = a.pd.allocate_with(len, options)?;
    buffer.copy_from_slice(&pattern(len, seed));
    Ok(buffer)
}

#[test]
fn the_order_of_writes_is_an_option_that_every_device_takes() {
    let (mut a, b) = pair(Options::default());
    for (seed, is_relaxed) in [(1, true), (2, false)] {
        let options = options().relaxed_ordering(is_relaxed);
        let region = b.pd.allocate_exposed_with(50_000, &options.clone().remote_access(all_rights())).unwrap();
        let local = filled(&a, 50_000, seed, &options).unwrap();
        carries(&mut a, &region, local);
    }
}

#[test]
fn pages_that_threads_have_touched_carry_data() {
    let (mut a, b) = pair(Options::default());
    let touched = options().touch_threads(3);
    let region = b.pd.allocate_exposed_with(5 << 20, &touched.clone().remote_access(all_rights())).unwrap();
    let local = filled(&a, 70_000, 3, &touched).unwrap();
    carries(&mut a, &region, local);
}

#[test]
fn peers_name_memory_by_a_chosen_address() {
    let (mut a, mut b) = pair(Options::default());
    for (seed, iova) in [(4, 0), (5, 0x7000_0000_0000)] {
        let chosen = options().remote_access(all_rights()).iova(iova);
        let region = match b.pd.allocate_exposed_with(20_000, &chosen) {
            Ok(region) => region,
            Err(error) => {
                assert!(is_iwarp(&b.context) && lacks(error, "iova"), "{error}");
                return;
            }
        };
        assert_eq!(region.remote(100..).unwrap().address(), iova + 100);
        let local = filled(&a, 20_000, seed, &options()).unwrap();
        carries(&mut a, &region, local);

        // As the memory of this side's requests: gathered from, and scattered to.
        a.qp.post_recv(a.pd.allocate(500).unwrap(), 0).unwrap();
        b.qp.post_send(op::send(region.slice(1000..1500).unwrap())).unwrap();
        assert_eq!(wait(&mut a.receives).buffer()[..], pattern(20_000, seed)[1000..1500]);
        wait(&mut b.sends);
        b.qp.post_recv(region.slice(16_000..).unwrap(), 0).unwrap();
        a.qp.post_send(op::send(buffer(&a.pd, &pattern(4000, 9)))).unwrap();
        assert_eq!(wait(&mut b.receives).byte_len, 4000);
        wait(&mut a.sends);
        let mut there = vec![0; 4000];
        region.copy_out(16_000, &mut there).unwrap();
        assert_eq!(there, pattern(4000, 9));

        if b.context.capabilities().atomics != AtomicCapability::NONE {
            region.store_u64(64, 40, Ordering::Release).unwrap();
            a.qp.post_send(op::fetch_add(a.pd.allocate(8).unwrap(), region.remote(64..72).unwrap(), 2)).unwrap();
            assert_eq!(wait(&mut a.sends).old_value, Some(40));
            assert_eq!(region.load_u64(64, Ordering::Acquire).unwrap(), 42);
        }
    }
}

/// The processor's address is none of the region any more, and neither are those around it.
#[test]
fn a_chosen_address_replaces_the_memorys_own() {
    for is_before in [false, true] {
        let (mut a, b) = pair(Options::default());
        if skipped_on_iwarp(&a.context, LOCAL) {
            return;
        }
        let pages = Pages::new(4096).unwrap();
        let own = pages.as_ptr().addr() as u64;
        let chosen = options().remote_access(all_rights()).iova(1 << 20);
        let region = b.pd.register_exposed_with(pages, &chosen).unwrap();
        let rkey = region.remote(..).unwrap().rkey();
        let outside = if is_before { (1 << 20) - 1 } else { own };
        let remote = rdma::RemoteSlice::new(outside, 8, rkey);
        a.qp.post_send(op::write(buffer(&a.pd, &[1; 8]), remote)).unwrap();
        assert_eq!(wait(&mut a.sends).status.unwrap_err().status, WcStatus::REM_ACCESS_ERR);
        let memory = region.revoke().unwrap();
        assert!(memory.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn memory_on_demand_carries_data_and_is_fetched_before() {
    let (mut a, mut b) = pair(Options::default());
    let demanded = options().on_demand(true);
    let local = match filled(&a, 100_000, 6, &demanded) {
        Ok(local) => local,
        Err(error) => return assert!(lacks(error, "on_demand")),
    };
    local.prefetch(Prefetch::Read).unwrap();
    // Atomic operations do not reach it on every device.
    let error = b.pd.allocate_exposed_with(64, &demanded.clone().remote_access(RemoteAccess::all()));
    if let Err(error) = error {
        assert!(
            matches!(error.kind(), ErrorKind::UnsupportedOption(limit) if limit.name == "remote_access"),
            "{error}"
        );
    }
    let rights = RemoteAccess::READ | RemoteAccess::WRITE;
    let region = b.pd.allocate_exposed_with(200_000, &demanded.clone().remote_access(rights)).unwrap();
    region.prefetch_and_wait(Prefetch::Write).unwrap();
    region.slice(4096..).unwrap().prefetch(Prefetch::NoFault).unwrap();
    carries(&mut a, &region, local);

    // Pages that nobody has touched are fetched when the message comes.
    let sink = b.pd.register_with(Pages::new(100_000).unwrap(), &demanded).unwrap();
    b.qp.post_recv(sink, 0).unwrap();
    let table = pattern(100_000, 7);
    let source: SourceSlice = a.pd.register_source_with(table.clone(), &demanded).unwrap();
    source.prefetch_and_wait(Prefetch::Read).unwrap();
    a.qp.post_send(op::send(source)).unwrap();
    assert_eq!(wait(&mut b.receives).buffer()[..], table[..]);
    assert_eq!(wait(&mut a.sends).status, Ok(()));

    // By another address, too.
    let chosen = demanded.remote_access(rights).iova(1 << 30);
    let region = b.pd.allocate_exposed_with(50_000, &chosen).unwrap();
    region.prefetch_and_wait(Prefetch::Write).unwrap();
    let local = filled(&a, 50_000, 8, &options()).unwrap();
    carries(&mut a, &region, local);
}

#[test]
fn any_memory_is_lent_from_an_implicit_region() {
    let (mut a, mut b) = pair(Options::default());
    let everything = match (a.pd.register_implicit(), b.pd.register_implicit()) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(error), _) | (_, Err(error)) => return assert!(lacks(error, "on_demand")),
    };
    let (words, mut sink) = ([1_u64, 2, 3], vec![0_u64; 3]);
    let lent = everything.1.lend_mut(&mut sink);
    everything.0.prefetch(&words, Prefetch::Read).unwrap();
    b.qp.scope(&mut b.receives, LIMIT, |scope| {
        scope.post_recv(lent).map_err(|refused| refused.error())?;
        let lent = everything.0.lend(&words);
        a.qp.scope(&mut a.sends, LIMIT, |scope| scope.post_send(op::send(lent)).map_err(|refused| refused.error()))
            .unwrap()
    })
    .unwrap()
    .unwrap();
    everything.1.prefetch_and_wait(&sink, Prefetch::Write).unwrap();
    assert_eq!(sink, words);

    // It gives peers nothing: not by its key, and not at any address.
    if !is_iwarp(&a.context) {
        let at = sink.as_ptr().expose_provenance() as u64;
        let remote = rdma::RemoteSlice::new(at, 8, everything.1.lkey());
        a.qp.post_send(op::write(buffer(&a.pd, &[9; 8]), remote)).unwrap();
        assert_eq!(wait(&mut a.sends).status.unwrap_err().status, WcStatus::REM_ACCESS_ERR);
        assert_eq!(sink, words);
    }
    // Memory that is lent holds the region.
    let clone = everything.0.clone();
    let failed = everything.0.close().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InUse);
    drop(clone);
    failed.object.close().unwrap();
}

/// Memory that another domain's requests do not use, whatever it is.
#[test]
fn an_implicit_region_is_of_its_domain() {
    let (mut a, _b) = pair(Options::default());
    let other = a.context.alloc_pd().unwrap();
    let Ok(region) = other.register_implicit() else {
        return skip("the device has no implicit regions");
    };
    let bytes = [0_u8; 8];
    let lent = region.lend(&bytes);
    let posted = a.qp.scope(&mut a.sends, LIMIT, |scope| {
        scope.post_send(op::send(lent)).map(drop).map_err(|refused| refused.error().kind())
    });
    assert_eq!(posted.unwrap(), Err(ErrorKind::InvalidInput));
}

/// Huge pages of both sizes, as local and as exposed memory. The virtual machine has them
/// (`RDMA_TEST_HUGE_PAGES`); elsewhere the test says why it skips.
#[test]
fn huge_pages_carry_data() {
    let expected = std::env::var("RDMA_TEST_HUGE_PAGES").unwrap_or_default();
    let (mut a, b) = pair(Options::default());
    for (size, name) in [(HugePages::Size2M, "2M"), (HugePages::Size1G, "1G")] {
        let huge = options().huge_pages(size);
        let local = match filled(&a, 300_000, 10, &huge) {
            Ok(local) => local,
            Err(error) => {
                assert!(!expected.split(',').any(|has| has == name), "{name}: {error}");
                let unsupported = matches!(error.kind(), ErrorKind::UnsupportedOption(_));
                assert!(unsupported || error.kind() == ErrorKind::OutOfMemory, "{error}");
                skip(&format!("pages of {name}: {error}"));
                continue;
            }
        };
        assert_eq!(local.address() % size.bytes() as u64, 0);
        let pages = huge_pages_of(local.address());
        assert_eq!(pages, Some(size.bytes() as u64 >> 10), "/proc/self/smaps");
        if size == HugePages::Size2M {
            let region = b.pd.allocate_exposed_with(3 << 20, &huge.remote_access(all_rights())).unwrap();
            assert_eq!(huge_pages_of(region.remote(..).unwrap().address()), Some(2048));
            carries(&mut a, &region, local);
        } else {
            let region = b.pd.allocate_exposed(300_000, all_rights()).unwrap();
            carries(&mut a, &region, local);
        }
    }
}

/// The size in KiB of the kernel's pages of the mapping at an address.
fn huge_pages_of(address: u64) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let begin = format!("{address:x}-");
    let mapping = maps.split_once(&begin)?.1;
    let size = mapping.lines().find_map(|line| line.strip_prefix("KernelPageSize:"))?;
    size.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Memory on each node that there is. The virtual machine has two (`RDMA_TEST_NODES`).
#[test]
fn memory_is_on_the_node_that_was_asked_for() {
    let expected: Option<u32> = std::env::var("RDMA_TEST_NODES").ok().map(|count| count.parse().unwrap());
    let (mut a, b) = pair(Options::default());
    for node in 0..expected.unwrap_or(1) {
        let there = options().numa_node(node);
        let local = match filled(&a, 50_000, 11, &there) {
            Ok(local) => local,
            Err(error) => {
                // A sandbox may refuse the call, and a cpuset the node.
                let may_be = match error.kind() {
                    ErrorKind::UnsupportedOption(limit) => limit.name == "numa_node",
                    kind => kind == ErrorKind::RefusedCall("mbind"),
                };
                assert!(expected.is_none() && may_be, "{error}");
                return skip(&error.to_string());
            }
        };
        let region = b.pd.allocate_exposed_with(50_000, &there.remote_access(all_rights())).unwrap();
        for address in [local.address(), region.remote(..).unwrap().address()] {
            let Some(line) = numa_maps_of(address) else { return skip("/proc/self/numa_maps is not there") };
            assert!(line.contains(&format!("bind:{node}")), "{line}");
            let on_nodes: Vec<&str> = line.split(' ').filter(|word| is_node_count(word)).collect();
            assert!(on_nodes.len() == 1 && on_nodes[0].starts_with(&format!("N{node}=")), "{line}");
        }
        carries(&mut a, &region, local);
    }
    if expected.is_none_or(|count| count == 1) {
        skip("one node was tried alone");
    }
}

/// `N0=13`: thirteen pages on node 0.
fn is_node_count(word: &str) -> bool {
    let Some((node, pages)) = word.strip_prefix('N').and_then(|rest| rest.split_once('=')) else { return false };
    node.parse::<u32>().is_ok() && pages.parse::<u64>().is_ok()
}

/// The mapping that holds an address: neighbours of one policy are one mapping.
fn numa_maps_of(address: u64) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
    let start = |line: &str| u64::from_str_radix(line.split(' ').next()?, 16).ok();
    let before = |line: &&str| start(line).is_some_and(|start| start <= address);
    maps.lines().filter(before).max_by_key(|line| start(line)).map(str::to_owned)
}

#[test]
fn a_device_knows_its_node() {
    let (a, _b) = pair(Options::default());
    // That of its bus: rxe, siw and soft0 have none, and -1 is none.
    let device = a.context.device();
    let node = std::fs::read_to_string(format!("/sys/class/infiniband/{}/device/numa_node", device.name()));
    let node = node.ok().and_then(|node| u32::try_from(node.trim().parse::<i32>().unwrap()).ok());
    assert_eq!(device.numa_node(), node);
    assert!(!device.is_software() || node.is_none());
    assert!(a.pd.register_exposed_with(vec![0_u8; 8], &options().remote_access(NONE)).is_ok());
}

/// An option of the list below: its name and a value.
type Named = (&'static str, fn(RegisterOptions) -> RegisterOptions);

const EACH_OPTION: [Named; 7] = [
    ("remote_access", |options| options.remote_access(all_rights())),
    ("relaxed_ordering", |options| options.relaxed_ordering(true)),
    ("on_demand", |options| options.on_demand(true)),
    ("huge_pages", |options| options.huge_pages(HugePages::Size2M)),
    ("numa_node", |options| options.numa_node(0)),
    ("touch_threads", |options| options.touch_threads(2)),
    ("iova", |options| options.iova(0)),
];

/// A way to register or to allocate memory with options, by its name.
type Registers = (&'static str, fn(&ProtectionDomain, &RegisterOptions) -> rdma::Result<()>);

const EACH_WAY: [Registers; 6] = [
    ("register_with", |pd, options| {
        drop(pd.register_with(vec![0_u8; 5000], options)?);
        Ok(())
    }),
    ("register_exposed_with", |pd, options| {
        drop(pd.register_exposed_with(Pages::new(5000)?, options)?);
        Ok(())
    }),
    ("register_source_with", |pd, options| {
        drop(pd.register_source_with(vec![0_u8; 5000], options)?);
        Ok(())
    }),
    ("register_scoped_with", |pd, options| pd.register_scoped_with(&mut [0_u8; 5000], options, |_| ())),
    ("allocate_with", |pd, options| {
        drop(pd.allocate_with(5000, options)?);
        Ok(())
    }),
    ("allocate_exposed_with", |pd, options| {
        drop(pd.allocate_exposed_with(5000, options)?);
        Ok(())
    }),
];

/// Whether the machine has no pages of this kind at this moment: then the options say nothing.
fn has_no_pages(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::RefusedCall(_))
}

/// The option that an error is about, with the error's text.
#[track_caller]
fn refused(error: &Error, pair: &str) -> (&'static str, String) {
    match error.kind() {
        ErrorKind::InvalidOption(limit) | ErrorKind::UnsupportedOption(limit) => (limit.name, error.to_string()),
        kind => panic!("{pair}: {error} ({kind:?}) names no option"),
    }
}

/// Two options that are allowed each by itself, and not together, contradict each other: the error
/// names both. Otherwise it names the one that is refused by itself.
#[test]
fn the_error_of_options_that_contradict_each_other_names_both() {
    let (a, _b) = pair(Options::default());
    let mut contradictions = Vec::new();
    for (way, register) in EACH_WAY {
        // An allocation for peers is for peers with a right.
        let start =
            || if way == "allocate_exposed_with" { options().remote_access(RemoteAccess::READ) } else { options() };
        for (at, (first, set_first)) in EACH_OPTION.into_iter().enumerate() {
            for (second, set_second) in EACH_OPTION.into_iter().skip(at + 1) {
                let alone = [set_first, set_second].map(|set| register(&a.pd, &set(start())).err());
                let both = register(&a.pd, &set_second(set_first(start()))).err();
                if alone.iter().chain([&both]).flatten().any(has_no_pages) {
                    continue;
                }
                let pair = format!("{way} with {first} and {second}");
                let alone = alone.map(|error| error.as_ref().map(|error| refused(error, &pair)));
                match (both.as_ref().map(|error| refused(error, &pair)), &alone) {
                    (None, alone) => assert_eq!(alone, &[None, None], "{pair}: one option takes back the other"),
                    (Some((_, text)), [None, None]) => {
                        assert!(text.contains(first) && text.contains(second), "{pair}: {text}");
                        contradictions.push((way, first, second));
                    }
                    (both, alone) => {
                        assert!(alone.contains(&both), "{pair}: {both:?}, and by themselves {alone:?}");
                    }
                }
            }
        }
    }
    // soft0 has no atomic operations on memory on demand.
    if a.context.device().name().starts_with("soft") {
        let expected = ["register_exposed_with", "allocate_exposed_with"];
        assert_eq!(contradictions, expected.map(|way| (way, "remote_access", "on_demand")));
    }
}
