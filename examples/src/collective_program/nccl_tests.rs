//! Two things of nccl-tests: its options without a counterpart here, and the list of devices above
//! its table.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use rdma::Device;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::device::Chosen;
use crate::refused::{Refusals, Refused, Value};
use rdma_collectives::bootstrap::Group;

/// The options of nccl-tests that the collectives' programs lack.
pub(super) enum NcclTests {}

impl Refusals for NcclTests {
    const PROGRAM: &'static str = "nccl-tests";
    const OPTIONS: &'static [Refused] = &[
        refused('p', Some("parallel_init"), "each rank is a process, and all connect at the same time; leave it out"),
        refused('G', Some("cudagraph"), "no CUDA graph captures these operations; -m puts several into an iteration"),
        refused('C', Some("report_cputime"), "the column time is that of the CPU, which does the work; leave it out"),
        refused('R', Some("local_register"), "buffers are always registered; to connect by rdma_cm, give --cm"),
        refused('y', Some("stream_null"), "there are no streams; --start runs operations in the background"),
        refused('S', Some("report_timestamps"), "rows have no time of day; leave it out"),
        // `-x` is refused with the value 0 too, because other programs choose the GID by it.
        Refused {
            value: Value::Yes,
            ..refused('x', Some("cta_policy"), "there are no CTAs; --gid-index chooses the GID")
        },
        refused('D', Some("device_implementation"), "there is one implementation; --algo chooses the algorithm"),
        // -V is --version.
        Refused { short: None, ..refused('V', Some("device_cta_count"), "there are no CTAs; leave it out") },
        refused('M', Some("memory_report"), "memory is not reported; --memory says where the tensors are"),
        refused('u', Some("unalign"), "tensors begin at a page; leave it out"),
        refused('I', Some("per_iter_timing"), "an iteration has no time of its own; -N repeats all measurements"),
        refused('K', Some("per_iter_skip"), "an iteration has no time of its own; -w sets the iterations before"),
    ];
}

const fn refused(short: char, long: Option<&'static str>, why: &'static str) -> Refused {
    Refused { short: Some(short), long, value: Value::Unless("0"), why }
}

/// The process and the device of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankDevice {
    rank: usize,
    pid: u32,
    hostname: String,
    /// The device's number among those of its host.
    device: usize,
    /// Its PCI address, without the function.
    device_hex: String,
    /// Its name.
    device_info: String,
}

impl RankDevice {
    /// This rank with the first of its devices, or with the GPU that holds its tensors, given by
    /// its name with its PCI address in parentheses.
    fn new(chosen: &Chosen, gpu: Option<String>, group: &Group) -> Self {
        let hostname = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
        let hostname = hostname.unwrap_or_default();
        let (device, device_hex, device_info) = match gpu {
            Some(gpu) => {
                let (name, address) = gpu.rsplit_once(" (").unwrap_or((&gpu, ""));
                (group.position_on_host(), of_pci(address.trim_end_matches(')')), name.to_owned())
            }
            None => {
                let name = chosen.adapter.context.name();
                let known = Device::list().unwrap_or_default();
                let number = known.iter().position(|device| device.name() == name);
                (number.unwrap_or_default(), pci_address(&name), chosen.name())
            }
        };
        Self {
            rank: group.rank(),
            pid: std::process::id(),
            // As in nccl-tests, without the domain.
            hostname: hostname.split('.').next().unwrap_or_default().to_owned(),
            device,
            device_hex,
            device_info,
        }
    }

    /// The processes and the devices of the first `ranks` ranks; collective.
    pub(super) fn gather(
        chosen: &Chosen,
        gpu: Option<String>,
        group: &mut Group,
        ranks: usize,
    ) -> Result<Vec<Self>, Failure> {
        let own = Self::new(chosen, gpu, group);
        let mut all = group.all_gather("the devices of the ranks", &own)?;
        all.truncate(ranks);
        Ok(all)
    }
}

impl fmt::Display for RankDevice {
    /// Writes nccl-tests' line, which has ranks in groups; here all are in one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, pid, hostname, device, device_hex, device_info } = self;
        write!(f, "#  Rank {rank:>2} Group  0 Pid {pid:>6} on {hostname:>10} device {device:>2} ")?;
        write!(f, "[{device_hex}] {device_info}")
    }
}

/// Prints nccl-tests' list of devices.
pub(super) fn list_devices(out: &mut dyn Write, devices: &[RankDevice]) -> io::Result<()> {
    writeln!(out, "# Using devices")?;
    devices.iter().try_for_each(|device| writeln!(out, "{device}"))
}

/// The PCI address of an RDMA device; zeros for a device that is not on a PCI bus.
fn pci_address(name: &str) -> String {
    let link = std::fs::read_link(Path::new("/sys/class/infiniband").join(name).join("device"));
    let last = link.ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    of_pci(&last.unwrap_or_default())
}

/// The domain, the bus and the device of a PCI address such as `0000:3b:00.0`; zeros if the text is
/// none.
fn of_pci(address: &str) -> String {
    let parts: Vec<&str> = address.split([':', '.']).collect();
    let number = |at: usize| u32::from_str_radix(parts.get(at)?, 16).ok();
    match (number(0), number(1), number(2)) {
        (Some(domain), Some(bus), Some(device)) => format!("{domain:04x}:{bus:02x}:{device:02x}"),
        _ => "0000:00:00".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_their_function() {
        assert_eq!(of_pci("0000:3B:00.1"), "0000:3b:00");
        assert_eq!(of_pci("00000000:3b:1f.0"), "0000:3b:1f");
        assert_eq!(of_pci(""), "0000:00:00");
        assert_eq!(of_pci("usb1"), "0000:00:00");
    }

    #[test]
    fn lines_are_those_of_nccl_tests() {
        let device = RankDevice {
            rank: 3,
            pid: 4711,
            hostname: "node1".to_owned(),
            device: 3,
            device_hex: "0000:3b:00".to_owned(),
            device_info: "mlx5_0:1".to_owned(),
        };
        let line = "#  Rank  3 Group  0 Pid   4711 on      node1 device  3 [0000:3b:00] mlx5_0:1";
        assert_eq!(device.to_string(), line);
    }
}
