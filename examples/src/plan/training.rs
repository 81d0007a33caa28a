//! The traffic that data-parallel training needs.

use serde::Serialize;

use super::network::Network;
use super::units::{show_bytes, show_count, show_rate, show_time};

/// A model whose gradients are summed over all ranks in every step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Training {
    /// Number of parameters.
    pub parameters: f64,
    /// Bytes of a gradient.
    pub bytes: f64,
    /// Seconds of a step.
    pub step: f64,
}

/// The members of an all-reduce: ranks, or groups of ranks that have summed inside before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// Number of members.
    pub count: usize,
    /// The word for one of them.
    pub name: &'static str,
    /// Whether switches between them reduce and multicast.
    pub in_network: bool,
}

impl Training {
    /// Bytes of all gradients.
    #[must_use]
    pub fn size(&self) -> f64 {
        self.parameters * self.bytes
    }

    /// Bytes that each member sends, and receives, at least. Each byte of the shares of the `n-1`
    /// others leaves a member once before, and once after the reduction; switches that reduce take
    /// every byte once.
    #[must_use]
    pub fn moved(&self, members: Members) -> f64 {
        let n = members.count as f64;
        if members.in_network && members.count > 1 { self.size() } else { 2.0 * self.size() * (n - 1.0) / n }
    }

    /// Bytes per second that each member has to send to finish an all-reduce within a step.
    #[must_use]
    pub fn rate(&self, members: Members) -> f64 {
        self.moved(members) / self.step
    }

    /// Says the figures in sentences, each of which fits a line.
    #[must_use]
    pub fn describe(&self, members: Members) -> [String; 3] {
        let Members { count, name, in_network } = members;
        let (size, moved) = (show_bytes(self.size()), show_bytes(self.moved(members)));
        let sum = match (in_network, count) {
            (true, 2..) => "By switches that reduce, an all-reduce moves".to_owned(),
            _ => format!("An all-reduce moves 2 x {size} x {}/{count} =", count - 1),
        };
        [
            format!("{} parameters of {} bytes are {size}.", show_count(self.parameters), show_count(self.bytes)),
            format!("{sum} {moved} out of and into each {name}."),
            format!("In a step of {} that is {} a {name}.", show_time(self.step), show_rate(self.rate(members))),
        ]
    }
}

impl Members {
    /// Single ranks.
    #[must_use]
    pub fn ranks(count: usize) -> Self {
        Self { count, name: "rank", in_network: false }
    }

    /// The hosts of a network, or the GPUs of its only one.
    #[must_use]
    pub fn of(network: &Network, in_network: bool) -> Self {
        match network.hosts() {
            1 => Self { count: network.ranks, name: "GPU", in_network: false },
            count => Self { count, name: "host", in_network },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seventy_billion_parameters_want_terabytes_per_second() {
        let model = Training { parameters: 70e9, bytes: 2.0, step: 0.2 };
        assert!((model.size() - 140e9).abs() < 1.0);
        for ranks in [2, 8, 1024, 100_000] {
            let n = ranks as f64;
            assert!((model.moved(Members::ranks(ranks)) - 2.0 * 140e9 * (n - 1.0) / n).abs() < 1.0);
        }
        assert!((model.moved(Members::ranks(100_000)) - 280e9).abs() < 0.01e9);
        assert!((model.rate(Members::ranks(100_000)) - 1.4e12).abs() < 0.001e12);
        let text = model.describe(Members { count: 64, name: "host", in_network: false });
        assert_eq!(
            text,
            [
                "70 billion parameters of 2 bytes are 140 GB.",
                "An all-reduce moves 2 x 140 GB x 63/64 = 276 GB out of and into each host.",
                "In a step of 200 ms that is 1.38 TB/s a host.",
            ]
        );
    }

    #[test]
    fn switches_that_reduce_halve_the_traffic() {
        let model = Training { parameters: 70e9, bytes: 2.0, step: 0.2 };
        let switches = Members { count: 64, name: "host", in_network: true };
        assert!((model.rate(switches) - 0.7e12).abs() < 1.0);
        let text = model.describe(switches);
        assert_eq!(text[1], "By switches that reduce, an all-reduce moves 140 GB out of and into each host.");
    }

    #[test]
    fn sentences_fit_a_line() {
        let model = Training { parameters: 1.234567e18, bytes: 1.23456789, step: 0.0123 };
        for count in [2, 1_000_000] {
            for in_network in [false, true] {
                let text = model.describe(Members { count, name: "host", in_network });
                assert!(text.iter().all(|line| line.len() <= 98), "{text:?}");
            }
        }
    }
}
