//! The report of `gpu_doctor`: the GPUs and NICs of a machine, and the path between each two.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use rdma::{Device, HardwareAbsence};
use rdma_cuda::{
    Cause, DeviceAttribute, Distance, Driver, Facts, FlushMethod, Gpu, GpuFacts, HostFacts, MemoryFacts, NicFacts,
    Policy, Preference, Reason, Topology, Way,
};

use crate::Failure;

/// The properties of GPUs, NICs and host, as they report them.
#[derive(Debug)]
pub struct Machine {
    /// The host.
    pub host: HostFacts,
    /// The GPUs' driver: its version and its library.
    pub driver: Option<String>,
    /// The GPUs.
    pub gpus: Vec<Examined>,
    /// The NICs.
    pub nics: Vec<NicFacts>,
    /// The NICs that could not be asked, and why.
    pub silent: Vec<(String, rdma::Error)>,
    /// Why there is no NIC, if there is none.
    pub absence: Option<String>,
    /// The preference from the environment.
    pub preference: Preference,
}

/// The properties of a GPU, and its paths to NICs.
#[derive(Debug)]
pub struct Examined {
    /// Its name, address and memory.
    pub title: String,
    /// Its properties, as the driver reports them.
    pub facts: GpuFacts,
    /// Further properties.
    pub properties: String,
    /// The distance to each NIC.
    pub distances: Vec<Distance>,
}

impl Machine {
    /// Asks host and NICs, and the driver if there is one.
    ///
    /// # Errors
    ///
    /// If devices cannot be listed, the driver cannot describe its GPUs, or a variable of the
    /// environment has an invalid value.
    pub fn examine(driver: Option<&'static Driver>) -> Result<Self, Failure> {
        let (mut nics, mut silent) = (Vec::new(), Vec::new());
        for device in Device::list()? {
            match device.open().and_then(|context| context.alloc_pd()) {
                Ok(pd) => nics.push(NicFacts::of(&pd)),
                Err(error) => silent.push((device.name(), error)),
            }
        }
        let is_absent = silent.is_empty() && nics.iter().all(|nic| nic.is_software);
        let absence = if is_absent { HardwareAbsence::diagnose().map(|absence| absence.summary()) } else { None };
        let gpus = driver.map(Driver::gpus).transpose().map_err(|error| Failure::new(error.to_string()))?;
        let gpus = gpus.unwrap_or_default().iter().map(|gpu| Examined::of(gpu, &nics)).collect();
        let preference = Preference::default().with_environment().map_err(|error| Failure::new(error.to_string()))?;
        let driver = driver.map(|driver| format!("CUDA {}, {}", driver.version(), driver.path().display()));
        Ok(Self { host: HostFacts::below(Path::new("/")), driver, gpus, nics, silent, absence, preference })
    }

    /// Prints all that is known, a path for each GPU and NIC, and what would help.
    ///
    /// # Errors
    ///
    /// If writing to `out` fails.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "driver  {}", self.driver.as_deref().unwrap_or("none"))?;
        writeln!(out, "kernel  {}", self.kernel())?;
        for nic in &self.nics {
            let dma_buf = if nic.dma_buf.is_ok() { "can" } else { "cannot" };
            writeln!(out, "NIC     {} {dma_buf} import dma-bufs", nic.name)?;
        }
        for (name, error) in &self.silent {
            writeln!(out, "NIC     {name} does not open: {error}")?;
        }
        if let Some(absence) = &self.absence {
            writeln!(out, "NIC     no hardware: {absence}")?;
        }
        for (ordinal, gpu) in self.gpus.iter().enumerate() {
            writeln!(out, "\nGPU {ordinal:<3} {}\n        {}", gpu.title, gpu.properties)?;
            self.print_paths(gpu, out)?;
        }
        let mut distances: Vec<_> = self.gpus.iter().flat_map(|gpu| &gpu.distances).collect();
        distances.sort_unstable();
        distances.dedup();
        if !distances.is_empty() {
            writeln!(out, "\nDistances of GPU and NIC:")?;
        }
        for distance in distances {
            writeln!(out, "        {:<8} {}", distance.to_string(), distance.description())?;
        }
        let advice = self.advice();
        if !advice.is_empty() {
            writeln!(out, "\nWhat would help:")?;
        }
        advice.iter().try_for_each(|cause| writeln!(out, "  {cause}:\n    {}", cause.remedy()))
    }

    fn print_paths(&self, gpu: &Examined, out: &mut dyn Write) -> io::Result<()> {
        for (nic, &distance) in self.nics.iter().zip(&gpu.distances) {
            let way = self.plan(gpu, nic, distance);
            write!(out, "        {:<10} {:<8} ", nic.name, distance.to_string())?;
            match &way {
                Way::Staged(Reason::NotPossible(causes)) if self.preference.policy == Policy::RequireDirect => {
                    writeln!(out, "none, as a direct path is required: {}", Joined(causes))?;
                }
                Way::Staged(Reason::NotPossible(causes)) => writeln!(out, "{way}: {}", Joined(causes))?,
                Way::Staged(reason) => writeln!(out, "{way}: {reason}")?,
                Way::DmaBuf | Way::PeerMemory | Way::Copied => writeln!(out, "{way}")?,
            }
        }
        Ok(())
    }

    /// How many GPUs have a direct path to a NIC.
    ///
    /// # Errors
    ///
    /// If none has one: what becomes of transfers then.
    pub fn conclusion(&self) -> Result<String, Failure> {
        let (direct, count) = (self.direct(), self.gpus.len());
        let line = format!("{direct} of {count} GPUs have a direct path to a NIC");
        let reason = match self.preference.policy {
            _ if direct > 0 => return Ok(line),
            _ if self.absence.is_some() => "there is no NIC",
            Policy::RequireDirect => "transfers over a NIC fail, because RDMA_CUDA_PATH demands a direct path",
            Policy::PreferDirect | Policy::Staged => "transfers over a NIC are staged",
        };
        Err(Failure::new(format!("{line}: {reason}")))
    }

    /// The number of GPUs that some NIC accesses directly. The software device is none.
    fn direct(&self) -> usize {
        let is_direct = |gpu: &&Examined| {
            let mut pairs = self.nics.iter().zip(&gpu.distances);
            pairs.any(|(nic, &distance)| matches!(self.plan(gpu, nic, distance), Way::DmaBuf | Way::PeerMemory))
        };
        self.gpus.iter().filter(is_direct).count()
    }

    fn plan(&self, gpu: &Examined, nic: &NicFacts, distance: Distance) -> Way {
        self.preference.plan(&self.facts(gpu, nic), distance)
    }

    fn facts(&self, gpu: &Examined, nic: &NicFacts) -> Facts {
        let (host, gpu, nic) = (self.host.clone(), gpu.facts.clone(), nic.clone());
        Facts { host, gpu, nic, memory: MemoryFacts::default() }
    }

    /// The causes against a direct path, each once.
    fn advice(&self) -> Vec<Cause> {
        let mut causes = Vec::new();
        for gpu in &self.gpus {
            for nic in &self.nics {
                for cause in self.facts(gpu, nic).causes() {
                    if !causes.contains(&cause) {
                        causes.push(cause);
                    }
                }
            }
        }
        causes
    }

    fn kernel(&self) -> String {
        let HostFacts { kernel, peer_memory, open_modules, is_confidential, .. } = &self.host;
        let modules = match open_modules {
            None => "not loaded",
            Some(true) => "open",
            Some(false) => "closed",
        };
        let kernel = kernel.as_deref().unwrap_or("unknown");
        let peer_memory = if *peer_memory { "loaded" } else { "not loaded" };
        let confidential = if *is_confidential { ", confidential computing" } else { "" };
        format!("Linux {kernel}, modules of nvidia {modules}, nvidia-peermem {peer_memory}{confidential}")
    }
}

impl Examined {
    fn of(gpu: &Gpu, nics: &[NicFacts]) -> Self {
        let topology = Topology::of_this_machine();
        let memory = gpu.total_memory().map_or_else(|_| "?".into(), |bytes| (bytes >> 30).to_string());
        let (major, minor) = gpu.compute_capability().unwrap_or_default();
        let facts = GpuFacts::of(gpu);
        let vmm = answer(Some(gpu.has(DeviceAttribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)));
        let flush = match gpu.flush_method() {
            FlushMethod::None => "none needed".to_owned(),
            method => method.to_string(),
        };
        let properties = format!(
            "GPUDirect RDMA {} (VMM memory {vmm}), dma-buf {}, compute capability {major}.{minor}, flush: {flush}",
            answer(facts.rdma),
            answer(facts.dma_buf),
        );
        Self {
            title: format!("{gpu}, {memory} GiB"),
            facts,
            properties,
            distances: nics.iter().map(|nic| topology.distance(gpu.pci_id(), &nic.name)).collect(),
        }
    }
}

fn answer(answer: Option<bool>) -> &'static str {
    match answer {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    }
}

/// Causes as one clause.
struct Joined<'a>(&'a [Cause]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(index, cause)| {
            let separator = if index == 0 { "" } else { "; and " };
            write!(f, "{separator}{cause}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(machine: &Machine) -> String {
        let mut out = Vec::new();
        machine.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn nic(name: &str, is_software: bool) -> NicFacts {
        let error = rdma::Error::new(rdma::Verb::RegisterDmaBuf, rdma::ErrorKind::NotSupported);
        NicFacts { name: name.into(), is_software, dma_buf: if is_software { Err(error) } else { Ok(()) } }
    }

    /// A server with a GPU beside one NIC and far from another.
    fn server() -> Machine {
        let facts = GpuFacts { name: "NVIDIA H100".into(), driver: None, rdma: Some(true), dma_buf: Some(true) };
        let gpu = Examined {
            title: "NVIDIA H100 (0000:1b:00.0), 80 GiB".into(),
            facts,
            properties: "RDMA yes".into(),
            distances: vec![Distance::Pix, Distance::Sys, Distance::Unknown],
        };
        Machine {
            host: HostFacts { kernel: Some("6.12.0".into()), open_modules: Some(true), ..HostFacts::default() },
            driver: Some("CUDA 12.8, libcuda.so.1".into()),
            gpus: vec![gpu],
            nics: vec![nic("mlx5_0", false), nic("mlx5_1", false), nic("soft0", true)],
            silent: Vec::new(),
            absence: None,
            preference: Preference::default(),
        }
    }

    #[test]
    fn each_pair_has_a_path_and_a_reason() {
        let machine = server();
        let expected = "\
driver  CUDA 12.8, libcuda.so.1
kernel  Linux 6.12.0, modules of nvidia open, nvidia-peermem not loaded
NIC     mlx5_0 can import dma-bufs
NIC     mlx5_1 can import dma-bufs
NIC     soft0 cannot import dma-bufs

GPU 0   NVIDIA H100 (0000:1b:00.0), 80 GiB
        RDMA yes
        mlx5_0     PIX      GPUDirect RDMA (dma-buf)
        mlx5_1     SYS      staged in host memory: GPU and NIC are farther apart than PXB (RDMA_CUDA_LEVEL=SYS allows it)
        soft0      unknown  direct (software device, copies by the GPU's driver)

Distances of GPU and NIC:
        PIX      one PCIe switch between them
        SYS      different NUMA nodes
        unknown  their distance is not known
";
        assert_eq!(printed(&machine), expected);
        assert_eq!(machine.conclusion().unwrap(), "1 of 1 GPUs have a direct path to a NIC");
    }

    #[test]
    fn a_machine_without_a_direct_path_is_told_what_would_help() {
        let mut machine = server();
        machine.gpus[0].facts.dma_buf = Some(false);
        machine.host.open_modules = Some(false);
        let text = printed(&machine);
        assert!(text.ends_with("as root\n") && text.contains("install the open kernel modules"), "{text}");
        assert_eq!(text.matches("run `modprobe nvidia-peermem`").count(), 1, "{text}");
        let staged = "0 of 1 GPUs have a direct path to a NIC: transfers over a NIC are staged";
        assert_eq!(machine.conclusion().unwrap_err().to_string(), staged);
    }

    #[test]
    fn a_path_that_is_required_and_not_there_is_none() {
        let mut machine = server();
        machine.gpus[0].facts.dma_buf = Some(false);
        machine.preference.policy = Policy::RequireDirect;
        let text = printed(&machine);
        let none =
            "mlx5_0     PIX      none, as a direct path is required: the GPU's driver exports no dma-bufs; and no";
        assert!(text.contains(none) && !text.contains("staged"), "{text}");
        let conclusion = machine.conclusion().unwrap_err().to_string();
        assert!(conclusion.ends_with("transfers over a NIC fail, because RDMA_CUDA_PATH demands a direct path"));
        machine.absence = Some("no driver".into());
        assert!(printed(&machine).contains("\nNIC     no hardware: no driver\n"));
        assert!(machine.conclusion().unwrap_err().to_string().ends_with("to a NIC: there is no NIC"));
    }
}
