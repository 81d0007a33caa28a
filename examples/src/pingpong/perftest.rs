//! The options of perftest that `pingpong` lacks.

use crate::refused::{Refusals, Refused, Value};

/// perftest's options without a counterpart here.
pub(super) enum Perftest {}

impl Refusals for Perftest {
    const PROGRAM: &'static str = "perftest";
    const OPTIONS: &'static [Refused] = &[
        with('l', "post_list", Value::Unless("1"), "each message is posted by itself; -t says how many are in flight"),
        flag('z', "comm_rdma_cm", "the sides tell each other their settings over TCP; -R connects by rdma_cm"),
        flag('C', "report-cycles", "times are in microseconds; leave it out"),
        with('X', "vector", Value::Yes, "events come by the device's first completion vector; leave it out"),
        flag('g', "mcg", "there is no multicast here; -c UD sends datagrams to one peer"),
        with('M', "MGID", Value::Yes, "there is no multicast here; -c UD sends datagrams to one peer"),
        with('L', "hop_limit", Value::Yes, "the hop limit is --hop-limit"),
        flag('O', "dualport", "one port is measured; run a second pingpong on the other (-i)"),
        with('T', "tos", Value::Yes, "the traffic class is --tclass, with -R too"),
        with('W', "report-counters", Value::Yes, "no counters are reported; they are in /sys/class/infiniband"),
        long("use-srq", Value::No, "each queue pair has its own receives; --compat --srq shares them"),
        long("use_cuda", Value::Yes, "gpu_bw measures between the memories of GPUs"),
        long("use_cuda_bus_id", Value::Yes, "gpu_bw measures between the memories of GPUs"),
        long("out_json", Value::No, "--json prints the report as JSON"),
        long("out_json_file", Value::Yes, "--json prints the report as JSON; redirect it to a file"),
        long("run_infinitely", Value::No, "a test has an end; -D gives its duration"),
        long("report-both", Value::No, "the rates of both directions are added, as perftest does without it"),
        long("cpu_util", Value::No, "the load of the processors is not reported; leave it out"),
        long("odp", Value::No, "memory is registered; leave it out"),
        long("mr_per_qp", Value::No, "the queue pairs share a region; leave it out"),
        long("ipv6", Value::No, "the GID of an address is chosen with --gid-index"),
        long("ipv6-addr", Value::No, "an IPv6 address is taken as it is; leave it out"),
        long("rate_limit", Value::Yes, "messages are sent as fast as they go; -t limits how many are in flight"),
        long("burst_size", Value::Yes, "messages are sent as fast as they go; -t limits how many are in flight"),
        long("latency_gap", Value::Yes, "a message follows the answer at once; leave it out"),
        long("flows", Value::Yes, "each queue pair has one flow; -q gives their number"),
        long("recv_post_list", Value::Unless("1"), "each receive is posted by itself; -r says how many there are"),
        long("inline_recv", Value::Yes, "receives have memory of their own; -I is for what is sent"),
        long("use_hugepages", Value::No, "the system's pages are used; leave it out"),
        long("dont_xchg_versions", Value::No, "the sides always compare their settings; leave it out"),
        long("force-link", Value::Yes, "the link layer is the port's; -d and -i choose the port"),
        long("report-per-port", Value::No, "one port is measured; run a second pingpong on the other (-i)"),
        long("bind_source_ip", Value::Yes, "the routing table chooses; with -R, --cm-address is our address"),
    ];
}

const fn with(short: char, long: &'static str, value: Value, why: &'static str) -> Refused {
    Refused { short: Some(short), long: Some(long), value, why }
}

const fn flag(short: char, long: &'static str, why: &'static str) -> Refused {
    with(short, long, Value::No, why)
}

const fn long(long: &'static str, value: Value, why: &'static str) -> Refused {
    Refused { short: None, long: Some(long), value, why }
}
