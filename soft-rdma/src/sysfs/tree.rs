//! The files that sysfs and `/dev` have for a NIC, with the attributes of the software devices.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use rdma::{Context, Device, GidEntry, GidKind, LinkLayer, PortAttr};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The folder of the devices in sysfs.
pub(crate) const DEVICES: &str = "/sys/class/infiniband";
/// The folder of the devices' character devices in sysfs.
const VERBS: &str = "/sys/class/infiniband_verbs";
/// The folder of the device nodes.
pub(crate) const NODES: &str = "/dev/infiniband";
/// The folders that the tree adds entries to.
pub(super) const FOLDERS: [&str; 3] = [DEVICES, VERBS, NODES];

/// The file in a device's folder that tells the software devices from NICs.
const MARK: (&str, &str) = ("hca_type", "rdma-soft");

/// The contents of an entry.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Content {
    /// A file with this line.
    Line(String),
    /// The null device in place of a device node. The library opens no node; programs only look
    /// whether it is a character device and may be opened.
    Node,
    /// A symbolic link to this path.
    Link(PathBuf),
}

/// All entries, by their paths.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Tree {
    pub(super) entries: Vec<(PathBuf, Content)>,
}

impl Tree {
    /// Describes the devices that this process sees.
    pub(super) fn of_devices() -> Result<Self, Failure> {
        let mut tree = Self::default();
        let names = rdma_soft::device_names();
        for device in Device::list()?.iter().filter(|device| names.contains(&device.name())) {
            check_free(&Path::new(DEVICES).join(device.name()))?;
            tree.add_device(device)?;
        }
        if tree.entries.is_empty() {
            return Err(Failure::new("there is no software device: RDMA_SOFT=off turns it off"));
        }
        if !Path::new(NODES).join("rdma_cm").exists() {
            tree.add(NODES, "rdma_cm", Content::Node);
        }
        if !Path::new(VERBS).join("abi_version").exists() {
            tree.add(VERBS, "abi_version", line(6));
        }
        Ok(tree)
    }

    /// Whether the root folder `root` has all files of the tree, from an earlier launcher.
    pub(super) fn is_in(&self, root: &Path) -> bool {
        is_marked(root) && self.entries.iter().all(|(path, _)| under(root, path).symlink_metadata().is_ok())
    }

    fn add(&mut self, folder: impl AsRef<Path>, name: &str, content: Content) {
        self.entries.push((folder.as_ref().join(name), content));
    }

    fn add_device(&mut self, device: &Device) -> Result<(), Failure> {
        let name = device.name();
        let context = device.open().map_err(|error| Failure::from(error).context(&name))?;
        let folder = Path::new(DEVICES).join(&name);
        let attr = context.device_attr();
        let lines = [
            MARK,
            ("board_id", "soft"),
            ("node_type", "1: CA"),
            ("node_desc", &name),
            ("fw_ver", &attr.firmware()),
            ("hw_rev", &format!("{:x}", attr.hardware_version())),
            ("node_guid", &attr.node_guid().to_string()),
            ("sys_image_guid", &attr.system_guid().to_string()),
        ];
        for (file, text) in lines {
            self.add(&folder, file, line(text));
        }
        let mut interfaces = Vec::new();
        for port in 1..=context.port_count() {
            interfaces.extend(self.add_port(&context, port, &folder.join("ports").join(port.to_string()))?);
        }
        self.add_parent(&folder.join("device"), interfaces);
        self.add_nodes(&name);
        Ok(())
    }

    /// Adds a port, and returns the names of its network interfaces.
    fn add_port(&mut self, context: &Context, port: u8, folder: &Path) -> Result<Vec<String>, Failure> {
        let attr = context.port_attr(port)?;
        let is_ethernet = attr.link_layer() == LinkLayer::ETHERNET;
        let lines = [
            ("state", "4: ACTIVE".to_owned()),
            ("phys_state", "5: LinkUp".to_owned()),
            ("rate", rate(&attr)),
            ("link_layer", if is_ethernet { "Ethernet" } else { "InfiniBand" }.to_owned()),
            ("lid", format!("{:#x}", attr.as_raw().lid)),
            ("lid_mask_count", attr.lmc().to_string()),
            ("sm_lid", format!("{:#x}", attr.as_raw().sm_lid)),
            ("sm_sl", "0".to_owned()),
            ("cap_mask", format!("{:#010x}", attr.as_raw().port_cap_flags)),
        ];
        for (file, text) in lines {
            self.add(folder, file, line(text));
        }
        for index in 0..attr.pkey_table_len() {
            self.add(folder.join("pkeys"), &index.to_string(), line(format!("{:#06x}", context.pkey(port, index)?)));
        }
        let entries = context.gid_table(port)?;
        let names = interfaces();
        for entry in &entries {
            self.add_gid(entry, &names, folder);
        }
        for index in (0..attr.gid_table_len()).filter(|index| entries.iter().all(|entry| entry.index != *index)) {
            self.add(folder.join("gids"), &index.to_string(), line(gid(Ipv6Addr::UNSPECIFIED)));
        }
        Ok(names
            .into_iter()
            .filter(|name| entries.iter().any(|entry| entry.interface == name.0))
            .map(|name| name.1)
            .collect())
    }

    fn add_gid(&mut self, entry: &GidEntry, interfaces: &[(u32, String)], folder: &Path) {
        let index = entry.index.to_string();
        let kind = if entry.kind == GidKind::ROCE_V2 { "RoCE v2" } else { "IB/RoCE v1" };
        self.add(folder.join("gids"), &index, line(gid(entry.gid.ipv6())));
        self.add(folder.join("gid_attrs/types"), &index, line(kind));
        if let Some((_, name)) = interfaces.iter().find(|(number, _)| *number == entry.interface) {
            self.add(folder.join("gid_attrs/ndevs"), &index, line(name));
        }
    }

    /// Adds the folder of the device behind the RDMA device: a NIC's PCI device.
    fn add_parent(&mut self, folder: &Path, interfaces: Vec<String>) {
        // No node: the memory of a software device is all memory.
        self.add(folder, "numa_node", line(-1));
        for name in interfaces {
            self.add(folder.join("net"), &name, Content::Link(Path::new("/sys/class/net").join(&name)));
        }
    }

    /// Adds the character device, under a number that no NIC has, and under the device's own name,
    /// by which libibverbs calls it.
    fn add_nodes(&mut self, device: &str) {
        let is_free = |name: &String| {
            let path = Path::new(VERBS).join(name);
            // An earlier launcher may have taken the number for this device.
            let user = fs::read_to_string(path.join("ibdev"));
            let is_own = user.as_ref().is_ok_and(|user| user.trim() == device && is_marked(Path::new("/")));
            (is_own || !path.exists()) && self.entries.iter().all(|(added, _)| !added.starts_with(&path))
        };
        let Some(name) = (0..).map(|number: u32| format!("uverbs{number}")).find(is_free) else { return };
        let folder = Path::new(VERBS).join(&name);
        self.add(&folder, "ibdev", line(device));
        self.add(&folder, "abi_version", line(1));
        self.add(VERBS, device, Content::Link(name.clone().into()));
        for node in [device, &name] {
            self.add(NODES, node, Content::Node);
        }
    }
}

/// Whether `root` has the files of a software device.
pub(super) fn is_marked(root: &Path) -> bool {
    let devices = fs::read_dir(under(root, Path::new(DEVICES)));
    devices.into_iter().flatten().flatten().any(|device| is_software(&device.path()))
}

/// Whether a folder in sysfs is that of a software device.
pub(super) fn is_software(device: &Path) -> bool {
    fs::read_to_string(device.join(MARK.0)).is_ok_and(|text| text.trim() == MARK.1)
}

/// Refuses the folder of a device of the host: the software device would overwrite its files.
fn check_free(folder: &Path) -> Result<(), Failure> {
    if folder.symlink_metadata().is_err() || is_software(folder) {
        return Ok(());
    }
    let folder = folder.display();
    Err(Failure::new(format!("{folder} is a device of this host: with --sysfs, give another --device-name")))
}

/// An absolute path below another root folder.
fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn line(text: impl ToString) -> Content {
    Content::Line(text.to_string())
}

/// A GID in the words of sysfs, which shortens nothing.
fn gid(address: Ipv6Addr) -> String {
    address.segments().map(|word| format!("{word:04x}")).join(":")
}

/// The speed of a port in the words of sysfs.
fn rate(attr: &PortAttr) -> String {
    let (lanes, tenths) = (attr.lanes().unwrap_or(1), attr.lane_speed().unwrap_or(25));
    let name = match tenths {
        25 => "SDR",
        50 => "DDR",
        100 => "QDR",
        140 => "FDR",
        250 => "EDR",
        500 => "HDR",
        1000 => "NDR",
        _ => "XDR",
    };
    let speed = u32::from(lanes) * tenths;
    let fraction = if speed % 10 == 0 { String::new() } else { format!(".{}", speed % 10) };
    format!("{}{fraction} Gb/sec ({lanes}X {name})", speed / 10)
}

/// The number and name of each network interface.
fn interfaces() -> Vec<(u32, String)> {
    let all = nix::net::if_::if_nameindex();
    all.iter().flatten().map(|one| (one.index(), one.name().to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_the_attributes_that_verbs_report() {
        let tree = Tree::of_devices().unwrap();
        let find =
            |path: &str| tree.entries.iter().find(|(known, _)| known == Path::new(path)).map(|(_, content)| content);
        let context = Device::list().unwrap()[0].open().unwrap();
        let guid = context.device_attr().node_guid().to_string();
        assert_eq!(find("/sys/class/infiniband/soft0/node_guid"), Some(&line(guid)));
        assert_eq!(find("/sys/class/infiniband/soft0/ports/1/state"), Some(&line("4: ACTIVE")));
        let first = context.gid(1, 0).unwrap();
        assert_eq!(find("/sys/class/infiniband/soft0/ports/1/gids/0"), Some(&line(gid(first.ipv6()))));
        assert_eq!(find("/dev/infiniband/soft0"), Some(&Content::Node));
        assert!(!tree.is_in(Path::new("/nonexistent")));
    }

    #[test]
    fn the_name_of_a_device_of_the_host_is_refused() {
        let host = tempfile::tempdir().unwrap();
        let folder = host.path().join("mlx5_0");
        assert!(check_free(&folder).is_ok());
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("hca_type"), "MT4129\n").unwrap();
        let refused = check_free(&folder).unwrap_err().to_string();
        assert!(refused.contains("mlx5_0 is a device of this host") && refused.contains("--device-name"), "{refused}");
        fs::write(folder.join("hca_type"), "rdma-soft\n").unwrap();
        assert!(check_free(&folder).is_ok());
    }

    #[test]
    fn a_root_with_a_software_device_of_any_name_is_marked() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/class/infiniband/mlx5_0");
        fs::create_dir_all(&folder).unwrap();
        assert!(!is_marked(root.path()));
        fs::write(folder.join("hca_type"), "rdma-soft\n").unwrap();
        assert!(is_marked(root.path()));
    }

    #[test]
    fn gids_are_written_in_full() {
        assert_eq!(gid("::ffff:127.0.0.1".parse().unwrap()), "0000:0000:0000:0000:0000:ffff:7f00:0001");
    }
}
