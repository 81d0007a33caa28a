//! Chooses the device, from flags or the environment, and reports which one was chosen and why.

mod at;
mod list;
#[cfg(feature = "cuda")]
mod near;
mod path;
mod rails;

use std::io::{self, Write};

use rdma::soft::tcp;
use rdma::{Context, Device, DeviceSelector, GidEntry, Mtu, PortState};
use rdma_collectives::bootstrap::Group;
use rdma_collectives::{Adapter, Transport};

pub use self::at::Place;
pub use self::list::{DeviceList, Wanted};
pub(crate) use self::path::InEffect;
pub use self::path::PathOptions;
pub use self::rails::{RailCount, RailOptions, RailSettings};
use crate::failure::say;
use crate::placement::KeyOption;
use crate::{Failure, environment};

/// What makes the software device reach other hosts.
pub(crate) const ADVICE: &str = "RDMA_SOFT_TCP has an address, an interface such as eth0, or auto, and RDMA_SOFT_KEY \
                                 a file with the same 32 random bytes on each host";

/// The options that say which device to use; the same in every program.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = crate::cli::TRANSPORT)]
pub struct DeviceOptions {
    /// Device: soft0, mlx5_0, mlx5_0:1, any, hardware, or a list
    ///
    /// The name may have a port behind it. Of a list the first is used: mlx5_0,mlx5_1; all but
    /// these: ^mlx5_1; whole names: =mlx5_1.
    #[arg(short, long, value_name = "NAME", env = "RDMA_DEVICE")]
    pub device: Option<String>,
    /// Port of the device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..), hide_short_help = true)]
    pub port: Option<u8>,
    /// Entry of the port's GID table [env: RDMA_GID_INDEX] (default: the GID that reaches farthest)
    #[arg(short = 'x', long, value_name = "N", hide_short_help = true)]
    pub gid_index: Option<u32>,
    /// The path to the peers.
    #[command(flatten)]
    pub path: PathOptions,
    /// The device to use if the options name none.
    #[arg(skip)]
    pub preferred: Option<Preferred>,
}

/// A device that is better than others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preferred {
    /// Its name.
    pub device: String,
    /// Why it is better.
    pub reason: String,
}

/// An open device, a port and an address on it, and why it was chosen.
#[derive(Debug)]
pub struct Chosen {
    /// The device, the port, the address, and the settings of the path to the peers.
    pub adapter: Adapter,
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
        let path = self.path.or_environment()?;
        let wanted = self.wanted()?;
        let selector = match (&wanted, &self.preferred) {
            (Wanted::Listed(list), _) => select(list, self.port)?,
            (_, Some(Preferred { device, .. })) => DeviceSelector::Named { name: device.clone(), port: self.port },
            (Wanted::Any, None) => DeviceSelector::Any,
            (Wanted::Hardware, None) => DeviceSelector::Hardware,
        };
        let named = matches!(wanted, Wanted::Listed(_));
        let opened = rdma::open(&selector).map_err(|error| match &self.preferred {
            Some(Preferred { device, reason }) if !named => {
                Failure::from(error).context(format_args!("{device}, taken since {reason}"))
            }
            _ => error.into(),
        })?;
        let mut line = opened.choice.to_string();
        match (&wanted, &self.preferred) {
            (Wanted::Listed(list), _) if list.single().is_none_or(|(name, _)| name != opened.choice.device()) => {
                line = format!("{line} (the first of {list})");
            }
            (Wanted::Any | Wanted::Hardware, Some(Preferred { device, reason })) => {
                line = format!("{device} port {}: {reason}", opened.port);
            }
            _ => (),
        }
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
        Ok(Chosen { adapter: Adapter { context, port, gid, path }, line, named })
    }

    /// Without GPUs, no device is preferred.
    #[cfg(not(feature = "cuda"))]
    #[must_use]
    pub(crate) fn near_gpu(self, _: usize) -> Self {
        self
    }

    /// The devices that the options ask for. An empty `RDMA_DEVICE` counts as unset.
    fn wanted(&self) -> Result<Wanted, Failure> {
        let text = self.device.as_deref().unwrap_or_default();
        text.parse().map_err(|error| Failure::usage(format!("--device or RDMA_DEVICE: {error}")))
    }

    /// Opens the device of every rank; collective.
    ///
    /// # Errors
    /// If any rank has no device, or if the software device would have to reach another host.
    pub fn open_together(&self, group: &mut Group) -> Result<Chosen, Failure> {
        let opened = self.open().and_then(|chosen| chosen.check_hosts(group).map(|()| chosen));
        group.agree("the devices of all", opened)
    }

    /// Opens the devices of two processes, which reach each other; collective. Between hosts, the
    /// processes listen for each other where that is asked for. Devices that were not named give
    /// way to the software device if they do not reach each other.
    ///
    /// # Errors
    /// As for [`listen`](Self::listen) and [`open_together`](Self::open_together); if nothing
    /// connects the processes.
    pub(crate) fn open_pair(mut self, key: KeyOption, group: &mut Group) -> Result<Chosen, Failure> {
        self.listen(Transport::Auto, key.hands_out(), group)?;
        let chosen = self.open_together(group)?;
        let route = rdma_collectives::tcp::route(&chosen.adapter, group)?;
        let why = route.why.unwrap_or_default();
        let other = match route.is_fallback && !chosen.adapter.context.is_software() {
            true => self.software(&chosen, &why),
            false => Ok(chosen),
        };
        let mut chosen = group.agree("the devices of both", other)?;
        if route.is_tcp {
            chosen.line = format!("{}; over TCP: {why}", chosen.line);
        }
        Ok(chosen)
    }

    /// The software device in place of hardware that does not reach the other process.
    fn software(self, chosen: &Chosen, why: &str) -> Result<Chosen, Failure> {
        if chosen.named || matches!(self.wanted(), Ok(Wanted::Hardware)) {
            let name = chosen.name();
            return Err(Failure::new(format!(
                "{why}, and --device or RDMA_DEVICE asks for {name}: give the same kind of device to both processes"
            )));
        }
        let reason = format!("in place of {}, which does not reach the other process", chosen.name());
        let preferred = Preferred { device: rdma_collectives::tcp::device_name(), reason };
        Self { preferred: Some(preferred), port: None, gid_index: None, ..self }.open()
    }

    /// Lets the ranks listen for each other over TCP where that is asked for; collective, before
    /// they open their devices. `hands_out_key` says whether rank 0 may hand out a key. Of ranks
    /// that ask for TCP, the device is the software device if they name none.
    ///
    /// # Errors
    /// If a rank lacks a key or cannot listen.
    pub fn listen(
        &mut self,
        transport: Transport,
        hands_out_key: Result<bool, Failure>,
        group: &mut Group,
    ) -> Result<(), Failure> {
        let hands_out_key = group.agree("the settings of the key", hands_out_key)?;
        rdma_collectives::tcp::listen(group, transport, hands_out_key)?;
        if transport == Transport::Tcp && self.device.as_ref().is_none_or(String::is_empty) {
            self.device = Some(rdma_collectives::tcp::device_name());
        }
        Ok(())
    }

    fn gid(&self, context: &Context, port: u8) -> Result<Option<GidEntry>, Failure> {
        let index = match self.gid_index {
            Some(index) => Some(index),
            // -1 is NCCL's word for the best one.
            None => environment::setting("RDMA_GID_INDEX", -1..=255)?.and_then(|index: i32| u32::try_from(index).ok()),
        };
        let Some(index) = index else { return Ok(context.best_gid(port)?) };
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

/// Selects the first port of a list that is active, among all devices; with `port`, only ports with
/// this number. Leaves it to [`rdma::open`] to refuse a single name that no device has.
fn select(list: &DeviceList, port: Option<u8>) -> Result<DeviceSelector, Failure> {
    let devices = Device::list()?;
    let names: Vec<String> = devices.iter().map(Device::name).collect();
    let candidates = list.candidates(&names);
    if let Some((name, listed)) = list.single() {
        if candidates.is_empty() || names.iter().any(|known| known == name) {
            return Ok(DeviceSelector::Named { name: name.to_owned(), port: port.or(listed) });
        }
    }
    for &at in &candidates {
        let context = devices[at].open()?;
        let mut ports = active_ports(&context).filter(|&number| port.is_none_or(|wanted| wanted == number));
        if let Some(port) = ports.find(|&number| list.allows(&names[at], number)) {
            return Ok(DeviceSelector::Named { name: names[at].clone(), port: Some(port) });
        }
    }
    let known = if names.is_empty() { "no device".to_owned() } else { names.join(", ") };
    Err(Failure::new(format!(
        "--device or RDMA_DEVICE: `{list}` leaves no device with an active port; there is {known} (devinfo shows their \
         ports)"
    )))
}

/// The active ports of a device.
fn active_ports(context: &Context) -> impl Iterator<Item = u8> {
    let is_active = |port: u8| context.port_attr(port).is_ok_and(|attr| attr.state() == PortState::ACTIVE);
    (1..=context.port_count()).filter(move |&port| is_active(port))
}

impl Chosen {
    /// The device and the port: `mlx5_0:1`.
    #[must_use]
    pub fn name(&self) -> String {
        self.adapter.name()
    }

    /// Whether the options name the device, alone or in a list.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.named
    }

    /// The line about the device that every program prints.
    #[must_use]
    pub fn using(&self) -> String {
        format!("using {}", self.line)
    }

    /// Whether the device reaches other hosts: hardware does, and the software device if it listens
    /// for them.
    pub(crate) fn reaches_hosts(&self) -> bool {
        let context = &self.adapter.context;
        !context.is_software() || tcp::status().is_some_and(|status| status.device == context.name())
    }

    /// Refuses the software device if the ranks are on several hosts and it listens for none.
    fn check_hosts(&self, group: &Group) -> Result<(), Failure> {
        if group.is_on_one_machine() || self.reaches_hosts() {
            return Ok(());
        }
        let why = if self.named { "" } else { "; devinfo --why says why there is no hardware" };
        let name = self.adapter.context.name();
        Err(Failure::new(format!(
            "the ranks are on several hosts, and {name} works within one unless {ADVICE}; --job-key lets rank 0 make the \
             key{why}"
        )))
    }

    /// The requested MTU if the port supports it; the port's active MTU if none is requested.
    ///
    /// # Errors
    /// If the port does not support the MTU.
    pub fn mtu(&self, bytes: Option<u32>) -> Result<Mtu, Failure> {
        let active = self.adapter.context.port_attr(self.adapter.port)?.active_mtu();
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
