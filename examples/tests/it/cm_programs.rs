//! `rping` and `cm_time` on the software device: against themselves, and against peers that violate
//! the protocol. `tests/vm` runs them against rdmacm-utils' programs.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rdma::cm::ConnOptions;
use rdma::cm::blocking::{self, Connection, ListenOptions, Listener};
use rdma::op;
use rdma::transport::Rc;
use rdma::{
    CompletionQueue, Context, DeviceSelector, ExposedRegion, InitializedQueuePair, Poller, ProtectionDomain, QueuePair,
    RemoteAccess, RemoteSlice,
};
use rdma_examples::rping::Advert;
use serde_json::Value;

use crate::common::*;

/// Time limit of each wait; generous, because the machine runs other work too.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server in the background and its address, which it prints.
struct Server {
    child: Child,
    address: SocketAddr,
    stderr: BufReader<ChildStderr>,
}

impl Server {
    const ARGS: [&str; 7] = ["-s", "-d", "-a", "127.0.0.1", "-p", "0", "--timeout=60"];

    /// Starts `rping -s` on a free port and reads the address from its output.
    fn start(args: &[&str]) -> Self {
        Self::of(program("rping").args(Self::ARGS).args(args))
    }

    /// Starts the server with a limit of `files` open files.
    fn with_files(files: u32, args: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        let limited = format!("ulimit -n {files}; exec \"$@\"");
        shell.args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_rping")]).env("RDMA_DEVICE", "soft0");
        Self::of(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).args(Self::ARGS).args(args))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (mut said, mut address) = (String::new(), None);
        // A server that fails to start prints the reason and ends.
        while address.is_none() {
            let start = said.len();
            assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "the server did not begin: {said}");
            address = said[start..].trim().split_once(": listening on ").map(|(_, at)| at.parse().unwrap());
        }
        let address = address.unwrap();
        Self { address, child, stderr }
    }

    /// The client's options for this server.
    fn with(&self, args: &[&str]) -> Vec<String> {
        let port = self.address.port().to_string();
        let host = self.address.ip().to_string();
        ["-c", "-a", &host, "-p", &port].iter().chain(args).map(|&arg| arg.to_owned()).collect()
    }

    fn client(&self, args: &[&str]) -> Output {
        let args = self.with(args);
        run("rping", &args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Waits for the server's end; returns whether it succeeded, and its output besides the usual
    /// steps.
    fn end(mut self) -> (bool, String) {
        let mut complaints = String::new();
        let steps = ["listening", "connected", "the client has disconnected"];
        loop {
            let mut line = String::new();
            if self.stderr.read_line(&mut line).unwrap() == 0 {
                break;
            }
            let is_step = line.strip_prefix("rping: ").is_some_and(|rest| steps.iter().any(|s| rest.starts_with(s)));
            // On a loaded machine, a server may also say that it waits for a client.
            if !is_step && !line.starts_with("waiting for ") {
                complaints.push_str(&line);
            }
        }
        let status = self.child.wait().unwrap();
        assert!(status.code().is_some_and(|code| code != 101), "{status}: {complaints}");
        (status.success(), complaints)
    }

    fn ends_well(self) {
        let (well, complaints) = self.end();
        assert!(well && complaints.is_empty(), "{complaints}");
    }

    /// Checks that the server fails with one line that contains `part`.
    fn has_failed(self, part: &str) {
        let (well, complaints) = self.end();
        assert!(!well && complaints.lines().count() == 1 && complaints.contains(part), "{part:?}: {complaints}");
    }
}

/// A peer of one of the programs, controlled by the test.
struct Peer {
    connection: Connection,
    qp: QueuePair<Rc>,
    poller: Poller,
    pd: ProtectionDomain,
    _cq: CompletionQueue,
}

fn soft0() -> Context {
    rdma::open(&"soft0".parse::<DeviceSelector>().unwrap()).unwrap().context
}

type Parts = (ProtectionDomain, CompletionQueue);

fn queue_pair(
    context: &Context,
    init: impl FnOnce(rdma::PreparedQueuePair<Rc>) -> InitializedQueuePair<Rc>,
) -> (InitializedQueuePair<Rc>, Parts) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(32).unwrap();
    let mut qp = init(QueuePair::builder(&pd).cq(&cq).build().unwrap());
    for _ in 0..4 {
        qp.post_recv(pd.allocate(64).unwrap(), 1).unwrap();
    }
    (qp, (pd, cq))
}

fn options() -> ConnOptions {
    ConnOptions::new().responder_resources(1).initiator_depth(1)
}

impl Peer {
    /// Connects a client to a server.
    fn of(server: &Server) -> Self {
        Self::may_be_refused(server, PATIENCE).expect("the server accepts")
    }

    /// Connects a client to a server, unless the server refuses.
    fn may_be_refused(server: &Server, patience: Duration) -> Option<Self> {
        let context = soft0();
        let route = blocking::resolve::<Rc>(&context, None, server.address, PATIENCE).unwrap();
        let (qp, parts) =
            queue_pair(&context, |qp| route.init_with(qp, RemoteAccess::READ | RemoteAccess::WRITE).unwrap());
        // A server without free descriptors may not answer at all.
        let (connection, qp) = route.connect(qp, &options(), patience).ok()?;
        Some(Self::new(connection, qp, parts))
    }

    /// Accepts the connection of an `rping -c` that this function starts.
    fn with_client(args: &[&str]) -> (Self, Child) {
        let context = soft0();
        let listener: Listener =
            Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
        let port = listener.local_addr().port().to_string();
        let child = start("rping", &[&["-c", "-a", "127.0.0.1", "-p", &port, "-V", "-C", "3"], args].concat());
        let request = listener.next_request(Some(PATIENCE)).unwrap().expect("the client comes");
        let (qp, parts) =
            queue_pair(&context, |qp| request.init_with(qp, RemoteAccess::READ | RemoteAccess::WRITE).unwrap());
        let (connection, qp) = request.accept(qp, &options(), PATIENCE).unwrap();
        (Self::new(connection, qp, parts), child)
    }

    fn new(connection: Connection, qp: QueuePair<Rc>, (pd, cq): Parts) -> Self {
        Self { connection, qp, poller: cq.poller(), pd, _cq: cq }
    }

    fn send(&mut self, message: &[u8]) {
        let mut buffer = self.pd.allocate(message.len()).unwrap();
        buffer.copy_from_slice(message);
        self.qp.post_send(op::send(buffer).token(2)).unwrap();
    }

    /// Waits for a message.
    fn receive(&mut self) -> Vec<u8> {
        loop {
            let Some(mut completion) = self.poller.poll().unwrap() else {
                std::thread::yield_now();
                continue;
            };
            completion.status().unwrap();
            if completion.token() == 1 {
                let length = completion.byte_len();
                return completion.take_buffer().unwrap()[..length].to_vec();
            }
        }
    }

    /// Allocates memory with a text, as a client does.
    fn region(&self, text: &[u8]) -> ExposedRegion {
        let region = self.pd.allocate_exposed(text.len(), RemoteAccess::READ | RemoteAccess::WRITE).unwrap();
        region.copy_in(0, text).unwrap();
        region
    }

    fn advertise(&mut self, slice: RemoteSlice) {
        self.send(&Advert::of(&slice).unwrap().to_bytes());
    }

    /// Disconnects as a client does.
    fn leave(self) {
        self.connection.disconnect(&self.qp).unwrap();
        self.connection.wait_disconnected(Some(PATIENCE)).unwrap();
    }

    /// Waits until the program has ended the connection.
    fn wait(&self) {
        assert!(self.connection.wait_disconnected(Some(PATIENCE)).unwrap());
    }
}

mod rping {
    use super::*;

    #[test]
    fn both_sides_are_ours() {
        assert!(succeed("rping", &[]).contains("\n100 pings of 64 bytes by 127.0.0.1:"));
        for size in ["26", "100", "4096", "64K"] {
            let bytes = if size == "64K" { "65536" } else { size };
            let out = succeed("rping", &["-S", size, "-C", "5", "-a", "127.0.0.1"]);
            assert!(out.contains(&format!("\n5 pings of {bytes} bytes by 127.0.0.1:")), "{out}");
        }
    }

    #[test]
    fn ipv6_is_an_address_as_well() {
        if !std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|list| list.contains("00000001 01")) {
            // The host has no IPv6.
            return;
        }
        let out = succeed("rping", &["-C", "5", "-a", "::1"]);
        assert!(out.contains("\n5 pings of 64 bytes by [::1]:"), "{out}");
    }

    #[test]
    fn texts_are_shown_on_both_sides() {
        let mut server = Server::start(&["-v"]);
        let client = server.client(&["-v", "-V", "-C", "3", "-S", "30"]);
        let lines = |what: &str| -> String {
            ["0: ABCDEFGHIJKLMNOP", "1: BCDEFGHIJKLMNOPQ", "2: CDEFGHIJKLMNOPQR"]
                .iter()
                .map(|text| format!("{what}: rdma-ping-{text}\n"))
                .collect()
        };
        let shown = text(&client.stdout);
        assert!(shown.starts_with("# using soft0") && shown.ends_with(&lines("ping data")), "{client:?}");
        let shown = std::io::read_to_string(server.child.stdout.take().unwrap()).unwrap();
        assert!(shown.starts_with("# using soft0") && shown.ends_with(&lines("server ping data")), "{shown}");
        server.ends_well();
    }

    #[test]
    fn every_side_reports_in_json() {
        let report = |out: &str| -> Value {
            assert_eq!(out.lines().count(), 1, "{out}");
            serde_json::from_str(out).unwrap()
        };
        let of_pair = report(&succeed("rping", &["--json", "-C", "7"]));
        assert_eq!((&of_pair["side"], &of_pair["pings"], &of_pair["size"]), (&"client".into(), &7.into(), &64.into()));
        assert_eq!((&of_pair["program"], &of_pair["device"]), (&"rping".into(), &"soft0".into()));
        assert!(of_pair["seconds"].as_f64().unwrap() > 0.0);

        let mut server = Server::start(&["--json"]);
        let client = server.client(&["--json", "-C", "5", "-S", "100"]);
        let client = report(&text(&client.stdout));
        assert_eq!((&client["pings"], &client["size"]), (&5.into(), &100.into()));
        assert_eq!(client["server"], server.address.to_string());
        let served = report(&std::io::read_to_string(server.child.stdout.take().unwrap()).unwrap());
        assert_eq!((&served["side"], &served["pings"]), (&"server".into(), &5.into()));
        assert!(served["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{served}");
        server.ends_well();

        let mut server = Server::start(&["--json", "-P", "--clients", "2"]);
        assert!(server.client(&["-C", "1"]).status.success() && server.client(&["-C", "2"]).status.success());
        let out = std::io::read_to_string(server.child.stdout.take().unwrap()).unwrap();
        let pings: Vec<Value> = out.lines().map(|line| report(line)["pings"].clone()).collect();
        assert_eq!(pings, [1, 2]);
        server.ends_well();
    }

    /// The server of rdmacm-utils' rping accepts `-C` too, but its client decides when the run
    /// ends.
    #[test]
    fn a_server_takes_a_count_and_leaves_it_to_its_client() {
        let server = Server::start(&["-C", "2"]);
        assert!(server.client(&["-V", "-C", "5"]).status.success());
        server.ends_well();
    }

    #[test]
    fn a_persistent_server_has_several_clients_at_a_time() {
        let server = Server::start(&["-P", "--clients", "6"]);
        let one_by_one = || assert!(server.client(&["-V", "-C", "5", "-S", "1000"]).status.success());
        one_by_one();
        one_by_one();
        let args = server.with(&["-V", "-C", "200"]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let clients: Vec<Child> = (0..4).map(|_| start("rping", &args)).collect();
        for client in clients {
            let output = finish(client);
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
        server.ends_well();
    }

    /// A count of 0 means the same for a local pair as for a client.
    #[test]
    fn a_count_of_0_is_without_end() {
        let mut child = start("rping", &["-C", "0", "-v"]);
        let mut shown = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(shown.any(|line| line.unwrap().starts_with("ping data: rdma-ping-500: ")), "it has ended");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn refuses_bad_input() {
        for (args, part) in [
            (&["-S", "25"][..], "'25' for '--size <SIZE>': give 26 to 64K"),
            (&["-S", "65537"], "'65537' for '--size <SIZE>'"),
            (&["-S", "x"], "a size is a number"),
            (&["--timeout", "0"], "give 1 to 86400 seconds"),
            (&["-c"], "--address"),
            (&["-c", "-s", "-a", "127.0.0.1"], "cannot be used with"),
            (&["-P"], "--server"),
            (&["-s", "-P", "--clients", "0"], "'0' for '--clients <N>'"),
            (&["-v", "--json"], "cannot be used with"),
            (&["-I", "127.0.0.1"], "--client"),
            (&["-c", "-a", "no such host"], "no such host"),
            (&["-s", "-a", "no such host"], "no such host"),
            (&["--device", "mlx9_9"], "mlx9_9"),
            (&["-s", "-a", "192.0.2.77"], "cannot listen on 192.0.2.77:7174"),
            (&["-c", "-a", ""], "an empty text is not an address"),
            (&["-c", "-a", "127.0.0.1:99"], "cannot connect to 127.0.0.1:99"),
            (&["-c", "-a", "127.0.0.1", "-I", "::1"], "IPv4 and IPv6"),
        ] {
            fail("rping", args, part);
        }
        assert!(succeed("rping", &["--version"]).contains(env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn nobody_listens() {
        let listener: Listener =
            Listener::bind(&soft0(), "127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
        let port = listener.local_addr().port().to_string();
        drop(listener);
        let output = run("rping", &["-c", "-a", "127.0.0.1", "-p", &port, "-C", "1"]);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(&format!("cannot connect to 127.0.0.1:{port}")), "{output:?}");
    }

    #[test]
    fn a_port_is_had_once() {
        let server = Server::start(&[]);
        let port = server.address.port().to_string();
        let second = run("rping", &["-s", "-a", "127.0.0.1", "-p", &port]);
        assert!(!second.status.success());
        assert!(text(&second.stderr).contains("cannot listen on"), "{second:?}");
        assert!(server.client(&["-C", "1"]).status.success());
        server.ends_well();
    }

    #[test]
    fn a_client_that_tells_nonsense_is_refused() {
        let advert =
            |address, len, rkey| Advert::of(&RemoteSlice::new(address, len, rkey)).unwrap().to_bytes().to_vec();
        for (message, part) in [
            (advert(0x1000, 0, 1), "ping 0: the client tells of 0 bytes at 0x1000: there is no room for 1"),
            (advert(0x1000, 65537, 1), "a ping has at most 65536"),
            (advert(0x1000, u32::MAX.into(), 1), "a ping has at most 65536"),
            (advert(u64::MAX - 5, 64, 1), "no memory is there"),
            (advert(0x1000, 64, 0xdead_beef), "cannot read the client's text"),
            (vec![1; 5], "sent 5 bytes; rping's messages have 16"),
            (vec![1; 40], "cannot receive a message"),
        ] {
            let server = Server::start(&[]);
            let mut peer = Peer::of(&server);
            peer.send(&message);
            server.has_failed(part);
            drop(peer);
        }
    }

    #[test]
    fn a_client_that_breaks_off_is_noticed() {
        let server = Server::start(&[]);
        let mut peer = Peer::of(&server);
        let text = peer.region(b"half a ping\0");
        peer.advertise(text.remote(..).unwrap());
        peer.receive();
        peer.leave();
        server.has_failed("ping 0: the client has disconnected, or gone on, in the middle of the ping");

        // A client may leave before its first ping.
        let server = Server::start(&[]);
        Peer::of(&server).leave();
        server.ends_well();
    }

    #[test]
    fn a_client_that_is_killed_is_noticed() {
        let server = Server::start(&["-v"]);
        let args = server.with(&[]);
        let client = start("rping", &args.iter().map(String::as_str).collect::<Vec<_>>());
        let mut server = server;
        // The client pings without end: the first text that the server prints shows that pings have
        // begun.
        let mut stdout = BufReader::new(server.child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("ping data") {
            line.clear();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the server ended");
        }
        let reader = std::thread::spawn(move || drop(std::io::read_to_string(stdout)));
        kill(Pid::from_raw(client.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
        drop(finish(client));
        // The client may have died in the middle of a ping or between two; in both cases the server
        // ends and does not panic.
        let (well, complaints) = server.end();
        assert!(well || complaints.lines().count() == 1 && complaints.contains(": ping "), "{complaints}");
        reader.join().unwrap();
    }

    #[test]
    fn a_text_without_an_end_and_a_sink_without_room() {
        // The whole text goes back, and no byte after it.
        let server = Server::start(&[]);
        let mut peer = Peer::of(&server);
        let (source, sink) = (peer.region(&[b'x'; 64]), peer.region(&[b'.'; 100]));
        peer.advertise(source.remote(..).unwrap());
        peer.receive();
        peer.advertise(sink.remote(..).unwrap());
        peer.receive();
        let mut bytes = [0; 100];
        sink.copy_out(0, &mut bytes).unwrap();
        assert_eq!((&bytes[..64], &bytes[64..]), (&[b'x'; 64][..], &[b'.'; 36][..]));
        // The answer to the next ping does not fit the sink.
        peer.advertise(source.remote(..).unwrap());
        peer.receive();
        peer.advertise(sink.remote(..63).unwrap());
        server.has_failed("ping 1: the client tells of 63 bytes");
    }

    #[test]
    fn a_persistent_server_outlives_a_bad_client() {
        let server = Server::start(&["-P", "--clients", "2"]);
        let mut peer = Peer::of(&server);
        peer.send(&[0; 3]);
        peer.wait();
        assert!(server.client(&["-V", "-C", "5"]).status.success());
        let (well, complaints) = server.end();
        assert!(!well && complaints.contains("sent 3 bytes"), "{complaints}");
        assert!(complaints.contains("1 of 2 clients did not end well"), "{complaints}");
    }

    /// Clients that only hold their connections use up the files that a server may open. Further
    /// clients are refused, and the server serves others once the first ones have gone. The call
    /// that needs the last free descriptor depends on the limit: the log has the device's refusal.
    #[test]
    fn a_persistent_server_outlives_the_end_of_its_files() {
        for files in 39..43 {
            let mut server = Server::with_files(files, &["-P", "--log", "warn"]);
            let silent: Vec<Peer> =
                (0..20).filter_map(|_| Peer::may_be_refused(&server, Duration::from_secs(1))).collect();
            drop(silent);
            let served = (0..100).any(|_| server.client(&["-V", "-C", "2"]).status.success());
            let still = server.child.try_wait().unwrap();
            server.child.kill().unwrap();
            server.child.wait().unwrap();
            let said = std::io::read_to_string(server.stderr).unwrap();
            assert!(said.contains("Too many open files"), "{files} files are enough");
            assert!(served && still.is_none(), "{files} files: {still:?}\n{said}");
        }
    }

    #[test]
    fn a_server_that_keeps_no_rules_is_noticed() {
        // A server that confirms a transfer without doing it.
        let (mut peer, client) = Peer::with_client(&[]);
        peer.receive();
        peer.send(&[0; 16]);
        peer.receive();
        peer.send(&[0; 16]);
        client_has_failed(client, "ping 0: data mismatch: byte 0 of 64");

        // A server that disconnects.
        let (mut peer, client) = Peer::with_client(&[]);
        peer.receive();
        peer.leave();
        client_has_failed(client, "ping 0: the server has disconnected");

        // A server that sends a message of another length.
        let (mut peer, client) = Peer::with_client(&[]);
        peer.receive();
        peer.send(&[0; 17]);
        client_has_failed(client, "ping 0: cannot receive a message");

        // A server that sends nothing.
        let (mut peer, client) = Peer::with_client(&["--timeout", "1"]);
        peer.receive();
        client_has_failed(client, "ping 0: the server has been silent for 1 s");
    }

    fn client_has_failed(client: Child, part: &str) {
        has_failed("rping -c", &finish(client), part);
    }
}

mod cm_time {
    use super::*;

    fn json(args: &[&str]) -> Value {
        serde_json::from_str(&succeed("cm_time", &[&["--json"], args].concat())).unwrap()
    }

    /// Starts `cm_time -b` on a free port.
    fn serve(args: &[&str]) -> Server {
        Server::of(program("cm_time").args(["-b", "127.0.0.1", "-p", "0"]).args(args))
    }

    fn is_right(report: &Value, connections: u64, in_flight: &[u64]) {
        let rounds = report["rounds"].as_array().unwrap();
        assert_eq!(rounds.iter().map(|round| round["in_flight"].as_u64().unwrap()).collect::<Vec<_>>(), in_flight);
        for round in rounds {
            assert_eq!(round["connections"], connections);
            assert!(round["connections_per_second"].as_f64().unwrap() > 0.0, "{round}");
            assert!(round["disconnections_per_second"].as_f64().unwrap() > 0.0, "{round}");
            for step in round["steps"].as_array().unwrap() {
                let number = |name: &str| step[name].as_f64().unwrap();
                assert!(number("min_us") <= number("avg_us") && number("avg_us") <= number("max_us"), "{step}");
                assert!(number("max_us") <= number("total_ms") * 1e3 * (1.0 + 1e-9), "{step}");
            }
        }
    }

    #[test]
    fn both_sides_are_ours() {
        is_right(&json(&[]), 100, &[1, 32]);
        is_right(&json(&["-c", "1"]), 1, &[1, 1]);
        // More queue pairs than one completion queue has space for.
        is_right(&json(&["-c", "300", "-n", "300"]), 300, &[300]);
        let out = succeed("cm_time", &["-c", "3", "-n", "2"]);
        for part in ["# 3 connections, 2 at a time", "resolve route:", "disconnect   :", "connections/s "] {
            assert!(out.contains(part), "{part:?} is not in\n{out}");
        }
    }

    #[test]
    fn server_and_client_are_started_apart() {
        let server = serve(&["--patience", "60"]);
        let port = server.address.port().to_string();
        let report = json(&["-s", "127.0.0.1", "-b", "127.0.0.1", "-p", &port, "-c", "7"]);
        is_right(&report, 7, &[1, 7]);
        assert_eq!(report["rounds"][0]["steps"][1]["step"], "bind addr");
        // The client announced its number of connections, so the server ends by itself.
        assert!(finish(server.child).status.success());
    }

    /// A listener of the test, and its port as text.
    fn listener() -> (Listener, String) {
        let listener: Listener =
            Listener::bind(&soft0(), "127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
        let port = listener.local_addr().port().to_string();
        (listener, port)
    }

    /// Accepts the next connection.
    fn accept(listener: &Listener) -> Peer {
        let request = listener.next_request(Some(PATIENCE)).unwrap().expect("the client comes");
        let (qp, parts) = queue_pair(&soft0(), |qp| request.init_with(qp, RemoteAccess::empty()).unwrap());
        let (connection, qp) = request.accept(qp, &options(), PATIENCE).unwrap();
        Peer::new(connection, qp, parts)
    }

    #[test]
    fn a_server_that_breaks_off_is_noticed() {
        // A server that ends the first connection as soon as it is established.
        let (listener, port) = listener();
        let client = start("cm_time", &["-s", "127.0.0.1", "-p", &port, "-c", "3", "-n", "1", "--patience", "60"]);
        accept(&listener).leave();
        // The request for the second connection may be on its way.
        let _second = listener.next_request(Some(Duration::ZERO));
        has_failed("cm_time -s", &finish(client), "127.0.0.1:");

        // A server that rejects.
        let (listener, port) = self::listener();
        let client = start("cm_time", &["-s", "127.0.0.1", "-p", &port]);
        listener.next_request(Some(PATIENCE)).unwrap().expect("the client comes").reject(b"no").unwrap();
        has_failed("cm_time -s", &finish(client), "rejected by the peer");

        // A server with one round only.
        let (listener, port) = self::listener();
        let client = start("cm_time", &["-s", "127.0.0.1", "-p", &port, "-c", "1", "-n", "1,1"]);
        accept(&listener).leave();
        listener.next_request(Some(PATIENCE)).unwrap().expect("the client comes").reject(b"no").unwrap();
        has_failed("cm_time -s", &finish(client), "round 2: cannot connect to");

        // A server that does not answer.
        let (listener, port) = self::listener();
        let client = start("cm_time", &["-s", "127.0.0.1", "-p", &port, "--patience", "1"]);
        let _request = listener.next_request(Some(PATIENCE)).unwrap();
        has_failed("cm_time -s", &finish(client), "nothing has come from 127.0.0.1:");
    }

    /// The server of rdmacm-utils' cmtime relies on this order.
    #[test]
    fn a_client_ends_its_first_connection_first() {
        let (listener, port) = listener();
        let client = start("cm_time", &["-s", "127.0.0.1", "-p", &port, "-c", "20", "-n", "1"]);
        let peers: Vec<Peer> = (0..20).map(|_| accept(&listener)).collect();
        for peer in peers {
            assert!(peer.connection.wait_disconnected(Some(PATIENCE)).unwrap());
            peer.leave();
        }
        assert!(finish(client).status.success());
    }

    #[test]
    fn a_client_that_breaks_off_is_noticed() {
        let server = serve(&["-c", "5", "--patience", "3"]);
        // Makes one connection of five, without an announcement.
        let context = soft0();
        let route = blocking::resolve::<Rc>(&context, None, server.address, PATIENCE).unwrap();
        let (qp, _parts) = queue_pair(&context, |qp| route.init_with(qp, RemoteAccess::empty()).unwrap());
        let (connection, qp) = route.connect(qp, &options(), PATIENCE).unwrap();
        connection.disconnect(&qp).unwrap();
        server.has_failed("with 1 of 5 connections made and 1 ended");
    }

    #[test]
    fn refuses_bad_input() {
        for (args, part) in [
            (&["-c", "0"][..], "'0' for '--connections <N>': give 1 to 100000"),
            (&["-c", "100001"], "'100001' for '--connections <N>'"),
            (&["-n", "0"], "'0' for '--in-flight <N>'"),
            (&["-n", "1,x"], "in-flight"),
            (&["-t", "0"], "'0' for '--timeout <MS>'"),
            (&["--patience", "0"], "give 1 to 86400 seconds"),
            (&["-s", "no such host"], "no such host"),
            (&["-b", "192.0.2.77"], "cannot listen on 192.0.2.77:7471"),
            (&["-d", "mlx9_9"], "mlx9_9"),
            (&["-s", "127.0.0.1:99"], "127.0.0.1:99"),
            (&["-s", "::1", "-b", "127.0.0.1"], "IPv4 and IPv6"),
        ] {
            fail("cm_time", args, part);
        }
    }
}
