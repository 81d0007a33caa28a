//! Connections with protection domains of their own.

use rdma::{ErrorKind, ExposedRegion, RemoteAccess, RemoteSlice};

use super::*;

/// Two connections of one server, and a region that the server exposes in the domain of the first.
fn first_of_two(world: &mut World) -> ([(Connection, Connection); 2], ExposedRegion) {
    let pairs = [world.pair(), world.pair()];
    let region = pairs[0].1.domain().allocate_exposed(64, RemoteAccess::READ).unwrap();
    region.copy_in(0, b"for one").unwrap();
    (pairs, region)
}

fn fetch(connection: &Connection, slice: RemoteSlice) -> Result<Vec<u8>, Failure> {
    block_on(connection.remote().fetch(slice)).map(|bytes| bytes[..7].to_vec())
}

#[test]
fn a_key_of_one_peer_opens_nothing_on_the_connection_of_another() {
    for options in by_each_exchange() {
        let mut world = World::new(&options.separate_domains(true));
        let ([(one, at_one), (two, at_two)], region) = first_of_two(&mut world);
        let slice = region.remote(..).unwrap();
        assert_eq!(fetch(&one, slice).unwrap(), b"for one");
        assert_eq!(fetch(&two, slice).unwrap_err().kind(), FailureKind::PeerGone);
        assert_eq!(fetch(&one, slice).unwrap(), b"for one", "the other connection goes on");
        drop((one, at_one, two, at_two, region));
        world.end();
    }
}

#[test]
fn connections_share_the_node_s_domain_by_default() {
    let mut world = World::new(&options());
    let ([(one, at_one), (two, at_two)], region) = first_of_two(&mut world);
    let slice = region.remote(..).unwrap();
    for connection in [&one, &two] {
        assert_eq!(fetch(connection, slice).unwrap(), b"for one");
    }
    let region = at_two.domain().allocate_exposed(64, RemoteAccess::READ).unwrap();
    assert!(region.slice(..).unwrap().is_of_domain(world.server.domain()));
    drop((one, at_one, two, at_two, region));
    world.end();
}

#[test]
fn long_messages_and_exposed_ones_go_in_the_connection_s_domain() {
    let mut world = World::new(&options().separate_domains(true).max_message(1 << 20));
    let (client, mut server) = world.pair();
    let exposed = |domain: &rdma::ProtectionDomain| {
        let region = domain.allocate_exposed(200_000, RemoteAccess::READ).unwrap();
        region.copy_in(0, &bytes(200_000)).unwrap();
        region
    };
    let (own, of_node) = (exposed(client.domain()), exposed(world.client.domain()));
    let received = thread::spawn(move || {
        for _ in 0..2 {
            assert!(block_on(server.next()).unwrap().unwrap()[..] == bytes(200_000));
        }
        server
    });
    let (to, from) = client.split();
    block_on(async {
        to.send(bytes(200_000)).await.unwrap();
        to.send_exposed(own.slice(..).unwrap()).await.unwrap();
        let refused = to.send_exposed(of_node.slice(..).unwrap()).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Local, "{refused}");
    });
    let server = received.join().unwrap();
    // The connection has kept the buffers of the long message, and the node none.
    assert_eq!(world.server.read_buffers_len(), 0);
    drop((server, to, from, own, of_node));
    world.end();
}

#[test]
fn receives_of_separate_domains_cannot_be_shared() {
    let (node, driver) = node(&options().separate_domains(true));
    let error = node.listen(any_port(), &ListenOptions::new().shared_receives(64)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    drop(node);
    driver.join().unwrap().unwrap();
}
