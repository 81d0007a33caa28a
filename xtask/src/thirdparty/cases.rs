//! The command lines, and what is known to fail.

use Kind::{
    Alone, CmClient, CmGroup, CmPair, CmService, Compat, Crate, Example, ExampleCm, ExamplePingpong, Fabric, Mpi, Nccl,
    Perftest, Pingpong, Rping, Rsockets, Suite, Ucx,
};

/// The workspace's program that is a peer of `ibv_*_pingpong`.
pub(super) const OURS: &str = "pingpong";

/// The program in the folder `nccl`, which calls libibverbs as NCCL does.
pub(super) const NCCL_NET: &str = "nccl_net";

/// The expected end of a case.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Client and server end with success.
    Passes,
    /// As `Passes`, in one of three runs: the program itself has a race, for this reason.
    Races(&'static str),
    /// Fails because the device lacks something.
    Lacks(&'static str),
    /// One side is killed at work, and the other side reports an error by itself.
    Loses(Peer),
}

/// One of the two programs of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Server,
    Client,
}

/// The way in which a program is started. Pairs need different options for the server and the
/// client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A program alone.
    Alone,
    /// A program of the workspace `thirdparty`, alone.
    Crate,
    /// `cargo test` of a crate from the registry; the program is the crate's name.
    Suite,
    /// An example of such a crate, alone.
    Example,
    /// An example with the options of `ibv_rc_pingpong`
    ExamplePingpong,
    /// An example with the options of `cmtime`, whose server goes on.
    ExampleCm,
    /// `ibv_*_pingpong`
    Pingpong,
    /// `ibv_*_pingpong`, and [`OURS`] as its peer
    Compat,
    /// perftest's `ib_*`
    Perftest,
    /// `rping`
    Rping,
    /// `ucmatose`, `udaddy` and the like, on the port of their default.
    CmClient,
    /// `cmtime` and `udpong`, whose servers go on.
    CmService,
    /// `mckey`, whose client sends to a group.
    CmGroup,
    /// `rdma_client` after `rdma_server`
    CmPair,
    /// `iperf3`, whose sockets become rsockets by rdma-core's preload library.
    Rsockets,
    /// libfabric's `fi_pingpong`
    Fabric,
    /// `ucx_perftest`
    Ucx,
    /// `mpirun` of the test program
    Mpi,
    /// [`NCCL_NET`]
    Nccl,
}

impl Kind {
    /// The launcher's options.
    pub(super) fn launch_options(self) -> &'static [&'static str] {
        if matches!(self, Ucx | Mpi | Nccl | Suite) { &["--sysfs"] } else { &[] }
    }

    /// Whether the program is of a crate from the registry.
    pub(super) fn is_of_registry(self) -> bool {
        matches!(self, Suite | Example | ExamplePingpong | ExampleCm)
    }

    /// The arguments of the server and of the client that all cases of the kind have.
    fn arguments(self, port: u16) -> (String, String) {
        let pair = |both: String, client: &str| (both.clone(), format!("{both} {client}"));
        match self {
            Self::Alone | Self::Crate | Self::Suite | Self::Example => (String::new(), String::new()),
            Self::Mpi => ("-np 3 --oversubscribe ./mpi_sums".to_owned(), String::new()),
            Self::Pingpong | Self::Compat | Self::ExamplePingpong => pair(format!("-g 0 -p {port}"), "127.0.0.1"),
            Self::Perftest => pair(format!("-F -p {port}"), "127.0.0.1"),
            Self::Rping => (format!("-s -p {port}"), format!("-c -p {port}")),
            Self::CmClient => pair(String::new(), "-s 127.0.0.1"),
            Self::CmService => pair("-b 127.0.0.1".to_owned(), "-s 127.0.0.1"),
            Self::ExampleCm => pair(format!("-b 127.0.0.1 -p {port}"), "-s 127.0.0.1"),
            Self::CmGroup => (String::new(), "-s".to_owned()),
            Self::CmPair => pair(format!("-p {port}"), "-s 127.0.0.1"),
            Self::Rsockets => (format!("-s -1 -p {port}"), format!("-c 127.0.0.1 -p {port} -n 64M -P 3")),
            Self::Fabric => (format!("-B {port}"), format!("-P {port} 127.0.0.1")),
            Self::Ucx | Self::Nccl => pair(format!("-p {port}"), "127.0.0.1"),
        }
    }
}

/// A command line: the program's name and the options of both sides.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) kind: Kind,
    pub(super) program: &'static str,
    /// The client's program, if it is another one.
    pub(super) client: &'static str,
    pub(super) options: &'static str,
    /// A variable of the environment, `NAME=value`, or nothing.
    pub(super) variable: &'static str,
    pub(super) outcome: Outcome,
}

impl Case {
    /// The command line in the table.
    pub(super) fn text(&self) -> String {
        let killed = match self.outcome {
            Outcome::Loses(Peer::Server) => "(server killed)",
            Outcome::Loses(Peer::Client) => "(client killed)",
            Outcome::Passes | Outcome::Races(_) | Outcome::Lacks(_) => "",
        };
        let client = if self.client == self.program { "" } else { self.client };
        let what = match self.kind {
            Suite => "tests of the crate",
            Example | ExamplePingpong | ExampleCm => "example",
            _ => "",
        };
        let parts = [self.variable, what, self.program, client, self.options, killed];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// The arguments of the server and of the client, besides those of the case.
    pub(super) fn arguments(&self, port: u16) -> (String, String) {
        let (server, client) = self.kind.arguments(port);
        let ours = match (self.program, self.client) {
            ("ibv_uc_pingpong", _) | (_, "ibv_uc_pingpong") => "--compat --connection UC",
            ("ibv_srq_pingpong", _) | (_, "ibv_srq_pingpong") => "--compat --srq",
            _ => "--compat",
        };
        match self.kind {
            Compat if self.program == OURS => (format!("{server} {ours} --server"), client),
            Compat => (server, format!("{client} {ours}")),
            _ => (server, client),
        }
    }

    /// Debian's package of the program.
    pub(super) fn package(&self) -> &'static str {
        match (self.kind, self.program) {
            (_, "valgrind") => "valgrind",
            (Crate, _) => "nothing, but build the workspace thirdparty",
            (Suite | Example | ExamplePingpong | ExampleCm, _) => "nothing: the crate has no such example",
            (Alone | Pingpong | Compat, _) => "ibverbs-utils",
            (Perftest, _) => "perftest",
            (Rping | CmClient | CmGroup | CmService | CmPair, _) => "rdmacm-utils",
            (Rsockets, _) => "iperf3, and librspreload of librdmacm1",
            (Fabric, _) => "libfabric-bin",
            (Ucx, _) => "ucx-utils",
            (Mpi, _) => "openmpi-bin and libopenmpi-dev",
            (Nccl, _) => "gcc and libibverbs-dev",
        }
    }
}

const fn passes(kind: Kind, program: &'static str, options: &'static str) -> Case {
    Case { kind, program, client: program, options, variable: "", outcome: Outcome::Passes }
}

const fn lacks(kind: Kind, program: &'static str, options: &'static str, reason: &'static str) -> Case {
    Case { kind, program, client: program, options, variable: "", outcome: Outcome::Lacks(reason) }
}

const fn loses(peer: Peer, kind: Kind, program: &'static str, options: &'static str) -> Case {
    Case { outcome: Outcome::Loses(peer), ..passes(kind, program, options) }
}

const fn compat(server: &'static str, client: &'static str, options: &'static str) -> Case {
    Case { client, ..passes(Compat, server, options) }
}

const NO_XRC: &str = "no XRC";
/// The last send has succeeded, but its completion was not read when the peer has disconnected.
const RXM: &str = "the provider reports unread completions as flushed when it sees the peer's end first";
/// UCX's transports: `rc_v` needs UD to connect, which the name includes.
const UCX_RC: &str = "UCX_TLS=rc_v";
const UCX_UD: &str = "UCX_TLS=ud_v";

const fn ucx(variable: &'static str, options: &'static str) -> Case {
    Case { variable, ..passes(Ucx, "ucx_perftest", options) }
}

/// A test of UCX's transport alone.
macro_rules! uct {
    ($options:literal) => {
        ucx("", concat!("-x rc_verbs -d soft0:1 ", $options))
    };
}

const fn mpi(options: &'static str) -> Case {
    Case { variable: "UCX_NET_DEVICES=soft0:1", ..passes(Mpi, "mpirun", options) }
}

const fn nccl(variable: &'static str, options: &'static str) -> Case {
    Case { variable, ..passes(Nccl, NCCL_NET, options) }
}

pub(super) static CASES: &[Case] = &[
    passes(Alone, "ibv_devices", ""),
    passes(Alone, "ibv_devinfo", "-v"),
    passes(Pingpong, "ibv_rc_pingpong", ""),
    passes(Pingpong, "ibv_rc_pingpong", "-e"),
    passes(Pingpong, "ibv_rc_pingpong", "-N -c"),
    passes(Pingpong, "ibv_rc_pingpong", "-e -c -s 1 -n 200"),
    passes(Pingpong, "ibv_rc_pingpong", "-c -s 8388608 -n 20"),
    passes(Pingpong, "ibv_rc_pingpong", "-o -c"),
    passes(Pingpong, "ibv_rc_pingpong", "-o -P"),
    passes(Pingpong, "ibv_rc_pingpong", "-O -P -c"),
    passes(Pingpong, "ibv_rc_pingpong", "-t"),
    passes(Pingpong, "ibv_rc_pingpong", "-j"),
    passes(Pingpong, "ibv_ud_pingpong", ""),
    passes(Pingpong, "ibv_ud_pingpong", "-e -s 4096"),
    passes(Pingpong, "ibv_uc_pingpong", ""),
    passes(Pingpong, "ibv_uc_pingpong", "-e -c"),
    passes(Pingpong, "ibv_uc_pingpong", "-c -s 1048576 -n 100"),
    passes(Pingpong, "ibv_srq_pingpong", ""),
    passes(Pingpong, "ibv_srq_pingpong", "-e -c"),
    lacks(Pingpong, "ibv_xsrq_pingpong", "", NO_XRC),
    compat("ibv_rc_pingpong", OURS, "-c"),
    compat(OURS, "ibv_rc_pingpong", "-e -c -s 1048576 -n 100"),
    compat("ibv_uc_pingpong", OURS, "-c"),
    compat(OURS, "ibv_uc_pingpong", "-e -c"),
    compat("ibv_srq_pingpong", OURS, "-c"),
    compat("ibv_srq_pingpong", OURS, "-e -q 255 -n 5000"),
    compat("ibv_srq_pingpong", OURS, "-c -q 1 -r 1 -s 100000"),
    compat(OURS, "ibv_srq_pingpong", "-c"),
    compat(OURS, "ibv_srq_pingpong", "-e -c -s 65536 -n 3"),
    compat(OURS, "ibv_srq_pingpong", "-q 255 -n 5000"),
    passes(Rping, "rping", "-a 127.0.0.1 -C 50 -V"),
    passes(Rping, "rping", "-a ::1 -C 20 -S 65000 -V"),
    passes(Rping, "rping", "-a 127.0.0.1 -q -C 20"),
    passes(CmClient, "ucmatose", ""),
    passes(CmClient, "ucmatose", "-c 50 -C 20 -m"),
    passes(CmClient, "udaddy", ""),
    passes(CmClient, "udaddy", "-c 10 -C 200"),
    passes(CmService, "cmtime", "-c 10"),
    passes(CmGroup, "mckey", "-m 239.77.1.1 -C 20"),
    Case { client: "rdma_client", ..passes(CmPair, "rdma_server", "") },
    passes(CmService, "udpong", "-S 64 -C 2000"),
    passes(CmService, "udpong", "-T async -S 1000 -C 500"),
    passes(CmClient, "rstream", ""),
    passes(CmClient, "rstream", "-T nonblock -S all -C 20 -I 20"),
    passes(CmClient, "riostream", ""),
    passes(Rsockets, "iperf3", ""),
    passes(Perftest, "ib_send_lat", ""),
    passes(Perftest, "ib_send_lat", "-a -n 100"),
    passes(Perftest, "ib_send_lat", "-I 128 -e"),
    passes(Perftest, "ib_send_lat", "-R"),
    passes(Perftest, "ib_send_lat", "-c UD"),
    passes(Perftest, "ib_send_lat", "-c UC"),
    passes(Perftest, "ib_send_lat", "-c UC -s 1048576 -n 100"),
    passes(Perftest, "ib_send_bw", ""),
    passes(Perftest, "ib_send_bw", "-a -e -n 100"),
    passes(Perftest, "ib_send_bw", "-b -q 4 -n 500"),
    passes(Perftest, "ib_send_bw", "-D 1"),
    passes(Perftest, "ib_send_bw", "-R"),
    passes(Perftest, "ib_send_bw", "-c UD"),
    passes(Perftest, "ib_send_bw", "-c UD -R"),
    passes(Perftest, "ib_send_bw", "-c UC"),
    passes(Perftest, "ib_send_bw", "-c UC --use-srq"),
    passes(Perftest, "ib_send_lat", "--use-srq"),
    passes(Perftest, "ib_send_bw", "--use-srq"),
    passes(Perftest, "ib_send_bw", "--use-srq -q 4 -n 500"),
    passes(Perftest, "ib_write_lat", ""),
    passes(Perftest, "ib_write_lat", "-R -s 65536 -n 200"),
    passes(Perftest, "ib_write_lat", "-c UC"),
    passes(Perftest, "ib_write_bw", "--odp"),
    passes(Perftest, "ib_read_bw", "--odp"),
    passes(Perftest, "ib_send_bw", "--odp"),
    passes(Perftest, "ib_write_bw", ""),
    passes(Perftest, "ib_write_bw", "-b -q 4 -l 4 -n 500"),
    passes(Perftest, "ib_write_bw", "-R -D 1"),
    passes(Perftest, "ib_write_bw", "-z"),
    passes(Perftest, "ib_write_bw", "-c UC"),
    passes(Perftest, "ib_write_bw", "-c UC -b -q 4 -n 500"),
    passes(Perftest, "ib_read_lat", ""),
    passes(Perftest, "ib_read_lat", "-R"),
    passes(Perftest, "ib_read_bw", ""),
    passes(Perftest, "ib_read_bw", "-a -e -n 100 -o 1"),
    // A survivor that only waits for a message need not notice: RC tells nothing to an idle
    // receiver. The ping-pongs with `-e` are such survivors at times. Of the servers whose client
    // was killed, these slept on, each with receives alone outstanding, and the others failed with
    // an error completion: 8 of 40 of `ibv_rc_pingpong`, 3 of 15 of `ibv_srq_pingpong`, 4 of 20 of
    // `ibv_srq_pingpong -q 1`. The programs here have requests outstanding, or wait on their own
    // TCP connection.
    loses(Peer::Server, Perftest, "ib_write_bw", "-D 20"),
    loses(Peer::Client, Perftest, "ib_write_bw", "-D 20"),
    loses(Peer::Server, Perftest, "ib_read_bw", "-D 20"),
    loses(Peer::Client, Perftest, "ib_read_bw", "-D 20"),
    passes(Perftest, "ib_atomic_lat", ""),
    passes(Perftest, "ib_atomic_bw", "-A CMP_AND_SWAP"),
    passes(Perftest, "ib_atomic_bw", "-R"),
    passes(Fabric, "fi_pingpong", "-p verbs -e msg -I 100"),
    passes(Fabric, "fi_pingpong", "-p verbs -e dgram -I 100"),
    Case { outcome: Outcome::Races(RXM), ..passes(Fabric, "fi_pingpong", "-p verbs;ofi_rxm -e rdm -I 100") },
    passes(Fabric, "fi_pingpong", "-p verbs;ofi_rxd -e rdm -I 100"),
    ucx(UCX_RC, "-t tag_lat -n 500"),
    ucx(UCX_RC, "-t tag_bw -n 500"),
    ucx(UCX_RC, "-t ucp_am_lat -n 500"),
    ucx(UCX_RC, "-t ucp_am_bw -n 500"),
    ucx(UCX_RC, "-t stream_lat -n 500"),
    ucx(UCX_RC, "-t stream_bw -n 500"),
    ucx(UCX_RC, "-t ucp_put_lat -n 500"),
    ucx(UCX_RC, "-t ucp_put_bw -n 500"),
    ucx(UCX_RC, "-t ucp_get -n 500"),
    ucx(UCX_RC, "-t ucp_add -n 500"),
    ucx(UCX_RC, "-t ucp_fadd -n 500"),
    ucx(UCX_RC, "-t ucp_swap -n 500"),
    ucx(UCX_RC, "-t ucp_cswap -n 500"),
    ucx(UCX_UD, "-t tag_lat -n 200"),
    ucx(UCX_UD, "-t tag_bw -n 200"),
    ucx(UCX_UD, "-t ucp_am_bw -n 200"),
    ucx(UCX_UD, "-t stream_bw -n 200"),
    ucx(UCX_UD, "-t ucp_put_bw -n 200"),
    ucx(UCX_UD, "-t ucp_get -n 200"),
    ucx(UCX_UD, "-t ucp_fadd -n 200"),
    ucx(UCX_RC, "-t tag_bw -s 1048576 -n 50"),
    ucx(UCX_RC, "-t tag_lat -E sleep -n 100"),
    ucx(UCX_UD, "-t tag_lat -E sleep -n 100"),
    uct!("-t am_lat -D short -n 200"),
    uct!("-t am_lat -D shortiov -n 200"),
    uct!("-t am_lat -D bcopy -n 200"),
    uct!("-t am_lat -D bcopy -s 4096 -n 100"),
    uct!("-t am_lat -D zcopy -n 200"),
    uct!("-t am_bw -D short -n 200"),
    uct!("-t am_bw -D shortiov -n 200"),
    uct!("-t am_bw -D bcopy -n 200"),
    uct!("-t am_bw -D zcopy -s 8192 -n 100"),
    uct!("-t put_lat -D short -n 200"),
    uct!("-t put_lat -D bcopy -n 200"),
    uct!("-t put_lat -D zcopy -n 200"),
    uct!("-t put_bw -D short -n 200"),
    uct!("-t put_bw -D bcopy -n 200"),
    uct!("-t put_bw -D zcopy -s 1048576 -n 50"),
    uct!("-t get -D bcopy -n 200"),
    uct!("-t get -D zcopy -s 1048576 -n 50"),
    uct!("-t add_lat -n 200"),
    uct!("-t add_mr -n 200"),
    uct!("-t fadd -n 200"),
    uct!("-t cswap -n 200"),
    Case { outcome: Outcome::Lacks("verbs have no atomic that swaps without a comparison"), ..uct!("-t swap -n 200") },
    mpi("-x UCX_TLS=rc_v,self --mca pml ucx"),
    mpi("-x UCX_TLS=ud_v,self --mca pml ucx"),
    mpi("--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm"),
    nccl("", "-c"),
    nccl("", "-i -q 4 -s"),
    nccl("", "-a -o -T 106 -S 3"),
    nccl("", "-m -q 3 -s"),
    nccl("", "-e"),
    nccl("RDMA_SOFT_DEVICES=2", "-d 2 -q 2"),
    nccl("RDMA_SOFT_LINK_LAYER=infiniband", "-q 2"),
    passes(Crate, "ibverbs_pingpong", ""),
    passes(Crate, "sideway_pingpong", ""),
    passes(Crate, "post_poll", ""),
    passes(Crate, "tonic_calls", ""),
    passes(Crate, "hyper_requests", ""),
    passes(Crate, "codec_frames", ""),
    passes(Suite, "ibverbs", "--lib"),
    passes(Example, "loopback", ""),
    // Its test `compiletest` runs the compiler alone, for minutes.
    passes(Suite, "sideway", "--lib"),
    passes(Suite, "sideway", "--test test_atomic"),
    passes(Suite, "sideway", "--test test_cq"),
    passes(Suite, "sideway", "--test test_mr_and_cq"),
    passes(Suite, "sideway", "--test test_post_send"),
    passes(Suite, "sideway", "--test test_qp"),
    passes(Suite, "sideway", "--doc"),
    passes(Example, "ibv_devinfo", ""),
    passes(Example, "show_gids", ""),
    passes(ExamplePingpong, "rc_pingpong", ""),
    passes(ExamplePingpong, "rc_pingpong", "-t"),
    passes(ExamplePingpong, "rc_pingpong_split", "-d soft0 -s 65536"),
    passes(ExampleCm, "cmtime", "-c 10"),
    passes(Pingpong, "valgrind", "-q --error-exitcode=9 ibv_rc_pingpong -c -n 100"),
    passes(Nccl, "valgrind", "-q --error-exitcode=9 ./nccl_net -l 8193 -e"),
    passes(Alone, "valgrind", "-q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite ibv_devinfo"),
];
