//! The device nearest to a GPU.

use rdma::Device;
use rdma_cuda::{Distance, Gpu, Topology};

use super::{DeviceOptions, Preferred, active_ports};

impl DeviceOptions {
    /// Prefers the device nearest to the GPU of the rank with a position among those of its host.
    /// That there is no GPU is left to the communicator to report.
    #[must_use]
    pub(crate) fn near_gpu(self, position: usize) -> Self {
        match rdma_collectives::gpu_at(position) {
            Ok(gpu) => self.near(&gpu),
            Err(_) => self,
        }
    }

    /// Prefers the hardware device nearest to a GPU, if its distance is known. GPUs with several
    /// nearest devices take them in turn.
    #[must_use]
    pub fn near(self, gpu: &Gpu) -> Self {
        let turn = usize::try_from(gpu.ordinal()).unwrap_or(0);
        let preferred = nearest(&Topology::of_this_machine(), gpu.pci_id(), turn, &self.usable_hardware());
        Self { preferred, ..self }
    }

    /// The hardware devices with an active port, or with the port that is asked for. Devices that
    /// do not open are left to [`open`](Self::open) to report.
    fn usable_hardware(&self) -> Vec<String> {
        let mut usable = Vec::new();
        for device in Device::list().unwrap_or_default().into_iter().filter(|device| !device.is_software()) {
            let Ok(context) = device.open() else { continue };
            if active_ports(&context).any(|port| self.port.is_none_or(|wanted| wanted == port)) {
                usable.push(device.name());
            }
        }
        usable
    }
}

fn nearest(topology: &Topology, gpu: &str, turn: usize, devices: &[String]) -> Option<Preferred> {
    let (distance, nearest) = topology.nearest(gpu, devices).filter(|(distance, _)| *distance != Distance::Unknown)?;
    let device = nearest[turn % nearest.len()].to_owned();
    Some(Preferred { device, reason: format!("nearest to GPU {gpu} ({distance}, {})", distance.description()) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    /// Adds a device of PCI to a copy of sysfs.
    fn add(root: &Path, path: &str, nic: Option<&str>) {
        let device = root.join("sys/devices").join(path);
        fs::create_dir_all(&device).unwrap();
        let (all, nics) = (root.join("sys/bus/pci/devices"), root.join("sys/class/infiniband"));
        fs::create_dir_all(&all).unwrap();
        symlink(&device, all.join(device.file_name().unwrap())).unwrap();
        if let Some(nic) = nic {
            fs::create_dir_all(nics.join(nic)).unwrap();
            symlink(&device, nics.join(nic).join("device")).unwrap();
        }
    }

    #[test]
    fn gpus_take_the_nearest_devices_in_turn() {
        let root = tempfile::tempdir().unwrap();
        add(root.path(), "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", None);
        add(root.path(), "pci0000:00/0000:00:02.0/0000:09:00.0", Some("mlx5_0"));
        add(root.path(), "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", Some("mlx5_1"));
        add(root.path(), "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0", Some("mlx5_2"));
        let (topology, names) = (Topology::below(root.path()), ["mlx5_0", "mlx5_1", "mlx5_2"].map(str::to_owned));
        let device = |turn, names: &[String]| {
            nearest(&topology, "0000:03:00.0", turn, names).map(|Preferred { device, .. }| device)
        };
        assert_eq!([0, 1, 2].map(|turn| device(turn, &names).unwrap()), ["mlx5_1", "mlx5_2", "mlx5_1"]);
        // The nearest ones have no active port.
        let preferred = nearest(&topology, "0000:03:00.0", 5, &names[..1]).unwrap();
        assert_eq!(preferred.device, "mlx5_0");
        assert_eq!(preferred.reason, "nearest to GPU 0000:03:00.0 (PHB, the processor's host bridge between them)");
        assert_eq!((device(0, &[]), device(0, &["rxe0".to_owned()])), (None, None));
    }

    #[test]
    fn a_preferred_device_is_opened_unless_another_is_named() {
        let preferred = |device: &str| Some(Preferred { device: device.into(), reason: "near".into() });
        let any = DeviceOptions { preferred: preferred("soft0"), ..DeviceOptions::default() };
        let chosen = any.open().unwrap();
        assert_eq!((chosen.line.as_str(), chosen.adapter.port), ("soft0 port 1: near", 1));
        let named = DeviceOptions { preferred: preferred("mlx5_0"), ..DeviceOptions::named(Some("soft0".into())) };
        assert_eq!(named.open().unwrap().adapter.context.name(), "soft0");
    }
}
