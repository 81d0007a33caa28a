//! Measures latency and bandwidth between two processes and reports them as perftest does.

pub mod compat;
pub(crate) mod contents;
mod link;
mod measure;
pub mod options;
mod plan;
pub(crate) mod report;

use std::io::{self, Write};

use serde_json::json;

use crate::Failure;
use crate::device::announce;
use crate::failure::is_launched;
use crate::placement;
use crate::progress::Progress;
use link::Link;
use options::{Connection, LocalOptions, Options, Test};
use rdma_collectives::bootstrap::Group;
use rdma_collectives::connect::Method;
use report::Row;

/// Runs one of the two processes. The client, rank 1, measures and prints.
///
/// # Errors
/// If either side fails.
pub fn run(local: &LocalOptions, options: &Options, group: &mut Group) -> Result<(), Failure> {
    let chosen = local.device().open_together(group)?;
    let cores = placement::bind(group, local.bind);
    let is_client = group.rank() == 1;
    // The launcher's two processes share one output, where one line is enough.
    let speaks = is_client || !is_launched();
    if speaks {
        announce(&chosen.using(), local.json)?;
    }
    let method = match options.connection {
        Connection::Rc => options.manager.settle(&chosen, group, 1, local.json)?,
        Connection::Uc | Connection::Ud => Method::Endpoints,
    };
    let most = group.agree("the sizes", options.most(&chosen, method))?;
    let prints = is_client && !local.json;
    let mut rows: [Vec<Row>; 2] = Default::default();
    for test in options.tests() {
        let (what, rows) = if test == Test::Lat { ("latency", &mut rows[0]) } else { ("bandwidth", &mut rows[1]) };
        let mut sizes = options.sizes(test);
        sizes.retain(|&size| size <= most);
        let progress = Progress::new(if speaks { sizes.len() } else { 0 });
        for (done, &size) in sizes.iter().enumerate() {
            progress.step(what, done);
            let mut link = Link::connect(&chosen, group, options, (test, size), method, cores.shared)?;
            if prints && done == 0 {
                let is_managed = method != Method::Endpoints;
                progress.print(|| report::heading(&chosen, &link, options, (test, is_managed)))?;
            }
            let row = measure::run(&mut link, group, options, (test, size))?;
            if prints {
                progress.print(|| row.print(&mut io::stdout()))?;
            }
            rows.push(row);
        }
        if prints {
            progress.print(report::foot)?;
        }
    }
    if is_client && local.json {
        let [latency, bandwidth] = rows;
        let report = json!({
            "program": "pingpong", "op": options.op, "connection": options.connection, "device": chosen.line,
            "latency": latency, "bandwidth": bandwidth,
        });
        writeln!(io::stdout(), "{report}")?;
    }
    Ok(())
}
