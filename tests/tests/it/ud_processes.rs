//! Datagrams between processes. A lost datagram is sent again, as in programs that use datagrams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma::op;
use rdma::{DatagramEndpoint, Gid, Lid, LinkLayer, MULTICAST_QPN};
use rdma_test_support::{Channel, Peer, first, role};
use rdma_tests::datagram::{Arrived, Post, QKEY, address_of_group, group, join, open};
use rdma_tests::{LIMIT, skip};

/// Time without an answer after which a question is sent again.
const AGAIN: Duration = Duration::from_millis(100);
const CLIENTS: usize = 3;
const QUESTIONS: u8 = 20;

/// Takes the next datagram, if one comes within `patience`, and posts its receive again.
fn arrived(post: &mut Post, patience: Duration) -> Option<(Vec<u8>, rdma::Source)> {
    let mut completion = post.receives.wait(Some(patience)).expect("poll")?;
    assert_eq!(completion.status(), Ok(()));
    let datagram = completion.take_datagram().expect("one buffer was posted");
    let found = (datagram.to_vec(), *datagram.source());
    post.qp.post_recv(datagram.into_buffer(), 0).expect("there is room again");
    Some(found)
}

fn client(mut channel: Channel) {
    let opened = open().expect("as the parent found");
    let mut post = Post::new(&opened);
    let server = DatagramEndpoint::from_bytes(&channel.receive()).expect("an endpoint");
    let address = post.qp.address_of(&server).unwrap();
    for _ in 0..4 {
        post.receive(64, 0);
    }
    let end = Instant::now() + LIMIT;
    for number in 0..QUESTIONS {
        loop {
            assert!(Instant::now() < end, "no answer to {number}");
            post.qp.post_send(op::send_inline(&[number]).to(&address, server.qpn, server.qkey)).unwrap();
            assert_eq!(post.sent().1, Ok(()));
            match arrived(&mut post, AGAIN) {
                Some((answer, source)) if answer == [number, !number] => {
                    assert_eq!(source.qpn, server.qpn);
                    break;
                }
                // The datagram was lost, or it answers a question that was sent twice.
                _ => {}
            }
        }
    }
    channel.tell("done");
}

#[test]
fn a_server_answers_processes_that_it_has_never_heard_of() {
    if role().is_some() {
        return client(first());
    }
    let Some(opened) = open() else { return };
    let mut server = Post::new(&opened);
    for token in 0..16 {
        server.receive(64, token);
    }
    let endpoint = server.endpoint.to_bytes();
    let stop = Arc::new(AtomicBool::new(false));
    let serving = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut peers = std::collections::BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                let Some((question, source)) = arrived(&mut server, Duration::from_millis(10)) else { continue };
                peers.insert(source.qpn);
                let back = server.qp.answer(&source).unwrap();
                let answer = [question[0], !question[0]];
                server.qp.post_send(op::send_inline(&answer).to(&back, source.qpn, QKEY)).unwrap();
                assert_eq!(server.sent().1, Ok(()));
            }
            peers.len()
        }
    });
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|_| Peer::start("ud_processes::a_server_answers_processes_that_it_has_never_heard_of", "peer"))
        .collect();
    for client in &mut clients {
        client.send(&endpoint);
    }
    for client in &mut clients {
        assert_eq!(client.hear(), "done");
    }
    stop.store(true, Ordering::Relaxed);
    assert_eq!(serving.join().unwrap(), CLIENTS);
}

fn member(mut channel: Channel) {
    let opened = open().expect("as the parent found");
    let mut post = Post::new(&opened);
    let gid = Gid::from_bytes(channel.receive_exact());
    let _joined = join(&post, gid);
    let attached = post.qp.attach_multicast(gid, Lid::NONE).unwrap();
    post.receive(64, 0);
    let Arrived { datagram, .. } = post.arrived();
    assert_eq!(&datagram[..], b"to all");
    assert!(datagram.source().is_to_a_group());
    channel.tell("heard");
    // The parent tells all members but one when to end; it kills that one while it is attached.
    assert_eq!(channel.hear(), "leave");
    attached.detach().unwrap();
    channel.tell("left");
}

#[test]
fn a_group_reaches_members_in_other_processes() {
    const NAME: &str = "ud_processes::a_group_reaches_members_in_other_processes";
    if role().is_some() {
        return member(first());
    }
    let Some(opened) = open() else { return };
    if opened.context.port_attr(opened.port).unwrap().link_layer() != LinkLayer::ETHERNET {
        return skip("a group must be joined on InfiniBand");
    }
    let mut post = Post::new(&opened);
    let gid = group(&post, 9);
    let _joined = join(&post, gid);
    let address = address_of_group(&post, gid);
    let mut members = [Peer::start(NAME, "peer"), Peer::start(NAME, "peer")];
    for member in &mut members {
        member.send(&gid.to_bytes());
    }
    let stop = Arc::new(AtomicBool::new(false));
    let sending = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Relaxed) {
                post.qp.post_send(op::send_inline(b"to all").to(&address, MULTICAST_QPN, QKEY)).unwrap();
                assert_eq!(post.sent().1, Ok(()));
                thread::sleep(Duration::from_millis(5));
            }
        }
    });
    for member in &mut members {
        assert_eq!(member.hear(), "heard");
    }
    // One member leaves and another dies: the sender gets no error.
    let [mut leaves, dies] = members;
    leaves.tell("leave");
    assert_eq!(leaves.hear(), "left");
    drop(dies);
    thread::sleep(Duration::from_millis(20));
    stop.store(true, Ordering::Relaxed);
    sending.join().unwrap();
}
