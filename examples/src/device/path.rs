//! Options of the path to the peers: they become attributes of the queue pairs.

use std::fmt;
use std::ops::RangeInclusive;

use clap::value_parser;
use rdma::{AckTimeout, RnrTimer};
use serde_json::{Value, json};

use crate::{Failure, environment};

/// Names, variables, values and defaults of the options, in the order of the help.
const SETTINGS: [Setting; 9] = [
    Setting { name: "traffic_class", variable: "RDMA_TRAFFIC_CLASS", values: 0..=255, default: "0" },
    Setting { name: "service_level", variable: "RDMA_SERVICE_LEVEL", values: 0..=15, default: "0" },
    Setting { name: "ack_timeout", variable: "RDMA_ACK_TIMEOUT", values: 0..=31, default: "14" },
    Setting { name: "retry_count", variable: "RDMA_RETRY_COUNT", values: 0..=7, default: "7" },
    Setting { name: "rnr_retry_count", variable: "RDMA_RNR_RETRY_COUNT", values: 0..=7, default: "7, of services 6" },
    Setting { name: "min_rnr_timer", variable: "RDMA_MIN_RNR_TIMER", values: 0..=31, default: "12" },
    Setting { name: "flow_label", variable: "RDMA_FLOW_LABEL", values: 0..=0xf_ffff, default: "the driver's" },
    Setting {
        name: "udp_source_port",
        variable: "RDMA_UDP_SOURCE_PORT",
        values: 49152..=65535,
        default: "the driver's",
    },
    Setting { name: "hop_limit", variable: "RDMA_HOP_LIMIT", values: 0..=255, default: "64" },
];

/// An option, which is also a variable.
struct Setting {
    /// The name of the option in [`rdma::PathOptions`].
    name: &'static str,
    variable: &'static str,
    values: RangeInclusive<u32>,
    default: &'static str,
}

/// The options of the path to the peers; the same in every program that has them, with the names
/// of [`rdma::PathOptions`].
///
/// An option that is `None` comes from the environment, and has its default if the environment does
/// not give it either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = crate::cli::TRANSPORT)]
pub struct PathOptions {
    /// Traffic class of the packets, DSCP times 4 [env: RDMA_TRAFFIC_CLASS] (default: 0)
    #[arg(long, visible_alias = "tclass", value_name = "0..255", global = true, hide_short_help = true)]
    pub traffic_class: Option<u8>,
    /// Service level of the packets [env: RDMA_SERVICE_LEVEL] (default: 0)
    #[arg(long, visible_alias = "sl", value_name = "0..15", global = true, hide_short_help = true)]
    #[arg(value_parser = value_parser!(u8).range(..=15))]
    pub service_level: Option<u8>,
    /// Time until a packet without acknowledgement is sent again, as an exponent: 4.096 us * 2^N;
    /// 0: never [env: RDMA_ACK_TIMEOUT] (default: 14, which is 67 ms; of the connection manager the
    /// route's)
    #[arg(long, visible_alias = "qp-timeout", value_name = "0..31", global = true, hide_short_help = true)]
    #[arg(value_parser = value_parser!(u8).range(..=31))]
    pub ack_timeout: Option<u8>,
    /// How often a packet is sent again before its peer counts as gone [env: RDMA_RETRY_COUNT]
    /// (default: 7)
    #[arg(long, visible_alias = "retry_count", value_name = "0..7", global = true, hide_short_help = true)]
    #[arg(value_parser = value_parser!(u8).range(..=7))]
    pub retry_count: Option<u8>,
    /// How often a message is sent again to a peer without a receive; 7: for ever
    /// [env: RDMA_RNR_RETRY_COUNT] (default: 7)
    #[arg(long, value_name = "0..7", global = true, hide_short_help = true)]
    #[arg(value_parser = value_parser!(u8).range(..=7))]
    pub rnr_retry_count: Option<u8>,
    /// Time that a peer waits before it sends again to a side without a receive, as InfiniBand's
    /// code [env: RDMA_MIN_RNR_TIMER] (default: 12, 0.64 ms; pingpong: 1, 0.01 ms)
    #[arg(long, value_name = "0..31", global = true, hide_short_help = true)]
    #[arg(value_parser = value_parser!(u8).range(..=31))]
    pub min_rnr_timer: Option<u8>,
    /// Flow label of the packets [env: RDMA_FLOW_LABEL] (default: the driver's)
    #[arg(long, value_name = "0..1048575", global = true, hide_short_help = true)]
    #[arg(value_parser = value_parser!(u32).range(..=0xf_ffff))]
    pub flow_label: Option<u32>,
    /// UDP source port of the packets, in place of a flow label [env: RDMA_UDP_SOURCE_PORT]
    /// (default: the driver's)
    #[arg(long, value_name = "49152..65535", global = true, hide_short_help = true)]
    #[arg(value_parser = value_parser!(u16).range(49152..))]
    pub udp_source_port: Option<u16>,
    /// How many routers the packets may cross; on RoCE Linux takes the route's [env:
    /// RDMA_HOP_LIMIT] (default: 64)
    #[arg(long, value_name = "0..255", global = true, hide_short_help = true)]
    pub hop_limit: Option<u8>,
}

impl PathOptions {
    /// The options for queue pairs. Those that are `None` come from the environment.
    ///
    /// # Errors
    /// If a variable has a value out of its range, or options contradict each other.
    pub(crate) fn or_environment(self) -> Result<rdma::PathOptions, Failure> {
        self.or(environment::setting)
    }

    fn or(
        self,
        read: impl Fn(&str, RangeInclusive<u32>) -> Result<Option<u32>, Failure>,
    ) -> Result<rdma::PathOptions, Failure> {
        // Of two names of one thing the command line's goes first.
        let has_label = self.flow_label.is_some() || self.udp_source_port.is_some();
        let read = |Setting { name, variable, values, .. }: &Setting| {
            if has_label && matches!(*name, "flow_label" | "udp_source_port") {
                Ok(None)
            } else {
                read(variable, values.clone())
            }
        };
        let from_environment = SETTINGS.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let [class, level, timeout, retries, rnr_retries, timer, label, port, hops] = from_environment[..] else {
            return Err(Failure::new("the table of the options is not whole"));
        };
        let mut path = rdma::PathOptions::new();
        path.traffic_class = self.traffic_class.or(narrow(class));
        path.service_level = self.service_level.or(narrow(level));
        path.ack_timeout = self.ack_timeout.or(narrow(timeout)).and_then(AckTimeout::from_code);
        path.retry_count = self.retry_count.or(narrow(retries));
        path.rnr_retry_count = self.rnr_retry_count.or(narrow(rnr_retries));
        path.min_rnr_timer = self.min_rnr_timer.or(narrow(timer)).and_then(RnrTimer::from_code);
        path.flow_label = self.flow_label.or(label);
        path.udp_source_port = self.udp_source_port.or(narrow(port));
        path.hop_limit = self.hop_limit.or(narrow(hops));
        path.check().map_err(|limit| Failure::usage(limit.to_string()))?;
        Ok(path)
    }
}

/// A value of the environment, whose range has been checked.
fn narrow<T: TryFrom<u32>>(value: Option<u32>) -> Option<T> {
    value.and_then(|value| T::try_from(value).ok())
}

/// What the environment says of an option of the path, for a report.
pub(crate) struct InEffect {
    /// The name of the option.
    pub(crate) name: &'static str,
    /// The variable that gives it.
    pub(crate) variable: &'static str,
    /// The value; `None` if the variable is unset, and the reason if it is not allowed.
    pub(crate) value: Result<Option<u32>, Failure>,
    default: &'static str,
}

impl InEffect {
    /// All options, as the environment gives them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        SETTINGS.iter().map(|Setting { name, variable, values, default }| Self {
            name,
            variable,
            value: environment::setting(variable, values.clone()),
            default,
        })
    }

    /// Whether the environment gives the option.
    pub(crate) fn is_given(&self) -> bool {
        !matches!(self.value, Ok(None))
    }

    /// As an object.
    pub(crate) fn to_json(&self) -> Value {
        match &self.value {
            Ok(Some(value)) => json!({ "option": self.name, "value": value, "from": self.variable }),
            Ok(None) => json!({ "option": self.name, "value": null, "from": "default", "variable": self.variable }),
            Err(failure) => json!({ "option": self.name, "error": failure.to_string(), "from": self.variable }),
        }
    }
}

impl fmt::Display for InEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Ok(Some(value)) => write!(f, "{value} ({})", self.variable),
            Ok(None) => write!(f, "{} (default; {})", self.default, self.variable),
            Err(failure) => write!(f, "invalid: {failure}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest(name: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, Failure> {
        let is_unset = matches!(name, "RDMA_ACK_TIMEOUT" | "RDMA_SERVICE_LEVEL" | "RDMA_FLOW_LABEL");
        Ok(Some(*range.end()).filter(|_| !is_unset))
    }

    #[test]
    fn an_option_goes_before_the_environment() {
        let flags = PathOptions { service_level: Some(3), traffic_class: Some(1), ..PathOptions::default() };
        let timer = RnrTimer::from_code(31).unwrap();
        let expected = rdma::PathOptions::new().traffic_class(1).service_level(3).retry_count(7).rnr_retry_count(7);
        let expected = expected.min_rnr_timer(timer).udp_source_port(65535).hop_limit(255);
        assert_eq!(flags.or(largest).unwrap(), expected);
        let label = PathOptions { flow_label: Some(5), ..flags }.or(largest).unwrap();
        assert_eq!((label.flow_label, label.udp_source_port), (Some(5), None));
    }

    #[test]
    fn a_label_and_a_port_contradict_each_other() {
        let both = PathOptions { flow_label: Some(5), udp_source_port: Some(50000), ..PathOptions::default() };
        let failure = both.or(|_, _| Ok(None)).unwrap_err().to_string();
        assert!(failure.contains("udp_source_port") && failure.contains("flow_label"), "{failure}");
    }
}
