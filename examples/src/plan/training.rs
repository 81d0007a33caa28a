//! The traffic that data-parallel training needs.

use serde::Serialize;

use super::units::{show_bytes, show_rate, show_time};

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

impl Training {
    /// Bytes of all gradients.
    #[must_use]
    pub fn size(&self) -> f64 {
        self.parameters * self.bytes
    }

    /// Bytes that each rank sends, and receives, in an all-reduce without in-network reduction:
    /// each byte of the `n-1` other shares leaves once before, and once after the reduction.
    #[must_use]
    pub fn moved(&self, ranks: usize) -> f64 {
        2.0 * self.size() * (ranks as f64 - 1.0) / ranks as f64
    }

    /// Bytes per second that each rank has to send to finish an all-reduce within a step.
    #[must_use]
    pub fn rate(&self, ranks: usize) -> f64 {
        self.moved(ranks) / self.step
    }

    /// Says the figures in sentences.
    #[must_use]
    pub fn describe(&self, ranks: usize) -> String {
        format!(
            "{:e} parameters of {} bytes are {}. An all-reduce among {ranks} ranks moves 2 x {} x {}/{ranks} = {} a \
             rank, each way. In a step of {} that is {}.",
            self.parameters,
            self.bytes,
            show_bytes(self.size()),
            show_bytes(self.size()),
            ranks - 1,
            show_bytes(self.moved(ranks)),
            show_time(self.step),
            show_rate(self.rate(ranks)),
        )
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
            assert!((model.moved(ranks) - 2.0 * 140e9 * (n - 1.0) / n).abs() < 1.0);
        }
        assert!((model.moved(100_000) - 280e9).abs() < 0.01e9);
        assert!((model.rate(100_000) - 1.4e12).abs() < 0.001e12);
        let text = model.describe(1024);
        assert_eq!(
            text,
            "7e10 parameters of 2 bytes are 140 GB. An all-reduce among 1024 ranks moves 2 x 140 GB x 1023/1024 = 280 \
             GB a rank, each way. In a step of 200 ms that is 1.4 TB/s."
        );
    }
}
