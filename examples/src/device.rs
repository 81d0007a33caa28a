//! Chooses the device, from flags or the environment, and reports which one was chosen and why.

use std::io::{self, Write};

use rdma::{Context, DatagramOptions, DeviceSelector, GidEntry, InitOptions, Mtu, RemoteAccess};

use crate::Failure;
use crate::bootstrap::Group;
use crate::failure::say;

/// The options that say which device to use; the same in every program.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DeviceOptions {
    /// Device, and port if wanted: soft0, mlx5_0, mlx5_0:1, any, hardware
    #[arg(short, long, value_name = "NAME", env = "RDMA_DEVICE")]
    pub device: Option<String>,
    /// Port of the device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub port: Option<u8>,
    /// Entry of the port's GID table (default: the GID that reaches farthest)
    #[arg(short = 'x', long, value_name = "N")]
    pub gid_index: Option<u32>,
}

/// An open device, a port and an address on it.
#[derive(Debug)]
pub struct Chosen {
    /// The open device.
    pub context: Context,
    /// Number of the port.
    pub port: u8,
    /// The GID table entry; `None` is possible on InfiniBand ports.
    pub gid: Option<GidEntry>,
    /// The device and the reason for its choice, as text for the report.
    pub line: String,
    /// Whether the device was asked for by name.
    named: bool,
}

impl DeviceOptions {
    /// Creates the options of a program that chooses its device by name only.
    #[must_use]
    pub fn named(device: Option<String>) -> Self {
        Self { device, ..Self::default() }
    }

    /// Opens the device that the options or the environment ask for.
    ///
    /// # Errors
    /// If there is no such device, port or GID; the message lists those that exist.
    pub fn open(&self) -> Result<Chosen, Failure> {
        let mut selector = match &self.device {
            // An empty RDMA_DEVICE counts as unset.
            Some(name) if !name.is_empty() => {
                name.parse::<DeviceSelector>().map_err(|e| Failure::usage(format!("--device or RDMA_DEVICE: {e}")))?
            }
            _ => DeviceSelector::Any,
        };
        if let (Some(port), DeviceSelector::Named { port: chosen, .. }) = (self.port, &mut selector) {
            *chosen = Some(port);
        }
        let named = matches!(selector, DeviceSelector::Named { .. });
        let opened = rdma::open(&selector)?;
        let mut line = opened.choice.to_string();
        let (context, mut port) = (opened.context, opened.port);
        if let Some(wanted) = self.port.filter(|&wanted| wanted != port) {
            // `--device` named no device, so the port could not be part of the selection.
            context.port_attr(wanted).map_err(|_| {
                let (name, ports) = (context.name(), context.port_count());
                Failure::new(format!("{name} has no port {wanted}; its ports are 1 to {ports} (devinfo lists them)"))
            })?;
            port = wanted;
            line = format!("{line}; port {port} as asked");
        }
        let gid = self.gid(&context, port)?;
        Ok(Chosen { context, port, gid, line, named })
    }

    /// Opens the device of every rank; collective.
    ///
    /// # Errors
    /// If any rank has no device, or if the software device would have to reach another host.
    pub fn open_together(&self, group: &mut Group) -> Result<Chosen, Failure> {
        let opened = self.open().and_then(|chosen| chosen.check_hosts(group).map(|()| chosen));
        group.agree("the devices of all", opened)
    }

    fn gid(&self, context: &Context, port: u8) -> Result<Option<GidEntry>, Failure> {
        let Some(index) = self.gid_index else { return Ok(context.best_gid(port)?) };
        let table = context.gid_table(port)?;
        let known: Vec<String> = table.iter().map(|entry| entry.index.to_string()).collect();
        table.into_iter().find(|entry| entry.index == index).map(Some).ok_or_else(|| {
            let name = context.name();
            Failure::new(format!(
                "{name} port {port} has no GID {index}; it has {} (devinfo lists them)",
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            ))
        })
    }
}

impl Chosen {
    /// The line about the device that every program prints.
    #[must_use]
    pub fn using(&self) -> String {
        format!("using {}", self.line)
    }

    /// Options for connected queue pairs on this port and GID.
    pub fn init_options(&self, access: RemoteAccess) -> InitOptions {
        let options = InitOptions::new().port(self.port).remote_access(access);
        self.gid_index().into_iter().fold(options, InitOptions::gid_index)
    }

    /// Options for datagram queue pairs on this port and GID.
    pub fn datagram_options(&self, qkey: u32) -> DatagramOptions {
        let options = DatagramOptions::new(qkey).port(self.port);
        self.gid_index().into_iter().fold(options, DatagramOptions::gid_index)
    }

    fn gid_index(&self) -> Option<u8> {
        self.gid.and_then(|gid| u8::try_from(gid.index).ok())
    }

    /// Refuses the software device if the ranks are on several hosts.
    fn check_hosts(&self, group: &Group) -> Result<(), Failure> {
        if group.is_on_one_host() || !self.context.is_software() {
            return Ok(());
        }
        let hint = if self.named { "use hardware" } else { "see devinfo --why for why there is no hardware" };
        let name = self.context.name();
        Err(Failure::new(format!("the ranks are on several hosts, and {name} works within one; {hint}")))
    }

    /// The requested MTU if the port supports it; the port's active MTU if none is requested.
    ///
    /// # Errors
    /// If the port does not support the MTU.
    pub fn mtu(&self, bytes: Option<u32>) -> Result<Mtu, Failure> {
        let active = self.context.port_attr(self.port)?.active_mtu();
        let Some(bytes) = bytes else { return Ok(active) };
        let mtu = Mtu::from_bytes(bytes)
            .ok_or_else(|| Failure::usage(format!("--mtu {bytes}: an MTU is 256, 512, 1024, 2048 or 4096")))?;
        if mtu > active {
            return Err(Failure::usage(format!("--mtu {bytes}: the port's active MTU is {active}; give that or less")));
        }
        Ok(mtu)
    }
}

/// Prints a line about the run: as a comment of the table, or on standard error if standard output
/// carries JSON.
///
/// # Errors
/// If writing fails.
pub fn announce(line: &str, stdout_taken: bool) -> Result<(), Failure> {
    if stdout_taken {
        say(line);
        return Ok(());
    }
    writeln!(io::stdout(), "# {line}")?;
    Ok(())
}
