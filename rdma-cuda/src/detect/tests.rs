//! Tests of causes: what is said for each set of facts.

use rdma::{ErrorKind, Verb};

use super::*;
use crate::error::CudaError;

/// Facts of a machine on which everything works.
fn sound() -> Facts {
    Facts {
        host: HostFacts {
            kernel: Some("6.12.0-amd64".into()),
            peer_memory: true,
            open_modules: Some(true),
            is_confidential: false,
        },
        gpu: GpuFacts {
            name: "NVIDIA H100 80GB HBM3".into(),
            driver: Some(DriverVersion(12_080)),
            rdma: Some(true),
            dma_buf: Some(true),
        },
        nic: NicFacts { name: "mlx5_0".into(), is_software: false, dma_buf: Ok(()) },
        memory: MemoryFacts::default(),
    }
}

/// The causes after a change of the sound facts.
fn causes(change: impl FnOnce(&mut Facts)) -> Vec<Cause> {
    let mut facts = sound();
    change(&mut facts);
    facts.causes()
}

/// The causes on the same machine without a peer memory module.
fn without_peer_memory(change: impl FnOnce(&mut Facts)) -> Vec<Cause> {
    causes(|facts| {
        facts.host.peer_memory = false;
        change(facts);
    })
}

fn refused(kind: ErrorKind) -> rdma::Error {
    rdma::Error::new(Verb::RegisterDmaBuf, kind)
}

#[test]
fn one_way_is_enough() {
    assert_eq!(causes(|_| ()), []);
    assert_eq!(without_peer_memory(|_| ()), []);
    assert_eq!(causes(|facts| facts.nic.dma_buf = Err(refused(ErrorKind::NotSupported))), []);
    assert_eq!(causes(|facts| facts.gpu.dma_buf = Some(false)), []);
}

#[test]
fn the_software_device_takes_all_memory_that_the_driver_can_copy() {
    let soft = |change: &dyn Fn(&mut Facts)| {
        causes(|facts| {
            (facts.nic.is_software, facts.nic.dma_buf) = (true, Err(refused(ErrorKind::NotSupported)));
            (facts.host.peer_memory, facts.gpu.rdma, facts.memory.rdma) = (false, Some(false), Some(false));
            change(facts);
        })
    };
    for kind in [MemoryKind::Device, MemoryKind::Pool, MemoryKind::Managed] {
        assert_eq!(soft(&|facts| facts.memory.kind = Some(kind)), []);
    }
    assert_eq!(soft(&|facts| facts.memory.kind = Some(MemoryKind::Host)), [Cause::HostMemory]);
    assert_eq!(soft(&|facts| facts.memory.kind = Some(MemoryKind::Foreign)), [Cause::NotCuda]);
}

#[test]
fn memory_of_the_wrong_kind_is_the_only_cause() {
    for (kind, cause) in [
        (MemoryKind::Pool, Cause::Pool),
        (MemoryKind::Managed, Cause::Managed),
        (MemoryKind::Host, Cause::HostMemory),
        (MemoryKind::Foreign, Cause::NotCuda),
    ] {
        let found = without_peer_memory(|facts| {
            facts.memory.kind = Some(kind);
            facts.gpu.rdma = Some(false);
        });
        assert_eq!(found, [cause]);
    }
    assert_eq!(causes(|facts| facts.memory.kind = Some(MemoryKind::Device)), []);
}

#[test]
fn the_drivers_word_counts() {
    let memory = |kind, rdma| MemoryFacts { kind: Some(kind), rdma, ..MemoryFacts::default() };
    assert_eq!(causes(|facts| facts.memory = memory(MemoryKind::Pool, Some(true))), []);
    assert_eq!(causes(|facts| facts.memory = memory(MemoryKind::Device, Some(true))), []);
    assert_eq!(causes(|facts| facts.memory = memory(MemoryKind::Device, None)), []);
    let refused = |facts: &mut Facts| facts.memory = memory(MemoryKind::Device, Some(false));
    assert_eq!(causes(refused), [Cause::NotCapable]);
    let on_a_geforce = causes(|facts| {
        refused(facts);
        facts.gpu = GpuFacts { name: "GeForce".into(), rdma: Some(false), ..GpuFacts::default() };
    });
    assert_eq!(on_a_geforce, [Cause::GeForce]);
}

#[test]
fn a_gpu_without_rdma_is_named() {
    let with_name = |name: &str| {
        causes(|facts| {
            facts.gpu.rdma = Some(false);
            facts.gpu.name = name.into();
        })
    };
    assert_eq!(with_name("NVIDIA GeForce RTX 4090"), [Cause::GeForce]);
    assert_eq!(with_name("Some other GPU"), [Cause::GpuWithoutRdma]);
}

#[test]
fn each_way_has_a_cause() {
    let unsupported = refused(ErrorKind::NotSupported);
    let without_dma_buf = |change: fn(&mut Facts)| {
        let found = without_peer_memory(|facts| {
            facts.gpu.dma_buf = Some(false);
            change(facts);
        });
        assert_eq!(found[1..], [Cause::NoPeerMemory]);
        found[0].clone()
    };
    assert_eq!(without_dma_buf(|_| ()), Cause::NoExport);
    assert_eq!(without_dma_buf(|facts| facts.host.open_modules = Some(false)), Cause::ClosedModules);
    assert_eq!(without_dma_buf(|facts| facts.host.is_confidential = true), Cause::Confidential);
    assert_eq!(without_dma_buf(|facts| facts.gpu.driver = Some(DriverVersion(11_060))), Cause::DriverTooOld);

    let found = without_peer_memory(|facts| facts.nic.dma_buf = Err(unsupported));
    assert_eq!(found, [Cause::NicWithoutDmaBuf(unsupported), Cause::NoPeerMemory]);
    let found = without_peer_memory(|facts| {
        facts.nic.dma_buf = Err(unsupported);
        facts.host.kernel = Some("5.10.0-28-amd64".into());
    });
    assert_eq!(found, [Cause::KernelTooOld, Cause::NoPeerMemory]);
}

#[test]
fn a_refused_registration_is_explained() {
    let invalid = refused(ErrorKind::InvalidInput);
    let memory = refused(ErrorKind::OutOfMemory);
    let found = without_peer_memory(|facts| {
        facts.memory.dma_buf = Some(invalid);
        facts.memory.exported = Some((4096, 8192));
    });
    assert_eq!(found, [Cause::BeyondExport { size: 4096, needed: 8192 }, Cause::NoPeerMemory]);
    let found = causes(|facts| {
        facts.memory.dma_buf = Some(memory);
        facts.memory.exported = Some((8192, 8192));
        facts.memory.peer_memory = Some(invalid);
    });
    assert_eq!(found, [Cause::OutOfMemory(memory), Cause::Refused(invalid)]);
    let export: Error =
        CudaError::new("cuMemGetHandleForAddressRange", 801, "CUDA_ERROR_NOT_SUPPORTED", "not supported").into();
    let found = without_peer_memory(|facts| facts.memory.export = Some(export.clone()));
    assert_eq!(found, [Cause::ExportFailed(export), Cause::NoPeerMemory]);
    assert!(found[0].to_string().contains("CUDA_ERROR_NOT_SUPPORTED (801)"), "{}", found[0]);
}

#[test]
fn a_cause_says_what_to_do() {
    assert_eq!(Cause::NoPeerMemory.to_string(), "no peer memory module (nvidia-peermem) is loaded");
    assert_eq!(Cause::NoPeerMemory.remedy(), "run `modprobe nvidia-peermem` as root");
    let text = Cause::BeyondExport { size: 1, needed: 2 }.to_string();
    assert!(text.contains("needs 2 bytes, but the driver exported 1"), "{text}");
}

#[test]
fn memory_is_classified_by_the_drivers_word() {
    let plain = PointerAttributes {
        memory_type: MemoryType::DEVICE,
        is_managed: false,
        is_pool: false,
        ordinal: 0,
        is_rdma_capable: Some(true),
    };
    for (attributes, kind) in [
        (Some(plain), MemoryKind::Device),
        (Some(PointerAttributes { is_pool: true, ..plain }), MemoryKind::Pool),
        (Some(PointerAttributes { is_managed: true, is_pool: true, ..plain }), MemoryKind::Managed),
        (Some(PointerAttributes { memory_type: MemoryType::HOST, ..plain }), MemoryKind::Host),
        (None, MemoryKind::Foreign),
    ] {
        assert_eq!(MemoryKind::of(attributes.as_ref()), kind);
    }
}

#[test]
fn a_gpu_and_a_nic_are_asked() {
    let driver = crate::testing::stand_in();
    let facts = |ordinal| GpuFacts::of(&driver.gpu(ordinal).unwrap());
    let hopper = facts(0);
    assert_eq!((hopper.rdma, hopper.dma_buf, hopper.driver), (Some(true), Some(true), Some(DriverVersion(12_080))));
    assert_eq!(facts(2).rdma, Some(false));
    assert_eq!((facts(3).rdma, facts(3).dma_buf), (Some(true), Some(false)));
    let soft = rdma::open(&"soft0".parse().unwrap()).unwrap();
    let nic = NicFacts::of(&soft.context.alloc_pd().unwrap());
    assert_eq!((nic.name.as_str(), nic.is_software), ("soft0", true));
    assert_eq!(nic.dma_buf.unwrap_err().kind(), ErrorKind::NotSupported);
}

#[test]
fn kernels_are_compared_by_number() {
    let old = |kernel: &str| HostFacts { kernel: Some(kernel.into()), ..HostFacts::default() }.is_too_old();
    assert!(old("5.11.22") && old("4.18.0-553.el8.x86_64") && old("5.4.0-150-generic"));
    assert!(!old("5.12.0") && !old("5.12-rc1") && !old("6.1.0") && !old("10.0") && !old("unknown") && !old(""));
    assert!(!HostFacts::default().is_too_old());
}

#[test]
fn a_host_is_read_from_its_files() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    assert_eq!(HostFacts::below(root.path()), HostFacts::default());
    write("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14\n");
    let closed = HostFacts::below(root.path());
    assert_eq!((closed.kernel.as_deref(), closed.open_modules), (Some("6.1.0-18-amd64"), Some(false)));
    write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n");
    write("dev/tdx_guest", "");
    let open = HostFacts::below(root.path());
    assert!(open.is_confidential && !open.peer_memory && open.open_modules == Some(true));
}

#[test]
fn any_of_the_peer_memory_modules_counts() {
    for path in PEER_MEMORY {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
        assert!(!HostFacts::below(root.path()).peer_memory);
        fs::write(root.path().join(path), "1.0\n").unwrap();
        assert!(HostFacts::below(root.path()).peer_memory, "{path}");
    }
}
