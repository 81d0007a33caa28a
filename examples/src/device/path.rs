//! Settings of the path to the peers: they become attributes of the queue pairs.

use std::ops::RangeInclusive;

use clap::value_parser;
use rdma_collectives::PathSettings;

use crate::{Failure, environment};

/// The options of the path to the peers; the same in every program that has them.
///
/// A setting that is `None` comes from the environment, and has its default if the environment does
/// not give it either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = crate::cli::TRANSPORT)]
pub struct PathOptions {
    /// Traffic class of the packets [env: RDMA_TRAFFIC_CLASS] (default: 0)
    #[arg(long, visible_alias = "tclass", value_name = "0..255", hide_short_help = true)]
    pub traffic_class: Option<u8>,
    /// Service level of the packets [env: RDMA_SERVICE_LEVEL] (default: 0)
    #[arg(long, visible_alias = "sl", value_name = "0..15", hide_short_help = true)]
    #[arg(value_parser = value_parser!(u8).range(..=15))]
    pub service_level: Option<u8>,
    /// Time until a packet without acknowledgement is sent again, as an exponent: 4.096 us * 2^N;
    /// 0: never [env: RDMA_ACK_TIMEOUT] (default: 14, which is 67 ms; with --cm the connection
    /// manager's)
    #[arg(long, visible_alias = "qp-timeout", value_name = "0..31", hide_short_help = true)]
    #[arg(value_parser = value_parser!(u8).range(..=31))]
    pub ack_timeout: Option<u8>,
    /// How often a packet is sent again before its peer counts as gone [env: RDMA_RETRY_COUNT]
    /// (default: 7)
    #[arg(long, visible_alias = "retry_count", value_name = "0..7", hide_short_help = true)]
    #[arg(value_parser = value_parser!(u8).range(..=7))]
    pub retry_count: Option<u8>,
}

impl PathOptions {
    /// Takes the settings that are `None` from the environment.
    ///
    /// # Errors
    /// If a variable has a value out of its range.
    pub(super) fn or_environment(self) -> Result<Self, Failure> {
        self.or(environment::setting)
    }

    fn or(self, read: impl Fn(&str, RangeInclusive<u8>) -> Result<Option<u8>, Failure>) -> Result<Self, Failure> {
        let given = |value: Option<u8>, name: &str, most| value.map_or_else(|| read(name, 0..=most), |it| Ok(Some(it)));
        Ok(Self {
            traffic_class: given(self.traffic_class, "RDMA_TRAFFIC_CLASS", 255)?,
            service_level: given(self.service_level, "RDMA_SERVICE_LEVEL", 15)?,
            ack_timeout: given(self.ack_timeout, "RDMA_ACK_TIMEOUT", 31)?,
            retry_count: given(self.retry_count, "RDMA_RETRY_COUNT", 7)?,
        })
    }

    /// The settings that are given.
    pub(super) fn settings(self) -> PathSettings {
        let Self { traffic_class, service_level, ack_timeout, retry_count } = self;
        PathSettings { traffic_class, service_level, ack_timeout, retry_count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_goes_before_the_environment() {
        let flags = PathOptions { service_level: Some(3), ..PathOptions::default() };
        let read = |name: &str, range: RangeInclusive<u8>| {
            Ok(Some(*range.end()).filter(|_| name != "RDMA_ACK_TIMEOUT" && name != "RDMA_SERVICE_LEVEL"))
        };
        let expected =
            PathOptions { traffic_class: Some(255), service_level: Some(3), ack_timeout: None, retry_count: Some(7) };
        assert_eq!(flags.or(read).unwrap(), expected);
    }
}
