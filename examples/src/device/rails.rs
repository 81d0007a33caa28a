//! Rails: the devices that a rank uses at the same time.

use std::str::FromStr;

use rdma::Device;
use rdma_collectives::CrossRail;
use rdma_collectives::bootstrap::Group;

use super::{Chosen, DeviceOptions, Wanted, active_ports};
use crate::{Failure, environment};

/// The options of several devices, and of several queue pairs on each.
///
/// A setting that is `None` comes from the environment, and has its default if the environment does
/// not give it either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = crate::cli::TRANSPORT)]
pub struct RailOptions {
    /// Devices to use at the same time, or all: every active port of the list of devices
    /// [env: RDMA_RAILS] (default: 1)
    #[arg(long, value_name = "N|all", hide_short_help = true)]
    pub rails: Option<RailCount>,
    /// Queue pairs by which two ranks are connected on each rail [env: RDMA_QPS_PER_CONNECTION]
    /// (default: 1)
    #[arg(long, value_name = "1..128", hide_short_help = true)]
    #[arg(value_parser = |text: &str| crate::cli::number_in(text, 1..=128_usize))]
    pub qps_per_connection: Option<usize>,
    /// Connect rails of the same number only (0), begin at another rail at each host (1), or
    /// connect rails of the same number where both hosts have them (2) [env: RDMA_CROSS_RAIL]
    /// (default: 2)
    #[arg(long, value_name = "0|1|2", hide_short_help = true)]
    #[arg(value_parser = |text: &str| crate::cli::number_in(text, 0..=2_u8))]
    pub cross_rail: Option<u8>,
}

/// A number of rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailCount {
    /// As many as there are.
    All,
    /// So many.
    Exactly(usize),
}

/// Most rails of a rank.
const MOST: usize = 64;

impl FromStr for RailCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            _ => crate::cli::number_in(text, 1..=MOST).map(Self::Exactly).map_err(|why| format!("{why}, or all")),
        }
    }
}

/// The settings after a look at the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailSettings {
    /// The number of rails.
    pub rails: RailCount,
    /// Queue pairs by which two ranks are connected on each rail.
    pub queue_pairs: usize,
    /// Which rails are connected to each other.
    pub cross_rail: CrossRail,
}

impl RailOptions {
    /// Takes the settings that are `None` from the environment.
    ///
    /// # Errors
    /// If a variable has a value that is not allowed.
    pub fn settle(self) -> Result<RailSettings, Failure> {
        let rails = match self.rails {
            Some(rails) => rails,
            None => environment::parsed("RDMA_RAILS")?.unwrap_or(RailCount::Exactly(1)),
        };
        let or_environment = |given: Option<usize>, name, range| match given {
            Some(value) => Ok(Some(value)),
            None => environment::setting(name, range),
        };
        let queue_pairs = or_environment(self.qps_per_connection, "RDMA_QPS_PER_CONNECTION", 1..=128)?.unwrap_or(1);
        let cross_rail = or_environment(self.cross_rail.map(usize::from), "RDMA_CROSS_RAIL", 0..=2)?.unwrap_or(2);
        let cross_rail = match cross_rail {
            0 => CrossRail::Never,
            1 => CrossRail::Always,
            _ => CrossRail::WhereNeeded,
        };
        Ok(RailSettings { rails, queue_pairs, cross_rail })
    }
}

impl DeviceOptions {
    /// Opens the devices of every rank; collective. The first one is that of
    /// [`open_together`](Self::open_together).
    ///
    /// # Errors
    /// If any rank has fewer devices than wanted.
    pub fn open_rails(&self, count: RailCount, group: &mut Group) -> Result<Vec<Chosen>, Failure> {
        let first = self.open_together(group)?;
        let rails = match count {
            RailCount::Exactly(1) => Ok(vec![first]),
            _ => self.rails_from(first, count),
        };
        group.agree("the rails of all", rails)
    }

    /// The other rails after the first one.
    fn rails_from(&self, first: Chosen, count: RailCount) -> Result<Vec<Chosen>, Failure> {
        let devices = Device::list()?;
        let names: Vec<String> = devices.iter().map(Device::name).collect();
        let wanted = self.wanted()?;
        let candidates = match &wanted {
            Wanted::Listed(list) => list.candidates(&names),
            Wanted::Any | Wanted::Hardware => (0..names.len()).collect(),
        };
        let most = if let RailCount::Exactly(most) = count { most } else { MOST };
        let (is_software, mut rails) = (first.adapter.context.is_software(), vec![first]);
        for at in candidates {
            let context = devices[at].open()?;
            for port in active_ports(&context) {
                let is_listed = match &wanted {
                    Wanted::Listed(list) => list.allows(&names[at], port),
                    // Any software device, or any hardware.
                    Wanted::Any | Wanted::Hardware => context.is_software() == is_software,
                };
                let is_known =
                    rails.iter().any(|rail| rail.adapter.context.name() == names[at] && rail.adapter.port == port);
                if rails.len() < most && is_listed && !is_known && self.port.is_none_or(|wanted| wanted == port) {
                    let named = Self { device: Some(format!("={}:{port}", names[at])), ..self.clone() };
                    rails.push(named.open()?);
                }
            }
        }
        match count {
            RailCount::Exactly(wanted) if rails.len() < wanted => {
                let there: Vec<String> = rails.iter().map(Chosen::name).collect();
                Err(Failure::new(format!(
                    "--rails or RDMA_RAILS: {wanted} rails are wanted, and --device or RDMA_DEVICE leaves {}: {}",
                    rails.len(),
                    there.join(", ")
                )))
            }
            _ => Ok(rails),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_a_number_or_all() {
        assert_eq!("all".parse(), Ok(RailCount::All));
        assert_eq!("2".parse(), Ok(RailCount::Exactly(2)));
        assert_eq!("0".parse::<RailCount>(), Err("give 1 to 64, or all".to_owned()));
    }
}
