//! The report of `ibv_devinfo -v`, as a tree of named values that prints as text and as JSON.

use std::io::{self, Write};

use rdma::soft::tcp;
use rdma::{Context, Device, PortAttr};
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::device::{ADVICE, InEffect};

/// A line of the report: its name, its value for JSON, and its value as text.
type Line = (&'static str, Value, String);

/// Attributes of one device.
#[derive(Debug)]
pub struct Report {
    name: String,
    device: Vec<Line>,
    ports: Vec<(u8, Vec<Line>)>,
}

fn number(name: &'static str, value: impl Into<u64>) -> Line {
    let value = value.into();
    (name, json!(value), value.to_string())
}

fn hex(name: &'static str, value: impl Into<u64>) -> Line {
    let value = value.into();
    (name, json!(value), format!("{value:#x}"))
}

fn text(name: &'static str, value: impl Into<String>) -> Line {
    let value = value.into();
    (name, json!(value), value)
}

impl Report {
    /// Opens a device and reads all of its attributes; with `only`, those of one port only.
    ///
    /// # Errors
    /// If the device cannot be opened or queried, or has no such port.
    pub fn of(device: &Device, only: Option<u8>) -> Result<Self, Failure> {
        let context = device.open().map_err(|e| Failure::from(e).context(device.name()))?;
        let mut ports = Vec::new();
        if let Some(port) = only.filter(|&port| port > context.port_count()) {
            let (name, count) = (device.name(), context.port_count());
            return Err(Failure::new(format!("{name} has no port {port}; its ports are 1 to {count}")));
        }
        for port in (1..=context.port_count()).filter(|&port| only.is_none_or(|only| only == port)) {
            ports.push((port, port_lines(&context, port)?));
        }
        Ok(Self { name: device.name(), device: device_lines(device, &context), ports })
    }

    /// Prints the report as `ibv_devinfo -v` does; without `verbose`, as `ibv_devinfo` does.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn print(&self, out: &mut dyn Write, verbose: bool) -> io::Result<()> {
        const BRIEF: [&str; 16] = [
            "transport",
            "software",
            "fw_ver",
            "node_guid",
            "sys_image_guid",
            "vendor_id",
            "vendor_part_id",
            "hw_ver",
            "phys_port_cnt",
            "state",
            "max_mtu",
            "active_mtu",
            "sm_lid",
            "port_lid",
            "link_layer",
            "tcp",
        ];
        let shown = |name: &str| verbose || BRIEF.contains(&name);
        writeln!(out, "hca_id:\t{}", self.name)?;
        for (name, _, value) in self.device.iter().filter(|(name, ..)| shown(name)) {
            writeln!(out, "\t{:<32}{value}", format!("{name}:"))?;
        }
        for (port, lines) in &self.ports {
            writeln!(out, "\t\tport:\t{port}")?;
            for (name, _, value) in lines.iter().filter(|(name, ..)| shown(name)) {
                writeln!(out, "\t\t\t{:<24}{value}", format!("{name}:"))?;
            }
        }
        writeln!(out)
    }

    /// The whole report as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let object = |lines: &[Line]| -> Map<String, Value> {
            let (mut map, mut gids, mut pkeys) = (Map::new(), Vec::new(), Vec::new());
            for (name, value, _) in lines {
                match *name {
                    "GID" => gids.push(value.clone()),
                    "P_Key" => pkeys.push(value.clone()),
                    name => drop(map.insert(name.to_owned(), value.clone())),
                }
            }
            for (name, list) in [("gids", gids), ("pkeys", pkeys)] {
                if !list.is_empty() {
                    map.insert(name.to_owned(), Value::Array(list));
                }
            }
            map
        };
        let mut device = object(&self.device);
        device.insert("hca_id".to_owned(), json!(self.name));
        let ports = self.ports.iter().map(|(port, lines)| {
            let mut map = object(lines);
            map.insert("port".to_owned(), json!(port));
            Value::Object(map)
        });
        device.insert("ports".to_owned(), ports.collect());
        Value::Object(device)
    }
}

/// Prints the options of the programs' paths, as the environment gives them; without `verbose`,
/// those that it gives.
///
/// # Errors
/// If writing to `out` fails.
pub fn print_path(out: &mut dyn Write, verbose: bool) -> io::Result<()> {
    let shown: Vec<InEffect> = InEffect::all().filter(|option| verbose || option.is_given()).collect();
    if shown.is_empty() {
        return Ok(());
    }
    writeln!(out, "path options of the programs:")?;
    for option in shown {
        writeln!(out, "\t{:<32}{option}", format!("{}:", option.name))?;
    }
    writeln!(out)
}

/// The options of the programs' paths, as JSON.
#[must_use]
pub fn path_to_json() -> Value {
    InEffect::all().map(|option| option.to_json()).collect()
}

fn device_lines(device: &Device, context: &Context) -> Vec<Line> {
    let attr = context.device_attr();
    let transport = device.transport();
    let mut lines = vec![
        text("transport", format!("{transport} ({})", transport.as_raw())),
        ("software", json!(device.is_software()), if device.is_software() { "yes" } else { "no" }.to_owned()),
        text("fw_ver", attr.firmware()),
        text("node_guid", attr.node_guid().to_string()),
        text("sys_image_guid", attr.system_guid().to_string()),
        hex("vendor_id", attr.vendor_id()),
        number("vendor_part_id", attr.vendor_part_id()),
        hex("hw_ver", attr.hardware_version()),
        number("phys_port_cnt", attr.port_count()),
        hex("max_mr_size", attr.max_mr_size()),
        hex("page_size_cap", attr.page_sizes()),
        number("max_qp", attr.max_qp()),
        number("max_qp_wr", attr.max_qp_wr()),
        hex("device_cap_flags", attr.capabilities()),
        number("max_sge", attr.max_sge()),
        number("max_sge_rd", attr.max_sge_rd()),
        number("max_cq", attr.max_cq()),
        number("max_cqe", attr.max_cqe()),
        number("max_mr", attr.max_mr()),
        number("max_pd", attr.max_pd()),
        number("max_qp_rd_atom", attr.max_qp_rd_atom()),
        number("max_res_rd_atom", attr.max_res_rd_atom()),
        number("max_qp_init_rd_atom", attr.max_qp_init_rd_atom()),
        text("atomic_cap", format!("{} ({})", attr.atomic_capability(), attr.atomic_capability().as_raw())),
        number("max_mw", attr.max_mw()),
        number("max_ah", attr.max_ah()),
        number("max_srq", attr.max_srq()),
        number("max_srq_wr", attr.max_srq_wr()),
        number("max_srq_sge", attr.max_srq_sge()),
        number("max_pkeys", attr.max_pkeys()),
        number("num_comp_vectors", context.completion_vectors()),
    ];
    if let Some(status) = tcp::status().filter(|status| device.is_software() && status.device == device.name()) {
        let kind = if status.is_encrypted { "encrypted" } else { "not encrypted" };
        let shown = format!("{}, key of {} (fingerprint {}), {kind}", status.address, status.key, status.fingerprint);
        lines.push(("tcp", tcp_to_json(&status), shown));
    }
    lines
}

fn tcp_to_json(status: &tcp::Status) -> Value {
    let hosts: Vec<_> = status.hosts.iter().map(ToString::to_string).collect();
    json!({
        "address": status.address.to_string(),
        "key": status.key.to_string(),
        "fingerprint": status.fingerprint,
        "encrypted": status.is_encrypted,
        "hosts": hosts,
    })
}

/// Says whether the software device reaches other hosts, and if not, why: as text, and as JSON.
#[must_use]
pub fn other_hosts() -> (String, Value) {
    match tcp::listen_from_environment() {
        Ok(Some(status)) => {
            (format!("{status}. A firewall on the way cannot be seen from here."), tcp_to_json(&status))
        }
        Ok(None) => (format!("The software device reaches no other hosts, unless {ADVICE}."), Value::Null),
        Err(error) => (format!("The software device does not start: {error}"), json!({ "error": error.to_string() })),
    }
}

fn port_lines(context: &Context, port: u8) -> Result<Vec<Line>, rdma::Error> {
    let attr = context.port_attr(port)?;
    let mut lines = vec![
        text("state", format!("{} ({})", attr.state(), attr.state().as_raw())),
        text("max_mtu", format!("{} ({})", attr.max_mtu(), attr.max_mtu().as_raw())),
        text("active_mtu", format!("{} ({})", attr.active_mtu(), attr.active_mtu().as_raw())),
        number("sm_lid", attr.sm_lid().0),
        number("port_lid", attr.lid().0),
        hex("port_lmc", attr.lmc()),
        text("link_layer", attr.link_layer().to_string()),
        hex("max_msg_sz", attr.max_message_size()),
        number("pkey_tbl_len", attr.pkey_table_len()),
        number("gid_tbl_len", attr.gid_table_len()),
        text("active_width", attr.lanes().map_or_else(|| "unknown".to_owned(), |n| format!("{n}X"))),
        text("active_speed", speed(&attr)),
        text("phys_state", format!("{} ({})", attr.phys_state(), attr.phys_state().as_raw())),
    ];
    for index in 0..attr.pkey_table_len() {
        // P_Key tables are mostly empty entries, which carry no information.
        let pkey = context.pkey(port, index)?;
        if pkey != 0 {
            lines.push(("P_Key", json!(pkey), format!("[{index:3}] {pkey:#06x}")));
        }
    }
    let best = context.best_gid(port)?;
    for entry in context.gid_table(port)? {
        let mark = if best.is_some_and(|best| best.index == entry.index) { " (the one that rdma chooses)" } else { "" };
        let value = json!({ "index": entry.index, "gid": entry.gid.to_string(), "type": entry.kind.to_string() });
        lines.push(("GID", value, format!("[{:3}] {}, {}{mark}", entry.index, entry.gid, entry.kind)));
    }
    Ok(lines)
}

fn speed(attr: &PortAttr) -> String {
    attr.lane_speed().map_or_else(|| "unknown".to_owned(), |s| format!("{}.{} Gbps", s / 10, s % 10))
}
