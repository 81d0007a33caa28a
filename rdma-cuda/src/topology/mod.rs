//! How far a GPU is from a NIC: what their bytes cross between them.
//!
//! The path of a PCI device in sysfs names the bridges above it, from the host bridge down to the
//! port that it is plugged into:
//!
//! ```text
//! pci0000:15  0000:15:01.0  0000:16:00.0     0000:17:00.0     0000:18:00.0
//! host bridge root port     switch, upstream switch, a port   the device
//! ```
//!
//! All functions read below a root directory: `/`, or a copy of another machine's `sys` and `proc`.

mod level;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

pub use level::{Level, ParseLevelError};

/// The distance between a GPU and a NIC, in the terms of `nvidia-smi topo`; the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// Nothing: they are functions of one device.
    Loc,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches, but no processor.
    Pxb,
    /// The processor's host bridge, or several host bridges of one NUMA node.
    Phb,
    /// The interconnect between NUMA nodes.
    Sys,
    /// Not known: the NIC is not a PCI device, or the machine is a virtual one, which shows its
    /// devices elsewhere than they are.
    Unknown,
}

impl Distance {
    /// The distance in words.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Loc => "the same device",
            Self::Pix => "one PCIe switch between them",
            Self::Pxb => "several PCIe switches between them",
            Self::Phb => "the processor's host bridge between them",
            Self::Sys => "different NUMA nodes",
            Self::Unknown => "their distance is not known",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loc => "LOC",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Sys => "SYS",
            Self::Unknown => "unknown",
        })
    }
}

/// The PCI devices and the NICs of a machine.
///
/// # Examples
///
/// ```
/// let topology = rdma_cuda::Topology::of_this_machine();
/// for nic in topology.nics() {
///     println!("{nic}: {}", topology.distance("0000:1b:00.0", &nic));
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Topology {
    root: PathBuf,
}

/// What the firmware of a virtual machine has as its vendor or its product.
const HYPERVISORS: [&str; 7] =
    ["QEMU", "KVM", "VMware", "Xen", "Virtual Machine", "Google Compute Engine", "Cloud Hypervisor"];

impl Topology {
    /// The machine that the program runs on.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::below("/")
    }

    /// The machine whose `sys` and `proc` are below `root`.
    #[must_use]
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The names of the RDMA devices that the kernel lists, sorted.
    #[must_use]
    pub fn nics(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root.join("sys/class/infiniband")).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    }

    /// The distance of a GPU, by its PCI address, from a NIC, by its name.
    ///
    /// A virtual machine that shows a host bridge between them gives no distance: switches of the
    /// host may be hidden behind it.
    #[must_use]
    pub fn distance(&self, gpu: &str, nic: &str) -> Distance {
        let (Some(gpu), Some(nic)) = (self.gpu(gpu), self.nic(nic)) else { return Distance::Unknown };
        match gpu.distance(&nic) {
            Distance::Phb | Distance::Sys if self.is_virtual() => Distance::Unknown,
            distance => distance,
        }
    }

    /// The NICs nearest to a GPU, among `nics`, and their distance. There may be several: a program
    /// with several GPUs spreads them. NICs of unknown distance count as the farthest.
    #[must_use]
    pub fn nearest<'nic>(&self, gpu: &str, nics: &'nic [String]) -> Option<(Distance, Vec<&'nic str>)> {
        let distances: Vec<_> = nics.iter().map(|nic| (self.distance(gpu, nic), nic.as_str())).collect();
        let nearest = distances.iter().map(|&(distance, _)| distance).min()?;
        let at = |&(distance, nic): &(Distance, &'nic str)| (distance == nearest).then_some(nic);
        Some((nearest, distances.iter().filter_map(at).collect()))
    }

    fn gpu(&self, address: &str) -> Option<PciDevice> {
        PciDevice::at(&self.root.join("sys/bus/pci/devices").join(address.to_ascii_lowercase()))
    }

    fn nic(&self, name: &str) -> Option<PciDevice> {
        PciDevice::at(&self.root.join("sys/class/infiniband").join(name).join("device"))
    }

    /// Whether the processor says that a hypervisor runs it.
    fn is_virtual(&self) -> bool {
        let text = |path: &str| fs::read_to_string(self.root.join(path)).unwrap_or_default();
        let cpuinfo = text("proc/cpuinfo");
        if let Some(flags) = cpuinfo.lines().find(|line| line.starts_with("flags")) {
            return flags.split_whitespace().any(|flag| flag == "hypervisor");
        }
        // Processors other than x86 do not say so, but the firmware names the maker.
        let [vendor, product] = ["sys_vendor", "product_name"].map(|name| text(&format!("sys/class/dmi/id/{name}")));
        let is_instance = vendor.starts_with("Amazon EC2") && !product.contains(".metal");
        is_instance || HYPERVISORS.iter().any(|name| vendor.contains(name) || product.contains(name))
    }
}

/// The place of a PCI device.
#[derive(Debug)]
struct PciDevice {
    /// The host bridge, with the directories above it.
    host_bridge: PathBuf,
    /// The bridges between the host bridge and the device, from above.
    bridges: Vec<String>,
    /// The device's address.
    address: String,
    numa_node: Option<u32>,
}

impl PciDevice {
    /// The device that a directory of sysfs, or a link to one, is for, or that it lies below, as a
    /// subfunction of a NIC does; `None` if there is no PCI device.
    fn at(link: &Path) -> Option<Self> {
        let whole = link.canonicalize().ok()?;
        let is_pci = |path: &&Path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_address);
        let path = whole.ancestors().find(is_pci)?;
        let numa_node = fs::read_to_string(path.join("numa_node")).ok().and_then(|node| node.trim().parse().ok());
        let mut bridges = Vec::new();
        let mut host_bridge = path;
        while let Some(address) = host_bridge.file_name().and_then(|name| name.to_str()).filter(|name| is_address(name))
        {
            bridges.push(address.to_owned());
            host_bridge = host_bridge.parent()?;
        }
        bridges.reverse();
        let address = bridges.pop()?;
        Some(Self { host_bridge: host_bridge.to_owned(), bridges, address, numa_node })
    }

    fn distance(&self, other: &Self) -> Distance {
        if self.host_bridge != other.host_bridge {
            return match (self.numa_node, other.numa_node) {
                (Some(this), Some(other)) if this == other => Distance::Phb,
                (Some(_), Some(_)) => Distance::Sys,
                _ => Distance::Unknown,
            };
        }
        let slot = |device: &Self| device.address.rsplit_once('.').map(|(slot, _function)| slot.to_owned());
        if self.bridges == other.bridges && slot(self) == slot(other) {
            return Distance::Loc;
        }
        if self.bridges.is_empty() && other.bridges.is_empty() {
            // A machine without bridges is a virtual one.
            return Distance::Unknown;
        }
        match self.bridges.iter().zip(&other.bridges).take_while(|(this, other)| this == other).count() {
            0 => Distance::Phb,
            // Below their last common bridge, each is at most one port away from the same switch.
            common if self.bridges.len().max(other.bridges.len()) <= common + 1 => Distance::Pix,
            _ => Distance::Pxb,
        }
    }
}

/// Whether a name of sysfs is a PCI address, such as `0000:1b:00.0`. Domains may have more digits.
fn is_address(name: &str) -> bool {
    let is_hex = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let mut fields = name.split([':', '.']);
    let widths = [4.., 2.., 2.., 1..].map(|range: std::ops::RangeFrom<usize>| {
        fields.next().is_some_and(|field| is_hex(field) && range.contains(&field.len()))
    });
    widths.iter().all(|&fits| fits) && fields.next().is_none()
}

#[cfg(test)]
mod tests;
