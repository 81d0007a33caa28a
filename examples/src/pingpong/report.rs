//! What stands above perftest's tables.

use std::io::{self, Write};

use super::Link;
use crate::Failure;
use crate::table::{RULER, settings_row};

/// Prints the ruler, the title and the settings of a test.
///
/// # Errors
/// What writing gives.
pub fn heading(link: &Link, test: &str) -> Result<(), Failure> {
    let settings = link.settings();
    let (local, remote) = link.ends();
    let mut out = io::stdout();
    let title = format!("{} {test} Test", settings.op.title());
    let depth = if test == "BW" { settings.depth.to_string() } else { "1".to_owned() };
    let inline = format!("{}[B]", link.inline());
    let mtu = format!("{}[B]", link.mtu());
    let on_off = |on: bool| if on { "ON" } else { "OFF" };
    writeln!(out, "{RULER}\n                    {title}")?;
    settings_row(&mut out, ("Number of qps", "1"), ("Transport type", if link.is_iwarp() { "IW" } else { "IB" }))?;
    settings_row(&mut out, ("Connection type", "RC"), ("Using SRQ", "OFF"))?;
    settings_row(&mut out, ("TX depth", &depth), ("Mtu", &mtu))?;
    settings_row(&mut out, ("Max inline data", &inline), ("Use events", on_off(settings.events)))?;
    settings_row(&mut out, ("Contents checked", on_off(settings.check)), ("Arrivals", link.notice()))?;
    writeln!(out, "{RULER}\n local address: {}\n remote address: {}\n{RULER}", local, remote)?;
    Ok(())
}
