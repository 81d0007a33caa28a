//! Options of the path to a peer: one type for endpoints, for the connection manager, and for the
//! crates above.

use std::fmt;

use super::kind::TransportType;
use super::mtu::Mtu;
use super::path::Path;
use super::timer::{AckTimeout, RnrTimer};

/// Largest service level: 4 bits.
const MAX_SERVICE_LEVEL: u8 = 15;
/// Largest retry count, and the default: 3 bits.
pub(crate) const MAX_RETRIES: u8 = 7;
/// Largest flow label: 20 bits.
const MAX_FLOW_LABEL: u32 = 0xf_ffff;
/// The smallest source port of RoCE v2. The lower 14 bits of a port come from the flow label.
const FIRST_SOURCE_PORT: u16 = 0xc000;
/// Flow label of [`FIRST_SOURCE_PORT`]. Its halves of 14 and 6 bits are equal, so that drivers,
/// which combine them by an exclusive or, get 0; a label of 0 would leave the port to the driver.
const FIRST_PORT_LABEL: u32 = 1 << 14 | 1;

/// An option, and the values that it may have.
#[derive(Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OptionLimit {
    /// Name of the option, as of the method that sets it.
    pub name: &'static str,
    /// The values that the option may have, in words: `0 to 15`.
    pub values: &'static str,
}

impl OptionLimit {
    /// The limit of an option.
    #[must_use]
    pub const fn new(name: &'static str, values: &'static str) -> Self {
        Self { name, values }
    }
}

impl fmt::Display for OptionLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the option {} has an invalid value: it may be {}", self.name, self.values)
    }
}

impl std::error::Error for OptionLimit {}

static SERVICE_LEVEL: OptionLimit = OptionLimit::new("service_level", "0 to 15");
static RETRY_COUNT: OptionLimit = OptionLimit::new("retry_count", "0 to 7");
static RNR_RETRY_COUNT: OptionLimit = OptionLimit::new("rnr_retry_count", "0 to 7");
static MTU: OptionLimit = OptionLimit::new("mtu", "256, 512, 1024, 2048 or 4096 bytes");
static FLOW_LABEL: OptionLimit = OptionLimit::new("flow_label", "0 to 1048575 (20 bits)");
static SOURCE_PORT: OptionLimit = OptionLimit::new("udp_source_port", "49152 to 65535");
static LABEL_AND_PORT: OptionLimit =
    OptionLimit::new("udp_source_port", "left out only: the flow_label that is given chooses the port");

/// What iWARP cannot be told: its packets are TCP's.
static ON_IWARP: [OptionLimit; 4] = [
    OptionLimit::new("service_level", "left out only: iWARP has none"),
    OptionLimit::new("flow_label", "left out only: on iWARP it is TCP's"),
    OptionLimit::new("udp_source_port", "left out only: iWARP runs over TCP"),
    OptionLimit::new("hop_limit", "left out only: on iWARP it is TCP's"),
];

/// Setters of the options of a path, which the type has in the field `path`, or itself.
macro_rules! path_setters {
    ($($holder:ident)?) => {
        /// The traffic class: on RoCE v2 the byte of the IP header with the DSCP in its upper 6
        /// bits and ECN in its lower 2, so DSCP 26 is class 104. The page of the guide about
        /// [priorities](crate::guide::priorities) says which to take. By default 0; with the
        /// connection manager that of the peer that connects, whose default the administrator sets.
        pub fn traffic_class(mut self, class: u8) -> Self {
            self$(.$holder)?.traffic_class = Some(class);
            self
        }

        /// The service level: 0 to 15. On InfiniBand it chooses the virtual lane, on RoCE with
        /// VLANs the priority of a frame. By default 0; with the connection manager that of the
        /// route.
        pub fn service_level(mut self, level: u8) -> Self {
            self$(.$holder)?.service_level = Some(level);
            self
        }

        /// The time to wait for an answer before a retry. By default 67 ms; with the connection
        /// manager the route's, often seconds.
        pub fn ack_timeout(mut self, timeout: $crate::types::AckTimeout) -> Self {
            self$(.$holder)?.ack_timeout = Some(timeout);
            self
        }

        /// The number of retries without an answer: 0 to 7, by default 7. Linux's software device
        /// rxe treats 7 as unlimited, and then never notices that a peer is gone. It counts every
        /// lost packet of a message as a retry, so large messages on a lossy network need 7 there.
        pub fn retry_count(mut self, count: u8) -> Self {
            self$(.$holder)?.retry_count = Some(count);
            self
        }

        /// The number of retries while the peer has no receive posted: 0 to 6; 7, the default,
        /// retries for ever.
        pub fn rnr_retry_count(mut self, count: u8) -> Self {
            self$(.$holder)?.rnr_retry_count = Some(count);
            self
        }

        /// The time that the peer waits before a retry when no receive is posted here: by default
        /// 0.64 ms.
        pub fn min_rnr_timer(mut self, timer: $crate::types::RnrTimer) -> Self {
            self$(.$holder)?.min_rnr_timer = Some(timer);
            self
        }

        /// An MTU smaller than that of the path. A larger one has no effect.
        pub fn mtu(mut self, mtu: $crate::types::Mtu) -> Self {
            self$(.$holder)?.mtu = Some(mtu);
            self
        }

        /// The flow label: 20 bits. On RoCE v2 drivers make the UDP source port of a label that is
        /// not 0, by which switches choose among paths of equal cost. By default 0: the driver
        /// chooses. rxe ignores it.
        pub fn flow_label(mut self, label: u32) -> Self {
            self$(.$holder)?.flow_label = Some(label);
            self
        }

        /// The UDP source port on RoCE v2: 49152 to 65535. It is given to the driver as the
        /// [`flow_label`](Self::flow_label) of this port, so only one of the two can be set.
        pub fn udp_source_port(mut self, port: u16) -> Self {
            self$(.$holder)?.udp_source_port = Some(port);
            self
        }

        /// The number of routers that packets may cross. By default 64; with the connection manager
        /// the route's. On RoCE Linux replaces it by the hop limit of the route to the peer
        /// (`ip route`), which is the TTL on IPv4.
        pub fn hop_limit(mut self, limit: u8) -> Self {
            self$(.$holder)?.hop_limit = Some(limit);
            self
        }
    };
}
pub(crate) use path_setters;

/// Options of the path to a peer, with the same names for endpoints
/// ([`ConnectOptions`](crate::ConnectOptions)), for the connection manager ([`cm`](crate::cm)) and
/// for the crates above.
///
/// An option that is set holds for the queue pair of this side. An option that is not set, `None`,
/// has its default. With the connection manager, the side that accepts takes what it has not set
/// from the side that connects: one side's traffic class, timeout and retries are enough.
///
/// No library reads these options from the environment. The programs of the examples do, and there
/// an option of the command line goes before a variable, and a variable before the default.
///
/// Within an InfiniBand subnet packets have no global header: traffic class, flow label and hop
/// limit have no effect there. On iWARP the path is TCP's: timeouts, retries and the MTU have no
/// effect, and a service level, a flow label, a source port or a hop limit is an error. The traffic
/// class has an effect there only as an option of an id
/// ([`Id::set_path`](crate::cm::Id::set_path)).
///
/// # Examples
///
/// ```
/// use rdma::{AckTimeout, PathOptions};
/// // DSCP 26, and give up after about two seconds.
/// let path = PathOptions::new().traffic_class(26 << 2).ack_timeout(AckTimeout::DEFAULT).retry_count(6);
/// assert!(path.check().is_ok());
/// let limit = path.service_level(16).check().unwrap_err();
/// assert_eq!((limit.name, limit.values), ("service_level", "0 to 15"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[must_use]
pub struct PathOptions {
    /// The traffic class.
    pub traffic_class: Option<u8>,
    /// The service level: 0 to 15.
    pub service_level: Option<u8>,
    /// The time to wait for an answer before a retry.
    pub ack_timeout: Option<AckTimeout>,
    /// The number of retries without an answer: 0 to 7.
    pub retry_count: Option<u8>,
    /// The number of retries while the peer has no receive posted: 0 to 6; 7 retries for ever.
    pub rnr_retry_count: Option<u8>,
    /// The time that the peer waits before a retry when no receive is posted here.
    pub min_rnr_timer: Option<RnrTimer>,
    /// An MTU smaller than that of the path.
    pub mtu: Option<Mtu>,
    /// The flow label: 20 bits.
    pub flow_label: Option<u32>,
    /// The UDP source port on RoCE v2: 49152 to 65535.
    pub udp_source_port: Option<u16>,
    /// The number of routers that packets may cross.
    pub hop_limit: Option<u8>,
}

impl PathOptions {
    /// Options of which none is set.
    pub fn new() -> Self {
        Self::default()
    }

    path_setters!();

    /// These options, and those of `other` where these are not set.
    pub fn or(self, other: Self) -> Self {
        // A port stands for a label: the source port of `other` must not join a label of these.
        let has_label = self.flow_label.is_some() || self.udp_source_port.is_some();
        let label = if has_label { self } else { other };
        Self {
            traffic_class: self.traffic_class.or(other.traffic_class),
            service_level: self.service_level.or(other.service_level),
            ack_timeout: self.ack_timeout.or(other.ack_timeout),
            retry_count: self.retry_count.or(other.retry_count),
            rnr_retry_count: self.rnr_retry_count.or(other.rnr_retry_count),
            min_rnr_timer: self.min_rnr_timer.or(other.min_rnr_timer),
            mtu: self.mtu.or(other.mtu),
            flow_label: label.flow_label,
            udp_source_port: label.udp_source_port,
            hop_limit: self.hop_limit.or(other.hop_limit),
        }
    }

    /// Checks the values. Functions that take options do so before they do anything else.
    ///
    /// # Errors
    ///
    /// The first option with a value out of its range, or that contradicts another one.
    pub fn check(&self) -> Result<(), &'static OptionLimit> {
        let most = |value: Option<u8>, most: u8| value.is_none_or(|value| value <= most);
        let checks = [
            (most(self.service_level, MAX_SERVICE_LEVEL), &SERVICE_LEVEL),
            (most(self.retry_count, MAX_RETRIES), &RETRY_COUNT),
            (most(self.rnr_retry_count, MAX_RETRIES), &RNR_RETRY_COUNT),
            (self.mtu.is_none_or(|mtu| mtu.bytes().is_some()), &MTU),
            (self.flow_label.is_none_or(|label| label <= MAX_FLOW_LABEL), &FLOW_LABEL),
            (self.udp_source_port.is_none_or(|port| port >= FIRST_SOURCE_PORT), &SOURCE_PORT),
            (self.flow_label.is_none() || self.udp_source_port.is_none(), &LABEL_AND_PORT),
        ];
        checks.into_iter().try_for_each(|(is_allowed, limit)| if is_allowed { Ok(()) } else { Err(limit) })
    }

    /// Checks the values, and that a transport can be told of the options.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check); on iWARP the first option that TCP decides.
    pub fn check_for(&self, transport: TransportType) -> Result<(), &'static OptionLimit> {
        self.check()?;
        let given = [
            self.service_level.is_some(),
            self.flow_label.is_some(),
            self.udp_source_port.is_some(),
            self.hop_limit.is_some(),
        ];
        let refused = given.into_iter().zip(&ON_IWARP).find(|(is_given, _)| *is_given);
        match refused {
            Some((_, limit)) if transport == TransportType::IWARP => Err(limit),
            _ => Ok(()),
        }
    }

    /// Changes a path, such as one for an [`AddressHandle`](crate::AddressHandle), by the options
    /// that are set: service level, traffic class, flow label or source port, and hop limit.
    pub fn apply_to(&self, path: &mut Path) {
        path.service_level = self.service_level.unwrap_or(path.service_level);
        if let Some(route) = &mut path.route {
            route.traffic_class = self.traffic_class.unwrap_or(route.traffic_class);
            route.flow_label = self.label().unwrap_or(route.flow_label);
            route.hop_limit = self.hop_limit.unwrap_or(route.hop_limit);
        }
    }

    /// The flow label, also that of a source port.
    fn label(&self) -> Option<u32> {
        let of_port = |port: u16| match u32::from(port - FIRST_SOURCE_PORT.min(port)) {
            0 => FIRST_PORT_LABEL,
            label => label,
        };
        self.flow_label.or(self.udp_source_port.map(of_port))
    }
}

#[cfg(test)]
mod tests {
    use rdma_sys::ibv_flow_label_to_udp_sport;

    use super::super::path::Route;
    use super::*;

    #[test]
    fn a_value_out_of_range_names_the_option_and_the_limit() {
        let options = PathOptions::new;
        for (options, name, values) in [
            (options().service_level(16), "service_level", "0 to 15"),
            (options().retry_count(8), "retry_count", "0 to 7"),
            (options().rnr_retry_count(8), "rnr_retry_count", "0 to 7"),
            (options().mtu(Mtu::from_raw(6)), "mtu", "256, 512"),
            (options().flow_label(1 << 20), "flow_label", "20 bits"),
            (options().udp_source_port(49151), "udp_source_port", "49152 to 65535"),
            (options().udp_source_port(50000).flow_label(1), "udp_source_port", "flow_label"),
        ] {
            let limit = options.check().unwrap_err();
            assert!(limit.name == name && limit.values.contains(values), "{limit:?}");
        }
        let all = options().traffic_class(255).service_level(15).ack_timeout(AckTimeout::INFINITE).retry_count(7);
        let all = all.rnr_retry_count(7).mtu(Mtu::MTU_4096).flow_label(0xf_ffff).hop_limit(0);
        assert_eq!(all.check_for(TransportType::INFINIBAND), Ok(()));
    }

    #[test]
    fn what_tcp_decides_is_refused_on_iwarp() {
        let options = PathOptions::new().traffic_class(1).retry_count(1).mtu(Mtu::MTU_256);
        assert_eq!(options.check_for(TransportType::IWARP), Ok(()));
        for (options, name) in [
            (options.service_level(0), "service_level"),
            (options.flow_label(0), "flow_label"),
            (options.udp_source_port(49152), "udp_source_port"),
            (options.hop_limit(64), "hop_limit"),
        ] {
            assert_eq!(options.check_for(TransportType::IWARP).unwrap_err().name, name);
            assert_eq!(options.check_for(TransportType::INFINIBAND), Ok(()));
        }
    }

    /// Drivers take the port of a label as `ibv_flow_label_to_udp_sport` does.
    #[test]
    fn a_source_port_is_the_port_of_its_label() {
        for port in FIRST_SOURCE_PORT..=u16::MAX {
            let mut path = Path::new(1).route(Route::default());
            PathOptions::new().udp_source_port(port).apply_to(&mut path);
            let label = path.route.unwrap().flow_label;
            assert!(label > 0 && label <= MAX_FLOW_LABEL, "{port}");
            assert_eq!(ibv_flow_label_to_udp_sport(label), port);
        }
    }

    #[test]
    fn options_go_before_others() {
        let first = PathOptions::new().traffic_class(1).udp_source_port(50000);
        let second = PathOptions::new().traffic_class(2).flow_label(7).hop_limit(3);
        let both = first.or(second);
        assert_eq!(both, PathOptions::new().traffic_class(1).udp_source_port(50000).hop_limit(3));
        assert_eq!(both.check(), Ok(()), "they come from two places, and contradict nothing");
        assert_eq!(PathOptions::new().or(second), second);
    }
}
