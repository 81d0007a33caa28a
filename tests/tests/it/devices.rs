//! Several software devices of one host, `soft0` and `soft1`, as rails between two processes. Each
//! test runs in a process of its own, whose environment asks for the devices.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Barrier;
use std::thread;

use rdma::aio::block_on;
use rdma::cm::blocking::{self, ListenOptions, Listener, ResolveOptions};
use rdma::cm::{ConnOptions, ConnectRequest, EventChannel, EventKind};
use rdma::op;
use rdma::soft::tcp;
use rdma::transport::Rc;
use rdma::{Context, Device, DeviceSelector, ErrorKind, Opened, RemoteAccess};
use rdma_net::{FailureKind, ListenOptions as NetOptions, Node, NodeOptions};
use rdma_test_support::{Peer, first, passes_alone, role};
use rdma_tests::cm::{End, address};
use rdma_tests::datagram::{Post, QKEY};
use rdma_tests::{LIMIT, Options, Unconnected, buffer, read, receive_slice, wait};

const TWO: &[(&str, &str)] = &[("RDMA_SOFT_DEVICES", "2")];

/// Opens the software device with this number.
fn soft(number: u8) -> Opened {
    let selector: DeviceSelector = format!("soft{number}").parse().unwrap();
    rdma::open(&selector).unwrap()
}

#[test]
fn devices_are_as_distinct_as_those_of_a_host_with_several_nics() {
    passes_alone(&["devices::the_list_has_both"], TWO);
}

#[test]
#[ignore = "run by devices_are_as_distinct_as_those_of_a_host_with_several_nics"]
fn the_list_has_both() {
    let devices: Vec<Device> = Device::list().unwrap().into_iter().filter(Device::is_software).collect();
    assert_eq!(devices.iter().map(Device::name).collect::<Vec<_>>(), ["soft0", "soft1"]);
    assert_ne!(devices[0].guid(), devices[1].guid());
    let gids = |number| soft(number).context.gid_table(1).unwrap().into_iter().map(|entry| entry.gid);
    let first: HashSet<_> = gids(0).collect();
    assert!(gids(1).len() > 0 && gids(1).all(|gid| !first.contains(&gid)), "{first:?}");
    let error = rdma::open(&"soft2".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("soft2") && error.contains("soft0, soft1"), "{error}");
}

#[test]
fn the_best_address_of_a_device_that_reaches_other_hosts_is_the_chosen_one() {
    // Another address of the host reaches farther, but this process listens at this one.
    passes_alone(&["devices::the_best_address"], &[("HOST", "127.88.3.1")]);
    let has_ipv6 = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    if has_ipv6.contains("00000000000000000000000000000001 ") {
        passes_alone(&["devices::the_best_address"], &[("HOST", "::1")]);
    }
}

#[test]
#[ignore = "run by the_best_address_of_a_device_that_reaches_other_hosts_is_the_chosen_one"]
fn the_best_address() {
    let host: IpAddr = std::env::var("HOST").unwrap().parse().unwrap();
    let free = TcpListener::bind((host, 0)).unwrap().local_addr().unwrap();
    assert_eq!(tcp::listen(free.into(), tcp::Key::random().unwrap()), Ok(free));
    let context = soft(0).context;
    let best = context.best_gid(1).unwrap().unwrap();
    let address = best.gid.ipv4().map_or_else(|| IpAddr::V6(best.gid.ipv6()), IpAddr::V4);
    assert_eq!((best.index, address), (0, host));
}

#[test]
fn a_device_is_selected_by_the_name_that_it_was_given() {
    passes_alone(&["devices::a_given_name"], &[("RDMA_SOFT_NAMES", "given_0,given_1")]);
}

#[test]
#[ignore = "run by a_device_is_selected_by_the_name_that_it_was_given"]
fn a_given_name() {
    let selector: DeviceSelector = "given_1:1".parse().unwrap();
    let opened = rdma::open(&selector).unwrap();
    assert_eq!((opened.context.name().as_str(), opened.context.is_software()), ("given_1", true));
    let error = rdma::open(&"soft0".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("given_0, given_1"), "{error}");
}

#[test]
fn every_device_reaches_every_device_of_another_process() {
    passes_alone(&["devices::rails_between_processes"], TWO);
}

#[test]
#[ignore = "run by every_device_reaches_every_device_of_another_process"]
fn rails_between_processes() {
    // Own device and peer's device of each connection, as the parent counts them.
    let rails = [(0, 0), (0, 1), (1, 0), (1, 1)];
    if role().is_some() {
        let mut channel = first();
        let mut kept = Vec::new();
        for (_, own) in rails {
            let side = Unconnected::new(&soft(own), Options::default()).meet(&mut channel);
            let region = side.pd.allocate_exposed(64, rdma_tests::all_rights()).unwrap();
            region.copy_in(0, &[own; 64]).unwrap();
            channel.send(&region.remote(..).unwrap().to_bytes());
            kept.push((side, region));
        }
        assert_eq!(channel.hear(), "done");
        return;
    }
    let mut peer = Peer::start("devices::rails_between_processes", "peer");
    for (own, theirs) in rails {
        let mut side = Unconnected::new(&soft(own), Options::default()).meet(&mut peer);
        let remote = receive_slice(&mut peer);
        assert_eq!(read(&mut side, remote), [theirs; 64], "soft{own} to soft{theirs}");
    }
    peer.tell("done");
    peer.finish();
}

#[test]
fn datagrams_pass_between_devices() {
    passes_alone(&["devices::a_datagram_and_its_answer"], TWO);
}

#[test]
#[ignore = "run by datagrams_pass_between_devices"]
fn a_datagram_and_its_answer() {
    let (mut a, mut b) = (Post::new(&soft(0)), Post::new(&soft(1)));
    let to = a.address_of(&b);
    b.receive(64, 1);
    a.qp.post_send(op::send_inline(b"question").to(&to, b.endpoint.qpn, QKEY)).unwrap();
    let source = *b.arrived().datagram.source();
    assert_eq!(source.grh.map(|grh| grh.source_gid()), a.endpoint.gid);
    let back = b.qp.answer(&source).unwrap();
    a.receive(64, 2);
    b.qp.post_send(op::send_inline(b"answer").to(&back, source.qpn, QKEY)).unwrap();
    assert_eq!(&a.arrived().datagram[..], b"answer");
}

#[test]
fn the_connection_manager_finds_the_device_of_an_address() {
    passes_alone(&["devices::addresses_have_devices"], TWO);
}

#[test]
#[ignore = "run by the_connection_manager_finds_the_device_of_an_address"]
fn addresses_have_devices() {
    let (zero, one) = (soft(0).context, soft(1).context);
    let own = SocketAddr::new(address(&one), 0);
    assert_eq!(own.ip().to_string(), "127.0.0.2");
    let wrong = Listener::<Rc>::bind(&zero, own, &ListenOptions::new()).unwrap_err();
    assert!(matches!(wrong.kind(), ErrorKind::WrongDevice(_)), "{wrong}");
    let listener: Listener = Listener::bind(&one, own, &ListenOptions::new()).unwrap();
    let to = listener.local_addr();
    thread::scope(|scope| {
        scope.spawn(|| {
            let end = End::new(&one);
            let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
            let mut qp = request.init(end.qp()).unwrap();
            qp.post_recv(end.pd.allocate(64).unwrap(), 1).unwrap();
            let (connection, _qp) = request.accept(qp, &ConnOptions::new(), LIMIT).unwrap();
            assert_eq!(wait(&mut end.cq.poller()).byte_len, 4);
            assert!(connection.wait_disconnected(Some(LIMIT)).unwrap());
        });
        let end = End::new(&zero);
        let from = SocketAddr::new(address(&zero), 0);
        let route = blocking::resolve::<Rc>(&zero, Some(from), to, LIMIT).unwrap();
        let qp = route.init(end.qp()).unwrap();
        let (connection, mut qp) = route.connect(qp, &ConnOptions::new(), LIMIT).unwrap();
        qp.post_send(op::send(buffer(&end.pd, b"ping"))).unwrap();
        assert_eq!(wait(&mut end.cq.poller()).status, Ok(()));
        connection.disconnect(&qp).unwrap();
    });
}

/// Connects to a port of each device, from whichever device leads there, and sends a message.
fn connect_to_both(port: u16) {
    for own in [soft(0).context, soft(1).context] {
        let to = SocketAddr::new(address(&own), port);
        let channel = EventChannel::of(&own).unwrap();
        let route = blocking::resolve_on::<Rc>(channel, None, to, LIMIT, &ResolveOptions::new()).unwrap();
        let end = End::new(&route.context().unwrap());
        let qp = route.init(end.qp()).unwrap();
        let (connection, mut qp) = route.connect(qp, &ConnOptions::new(), LIMIT).unwrap();
        qp.post_send(op::send(buffer(&end.pd, b"ping"))).unwrap();
        assert_eq!(wait(&mut end.cq.poller()).status, Ok(()));
        assert!(connection.wait_disconnected(Some(LIMIT)).unwrap());
    }
}

#[test]
fn a_listener_at_every_address_serves_every_device() {
    passes_alone(&["devices::one_blocking_listener", "devices::one_listening_id"], TWO);
}

#[test]
#[ignore = "run by a_listener_at_every_address_serves_every_device"]
fn one_blocking_listener() {
    let channel = EventChannel::of(&soft(0).context).unwrap();
    let listener: Listener = Listener::on(channel, "0.0.0.0:0".parse().unwrap(), &ListenOptions::new()).unwrap();
    assert_eq!(listener.id().context().unwrap_err().kind(), ErrorKind::InvalidInput, "it is of no device");
    let port = listener.local_addr().port();
    thread::scope(|scope| {
        scope.spawn(|| connect_to_both(port));
        for device in ["soft0", "soft1"] {
            let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
            let context = request.context().unwrap();
            assert_eq!(context.name(), device);
            let other = if device == "soft0" { soft(1) } else { soft(0) };
            let refused = request.init(End::new(&other.context).qp()).unwrap_err();
            let text = refused.error.to_string();
            assert!(text.contains("soft0") && text.contains("soft1"), "{text}");
            let end = End::new(&context);
            let mut qp = request.init(end.qp()).unwrap();
            qp.post_recv(end.pd.allocate(64).unwrap(), 1).unwrap();
            let (connection, qp) = request.accept(qp, &ConnOptions::new(), LIMIT).unwrap();
            assert_eq!(wait(&mut end.cq.poller()).byte_len, 4);
            connection.disconnect(&qp).unwrap();
        }
    });
}

/// The next request of a channel, whatever other events come.
fn next_request(channel: &EventChannel) -> ConnectRequest<Rc> {
    loop {
        let event = channel.next_event(Some(LIMIT)).unwrap().expect("a request");
        if let EventKind::ConnectRequest(request) = event.kind {
            return request;
        }
    }
}

#[test]
#[ignore = "run by a_listener_at_every_address_serves_every_device"]
fn one_listening_id() {
    let own = soft(0).context;
    let channel = EventChannel::of(&own).unwrap();
    let listener = channel.create_id::<Rc>().unwrap();
    listener.bind_addr("0.0.0.0:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let port = listener.local_addr().unwrap().port();
    // The context of the second device is opened for its first request, and kept by what is made
    // of it.
    let mut opened: Vec<Context> = Vec::new();
    for _ in 0..2 {
        thread::scope(|scope| {
            scope.spawn(|| connect_to_both(port));
            for device in ["soft0", "soft1"] {
                let request = next_request(&channel);
                let context = request.context().unwrap();
                assert_eq!(context.name(), device);
                match opened.iter().find(|known| known.name() == device) {
                    Some(known) => assert_eq!(context.as_raw(), known.as_raw()),
                    None => opened.push(context.clone()),
                }
                let end = End::new(&context);
                let mut qp = request.init(end.qp(), RemoteAccess::empty()).unwrap();
                qp.post_recv(end.pd.allocate(64).unwrap(), 1).unwrap();
                let (id, qp) = request.accept(qp, &ConnOptions::new()).unwrap();
                assert_eq!(id.context().unwrap().as_raw(), context.as_raw());
                assert_eq!(wait(&mut end.cq.poller()).byte_len, 4);
                id.disconnect(&qp).unwrap();
            }
        });
    }
    assert_eq!(opened[0].as_raw(), own.as_raw());
}

#[test]
fn a_listener_of_several_nodes_serves_every_device() {
    passes_alone(&["devices::one_listener_of_two_nodes"], TWO);
}

#[test]
#[ignore = "run by a_listener_of_several_nodes_serves_every_device"]
fn one_listener_of_two_nodes() {
    let any: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let contexts = [soft(0).context, soft(1).context];
    let (nodes, drivers): (Vec<_>, Vec<_>) = contexts
        .each_ref()
        .map(|context| Node::new(context, &NodeOptions::new().timeout(LIMIT)).unwrap())
        .map(|(node, driver)| (node, thread::spawn(move || driver.run_blocking())))
        .into_iter()
        .unzip();
    let mut listener = rdma_net::Listener::bind(&nodes, any, &NetOptions::new()).unwrap();
    let port = listener.local_addr().port();
    // To each device, by the node on it.
    let ends = contexts.iter().zip(&nodes).map(|(context, node)| (SocketAddr::new(address(context), port), node));
    for (to, node) in ends.clone() {
        let connecting = thread::spawn({
            let node = node.clone();
            move || {
                block_on(async {
                    let mut connection = node.connect(to).await?;
                    connection.send("ping").await?;
                    connection.next().await
                })
            }
        });
        let mut server = block_on(async {
            let incoming = listener.accept().await?;
            assert_eq!(incoming.node().domain().as_raw(), node.domain().as_raw());
            incoming.accept().await
        })
        .unwrap();
        assert_eq!(server.domain().as_raw(), node.domain().as_raw());
        block_on(async {
            let message = server.next().await.unwrap().expect("a message");
            server.send(&message).await.unwrap();
        });
        assert_eq!(&connecting.join().unwrap().unwrap().expect("an answer")[..], b"ping");
    }
    drop(listener);
    // A listener of one node refuses the requests of the other device, and goes on.
    let mut listener = nodes[0].listen(any, &NetOptions::new()).unwrap();
    let port = listener.local_addr().port();
    let refused = block_on(nodes[1].connect(SocketAddr::new(address(&contexts[1]), port))).unwrap_err();
    assert_eq!(refused.kind(), FailureKind::Refused, "{refused}");
    assert!(refused.to_string().contains("does not serve the device"), "{refused}");
    let (node, to) = (nodes[0].clone(), SocketAddr::new(address(&contexts[0]), port));
    let connecting = thread::spawn(move || block_on(node.connect(to)).map(drop));
    block_on(async { listener.accept().await?.accept().await }).unwrap();
    connecting.join().unwrap().unwrap();
    drop((listener, nodes));
    for driver in drivers {
        driver.join().unwrap().unwrap();
    }
}

#[test]
fn a_channel_without_a_context_is_of_the_devices_that_the_host_lists_first() {
    let first = Device::list().unwrap().remove(0).open().unwrap();
    if !rdma_tests::cm::available(&first) {
        return;
    }
    let id = EventChannel::new().unwrap().create_id::<Rc>().unwrap();
    if first.is_software() {
        id.bind_addr(SocketAddr::new(address(&first), 0)).unwrap();
        assert!(id.context().unwrap().is_software());
    }
}

#[test]
fn threads_that_ask_for_a_context_at_the_same_time_get_the_same() {
    passes_alone(&["devices::many_ask_at_once"], TWO);
}

#[test]
#[ignore = "run by threads_that_ask_for_a_context_at_the_same_time_get_the_same"]
fn many_ask_at_once() {
    let (zero, at) = (soft(0).context, SocketAddr::new(address(&soft(1).context), 0));
    let begin = Barrier::new(8);
    let ask = || {
        let id = EventChannel::of(&zero).unwrap().create_id::<Rc>().unwrap();
        id.bind_addr(at).unwrap();
        begin.wait();
        id.context().unwrap()
    };
    let first = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        let contexts: Vec<Context> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(contexts.iter().all(|context| context.as_raw() == contexts[0].as_raw()));
        contexts[0].clone()
    });
    // Nothing but this handle keeps it open.
    first.close().unwrap();
}
