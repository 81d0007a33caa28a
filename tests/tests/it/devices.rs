//! Several software devices of one host, `soft0` and `soft1`, as rails between two processes. Each
//! test runs in a process of its own, whose environment asks for the devices.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::thread;

use rdma::cm::ConnOptions;
use rdma::cm::blocking::{self, ListenOptions, Listener};
use rdma::op;
use rdma::transport::Rc;
use rdma::{Device, DeviceSelector, ErrorKind, Opened};
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
