//! The project's own programs, on shared memory as they choose it, or over verbs.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use rdma_collectives::Transport;

use super::malformed;
use crate::point::{Place, Point};
use crate::programs::run;

/// The folder of the project's programs.
#[derive(Clone, Debug)]
pub struct Ours {
    folder: PathBuf,
    name: &'static str,
    transport: Transport,
}

impl Ours {
    /// The programs in a folder, on the transport that they choose.
    #[must_use]
    pub fn new(folder: PathBuf, name: &'static str) -> Self {
        Self { folder, name, transport: Transport::Auto }
    }

    /// The same programs over verbs, on the software device.
    #[must_use]
    pub fn over_verbs(&self, name: &'static str) -> Self {
        Self { folder: self.folder.clone(), name, transport: Transport::Verbs }
    }

    pub(super) fn name(&self) -> &str {
        self.name
    }

    pub(super) fn time(&self, point: Point) -> io::Result<f64> {
        let Point { operation, place, ranks, size, iterations, warmup } = point;
        let mut command = Command::new(self.folder.join(operation.name()));
        command.args(["--device", "soft0", "--json", "--transport", self.transport.name()]);
        let numbers =
            [("--ranks", ranks), ("--min", size), ("--max", size), ("--iters", iterations), ("--warmup", warmup)];
        for (flag, value) in numbers {
            command.args([flag, &value.to_string()]);
        }
        if place == Place::Out {
            command.arg("--out-of-place");
        }
        read(&run(&mut command)?.stdout, place, size)
    }
}

/// Parses the time in the JSON of a program.
fn read(json: &[u8], place: Place, size: usize) -> io::Result<f64> {
    let value: serde_json::Value = serde_json::from_slice(json)?;
    let result = &value["results"][0];
    let half = match place {
        Place::Out => &result["out_of_place"],
        Place::In => &result["in_place"],
    };
    match (result["size"].as_u64(), half["time"].as_f64(), half["nwrong"].as_u64()) {
        (Some(reported), Some(time), None | Some(0)) if usize::try_from(reported) == Ok(size) => Ok(time),
        _ => Err(malformed(&value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_place_is_read() {
        let json = br#"{"results":[{"size":8,"out_of_place":{"time":1.5,"nwrong":0},"in_place":{"time":2.5}}]}"#;
        assert!((read(json, Place::Out, 8).unwrap() - 1.5).abs() < 1e-9);
        assert!((read(json, Place::In, 8).unwrap() - 2.5).abs() < 1e-9);
    }

    #[test]
    fn wrong_results_and_other_sizes_are_errors() {
        let json = br#"{"results":[{"size":8,"out_of_place":{"time":1.5,"nwrong":2}}]}"#;
        assert!(read(json, Place::Out, 8).is_err());
        assert!(read(json, Place::Out, 16).is_err());
        assert!(read(b"{}", Place::Out, 8).is_err());
    }
}
