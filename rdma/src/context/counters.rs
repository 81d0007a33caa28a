//! Counters of a port: those that the kernel's driver keeps in sysfs, or those of the software
//! device.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::Context;
use crate::error::{Error, ErrorKind, Result, Verb};

/// Counters of a port, by their names.
///
/// # Examples
///
/// ```
/// # let opened = rdma::open(&rdma::DeviceSelector::Any)?;
/// let counters = opened.context.port_counters(opened.port)?;
/// for (name, value) in counters.iter() {
///     println!("{name} {value}");
/// }
/// // A counter that this device does not have is `None`.
/// let waits = counters.get("rnr_waits").or(counters.get("rnr_nak_retry_err"));
/// # let _ = waits;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters(BTreeMap<String, u64>);

impl PortCounters {
    /// The counter with this name, if the device has it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// All counters, sorted by their names.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl Context {
    /// The counters of a port.
    ///
    /// On a device of the kernel, these are the files in `ports/PORT/counters` and
    /// `ports/PORT/hw_counters` of the device's folder in `/sys/class/infiniband`, of all
    /// processes together. `port_xmit_data` and `port_rcv_data` count units of 4 bytes, as the
    /// InfiniBand specification has it; the kernel's documentation and the driver's explain the
    /// others. Counters that the device does not keep are left out. The kernel may read the device
    /// less often than this is called: values may be some milliseconds old.
    ///
    /// On `soft0`, these are [`soft::Counters`](crate::soft::Counters), which count what this
    /// process did on all software devices.
    ///
    /// # Errors
    ///
    /// `NotFound` if the port does not exist; `NotSupported` if the device has no counters; errors
    /// of the files.
    pub fn port_counters(&self, port: u8) -> Result<PortCounters> {
        self.inner.check(Verb::QueryPort)?;
        if port == 0 || port > self.port_count() {
            return Err(Error::new(Verb::QueryPort, ErrorKind::NotFound));
        }
        if self.inner.device.is_software() {
            return of_software();
        }
        let folder = self.inner.device.sysfs().ok_or_else(|| Error::new(Verb::QueryPort, ErrorKind::NotSupported))?;
        of_port(&folder.join("ports").join(port.to_string()))
    }
}

#[cfg(feature = "soft")]
fn of_software() -> Result<PortCounters> {
    let counters = rdma_soft::counters().map_err(|error| Error::from_io(Verb::QueryPort, &error))?;
    Ok(PortCounters(counters.iter().map(|(name, value)| (name.to_owned(), value)).collect()))
}

#[cfg(not(feature = "soft"))]
fn of_software() -> Result<PortCounters> {
    Err(Error::new(Verb::QueryPort, ErrorKind::NotSupported))
}

/// The counters in the folder of a port in sysfs.
fn of_port(folder: &Path) -> Result<PortCounters> {
    let mut counters = BTreeMap::new();
    let mut has_folder = false;
    for kind in ["counters", "hw_counters"] {
        let entries = match fs::read_dir(folder.join(kind)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::from_io(Verb::QueryPort, &error)),
        };
        has_folder = true;
        for entry in entries {
            let entry = entry.map_err(|error| Error::from_io(Verb::QueryPort, &error))?;
            // `lifespan` is no counter, but how long the driver keeps what it has read; a counter
            // that cannot be read, or says "N/A", is one that the device does not keep.
            let (Ok(name), Ok(text)) = (entry.file_name().into_string(), fs::read_to_string(entry.path())) else {
                continue;
            };
            if let Some(value) = text.trim().parse().ok().filter(|_| name != "lifespan") {
                counters.insert(name, value);
            }
        }
    }
    if has_folder { Ok(PortCounters(counters)) } else { Err(Error::new(Verb::QueryPort, ErrorKind::NotSupported)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_port_are_its_counters() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of_port(folder.path()).unwrap_err().kind(), ErrorKind::NotSupported);
        for (file, text) in [
            ("counters/port_xmit_data", "18446744073709551615\n"),
            ("counters/VL15_dropped", "N/A (no PMA)\n"),
            ("hw_counters/sent_pkts", "7\n"),
            ("hw_counters/lifespan", "10\n"),
            ("hw_counters/empty", ""),
            ("hw_counters/negative", "-1\n"),
        ] {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let counters = of_port(folder.path()).unwrap();
        assert_eq!(counters.iter().collect::<Vec<_>>(), [("port_xmit_data", u64::MAX), ("sent_pkts", 7)]);
        assert_eq!((counters.get("sent_pkts"), counters.get("lifespan")), (Some(7), None));
    }

    #[test]
    fn a_port_that_does_not_exist_and_a_device_without_a_folder_are_errors() {
        let context = crate::testing::context();
        let kind = |port| context.port_counters(port).unwrap_err().kind();
        assert_eq!((kind(0), kind(200)), (ErrorKind::NotFound, ErrorKind::NotFound));
        assert_eq!(kind(1), ErrorKind::NotSupported);
    }
}
