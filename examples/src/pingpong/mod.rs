//! Measures latency and bandwidth between two processes and reports them as perftest does.

pub mod compat;
pub(crate) mod contents;
mod link;
mod measure;
pub mod options;
mod perftest;
mod plan;
pub(crate) mod report;
pub mod report_options;

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
use report_options::ReportOptions;

/// Runs one of the two processes. The client, rank 1, measures and prints.
///
/// # Errors
/// If either side fails.
pub fn run(local: &LocalOptions, wanted: &ReportOptions, options: &Options, group: &mut Group) -> Result<(), Failure> {
    let chosen = local.device().open_pair(local.key, group)?;
    let cores = placement::bind(group, local.bind)?;
    let is_client = group.rank() == 1;
    // The launcher's two processes share one output, where one line is enough.
    let speaks = is_client || !is_launched();
    let stdout_taken = local.json || wanted.output.is_some();
    if speaks {
        announce(&chosen.using(), stdout_taken)?;
    }
    let method = match options.connection {
        Connection::Rc => options.manager.settle(&chosen, group, 1, stdout_taken)?,
        Connection::Uc | Connection::Ud => Method::Endpoints,
    };
    let most = group.agree("the sizes", options.most(&chosen, method))?;
    let prints = is_client && !local.json;
    let has_table = is_client && !stdout_taken;
    let mut rows: [Vec<Row>; 2] = Default::default();
    let mut latencies = Vec::new();
    for test in options.tests() {
        let (what, rows) = if test == Test::Lat { ("latency", &mut rows[0]) } else { ("bandwidth", &mut rows[1]) };
        let mut sizes = options.sizes(test);
        sizes.retain(|&size| size <= most);
        let progress = Progress::new(if speaks { sizes.len() } else { 0 });
        for (done, &size) in sizes.iter().enumerate() {
            progress.step(what, done);
            let mut link = Link::connect(&chosen, group, options, (test, size), method, cores.shared)?;
            if has_table && done == 0 {
                let is_managed = method != Method::Endpoints;
                progress.print(|| report::heading(&chosen, &link, options, (test, is_managed)))?;
            }
            let measured = measure::run(&mut link, group, options, (test, size))?;
            if prints {
                progress.print(|| report::line(&mut io::stdout(), &measured, wanted, options))?;
            }
            rows.push(measured.row);
            if local.json && test == Test::Lat {
                latencies.extend(wanted.latencies(measured.samples));
            }
        }
        if has_table {
            progress.print(report::foot)?;
        }
    }
    if is_client && local.json {
        let [latency, bandwidth] = rows;
        let mut report = json!({
            "program": "pingpong", "op": options.op, "connection": options.connection, "device": chosen.line,
            "latency": latency, "bandwidth": &bandwidth,
        });
        for (at, latencies) in latencies.into_iter().enumerate() {
            report["latency"][at]["latencies"] = json!(latencies);
        }
        writeln!(io::stdout(), "{report}")?;
        return limits(wanted, &bandwidth);
    }
    if is_client { limits(wanted, &rows[1]) } else { Ok(()) }
}

/// Compares the bandwidths with the limits that options give. As in perftest, a limit is met if one
/// size meets it.
fn limits(wanted: &ReportOptions, rows: &[Row]) -> Result<(), Failure> {
    let best = |figure: fn(&Row) -> Option<f64>| rows.iter().filter_map(figure).fold(0.0, f64::max);
    for (option, limit, best) in [
        ("--limit_bw", wanted.limit_bw, best(Row::average)),
        ("--limit_msgrate", wanted.limit_msgrate, best(Row::rate)),
    ] {
        if let Some(limit) = limit.filter(|&limit| best < limit) {
            return Err(Failure::new(format!("the best result, {best:.6}, is below {option} {limit}")));
        }
    }
    Ok(())
}
