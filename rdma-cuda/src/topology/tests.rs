//! Tests of distances, on copies of other machines' sysfs.

use std::os::unix::fs::symlink;

use super::Distance::{Loc, Phb, Pix, Pxb, Sys, Unknown};
use super::*;

/// A machine made from a text of `fixtures`: a line for each PCI device.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new(fixture: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["proc", "sys/bus/pci/devices", "sys/class/infiniband", "sys/devices/virtual/infiniband"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("proc/cpuinfo"), "processor\t: 0\nflags\t\t: fpu avx2\n").unwrap();
        let machine = Self { root };
        fixture.lines().filter(|line| !line.starts_with('#')).for_each(|line| machine.add(line));
        machine
    }

    fn add(&self, line: &str) {
        let sys = self.root.path().join("sys");
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["hypervisor"] => {
                let flags = "processor\t: 0\nflags\t\t: fpu avx2 hypervisor\n";
                fs::write(self.root.path().join("proc/cpuinfo"), flags).unwrap();
            }
            ["virtual", "nic", name] => {
                let device = sys.join("devices/virtual/infiniband").join(name);
                fs::create_dir(&device).unwrap();
                symlink(device, sys.join("class/infiniband").join(name)).unwrap();
            }
            [path, "numa", node, ref is @ ..] => {
                let device = sys.join("devices").join(path);
                fs::create_dir_all(&device).unwrap();
                fs::write(device.join("numa_node"), format!("{node}\n")).unwrap();
                let address = device.file_name().unwrap();
                symlink(&device, sys.join("bus/pci/devices").join(address)).unwrap();
                if let ["nic", name] = is {
                    let nic = sys.join("class/infiniband").join(name);
                    fs::create_dir(&nic).unwrap();
                    symlink(&device, nic.join("device")).unwrap();
                }
            }
            _ => panic!("{line}"),
        }
    }

    fn topology(&self) -> Topology {
        Topology::below(self.root.path())
    }

    /// Checks the distances of a GPU from each NIC.
    #[track_caller]
    fn check(&self, gpu: &str, expected: &[(&str, Distance)]) {
        let distances: Vec<_> = expected.iter().map(|&(nic, _)| (nic, self.topology().distance(gpu, nic))).collect();
        assert_eq!(distances, expected, "{gpu}");
    }

    fn nearest(&self, gpu: &str) -> Option<(Distance, Vec<String>)> {
        let nics = self.topology().nics();
        let (distance, nearest) = self.topology().nearest(gpu, &nics)?;
        Some((distance, nearest.into_iter().map(str::to_owned).collect()))
    }
}

#[test]
fn a_server_has_all_distances() {
    let dgx = Machine::new(include_str!("fixtures/dgx.txt"));
    let below_the_first_switch = [("mlx5_0", Pix), ("mlx5_1", Pxb), ("mlx5_2", Phb), ("mlx5_4", Sys), ("mlx5_10", Sys)];
    dgx.check("0000:18:00.0", &below_the_first_switch);
    dgx.check("0000:1C:00.0", &[("mlx5_0", Pxb), ("mlx5_1", Pix), ("mlx5_3", Phb), ("mlx5_4", Sys)]);
    // Two root ports of one host bridge.
    dgx.check("0000:ba:00.0", &[("mlx5_10", Phb), ("mlx5_4", Phb), ("mlx5_0", Sys)]);
    dgx.check("0000:ba:00.0", &[("mlx5_11", Pix), ("mlx5_12", Pix)]);
    dgx.check("0000:9a:00.0", &[("mlx5_11", Phb), ("mlx5_12", Phb)]);
    dgx.check("0000:ff:00.0", &[("mlx5_0", Unknown)]);
    dgx.check("0000:18:00.0", &[("mlx5_99", Unknown)]);
}

#[test]
fn the_nearest_nics_are_those_below_the_same_switch() {
    let dgx = Machine::new(include_str!("fixtures/dgx.txt"));
    assert_eq!(
        dgx.topology().nics(),
        ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_10", "mlx5_11", "mlx5_12"]
    );
    assert_eq!(dgx.nearest("0000:18:00.0"), Some((Pix, vec!["mlx5_0".into()])));
    assert_eq!(dgx.nearest("0000:1c:00.0"), Some((Pix, vec!["mlx5_1".into()])));
    assert_eq!(dgx.nearest("0000:3a:00.0"), Some((Pix, vec!["mlx5_2".into(), "mlx5_3".into()])));
    assert_eq!(dgx.nearest("0000:ba:00.0"), Some((Pix, vec!["mlx5_11".into(), "mlx5_12".into()])));
    assert_eq!(dgx.topology().nearest("0000:18:00.0", &[]), None);
}

#[test]
fn a_virtual_machine_hides_distances_or_shows_switches() {
    let machine = Machine::new(include_str!("fixtures/virtual.txt"));
    machine.check("0000:00:05.0", &[("mlx5_0", Unknown), ("mlx5_1", Unknown), ("mlx5_2", Unknown)]);
    machine.check("0000:02:00.0", &[("mlx5_0", Unknown), ("mlx5_1", Unknown)]);
    machine.check("0000:13:00.0", &[("mlx5_0", Unknown), ("mlx5_2", Pix)]);
    assert_eq!(machine.nearest("0000:13:00.0"), Some((Pix, vec!["mlx5_2".into()])));
    let all = ["mlx5_0", "mlx5_1", "mlx5_2"].map(String::from).to_vec();
    assert_eq!(machine.nearest("0000:00:05.0"), Some((Unknown, all)));
}

#[test]
fn the_firmware_says_what_an_arm_processor_does_not() {
    let machine = Machine::new(include_str!("fixtures/workstation.txt"));
    fs::write(machine.root.path().join("proc/cpuinfo"), "processor\t: 0\nFeatures\t: fp asimd sve\n").unwrap();
    let dmi = machine.root.path().join("sys/class/dmi/id");
    machine.check("0000:41:00.0", &[("mlx5_0", Phb)]);
    fs::create_dir_all(&dmi).unwrap();
    for (vendor, product, distance) in [
        ("NVIDIA", "Grace A02U", Phb),
        ("QEMU", "KVM Virtual Machine", Unknown),
        ("Microsoft Corporation", "Virtual Machine", Unknown),
        ("Amazon EC2", "g5g.metal", Phb),
        ("Amazon EC2", "g5g.xlarge", Unknown),
    ] {
        fs::write(dmi.join("sys_vendor"), format!("{vendor}\n")).unwrap();
        fs::write(dmi.join("product_name"), format!("{product}\n")).unwrap();
        machine.check("0000:41:00.0", &[("mlx5_0", distance)]);
    }
}

#[test]
fn a_nic_that_is_no_pci_device_has_no_distance() {
    let laptop = Machine::new(include_str!("fixtures/laptop.txt"));
    laptop.check("0000:01:00.0", &[("rxe0", Unknown)]);
    assert_eq!(laptop.nearest("0000:01:00.0"), Some((Unknown, vec!["rxe0".into()])));
}

#[test]
fn a_workstation_has_no_numa_nodes() {
    let machine = Machine::new(include_str!("fixtures/workstation.txt"));
    machine.check("0000:41:00.0", &[("mlx5_0", Phb), ("mlx5_1", Unknown), ("mlx5_2", Unknown)]);
    machine.check("0000:61:00.0", &[("mlx5_1", Loc)]);
}

#[test]
fn a_machine_without_sysfs_knows_nothing() {
    let topology = Topology::below("/nonexistent");
    assert_eq!(topology.nics(), [""; 0]);
    assert_eq!(topology.distance("0000:01:00.0", "mlx5_0"), Unknown);
}

#[test]
fn this_machine_can_be_asked() {
    let topology = Topology::of_this_machine();
    for nic in topology.nics() {
        assert_eq!(topology.distance("none", &nic), Unknown);
    }
}

#[test]
fn addresses_are_recognised() {
    assert!(["0000:1b:00.0", "10000:e1:00.7", "0000:FF:1f.f"].iter().all(|name| is_address(name)));
    let others =
        ["pci0000:15", "", "0000:1b:00", "0000:1b:00.0.1", "000:1b:00.0", "0000:1b:0.0", "virtual", "0000:1g:00.0"];
    assert!(!others.iter().any(|name| is_address(name)));
}
