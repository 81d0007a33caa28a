//! Forked children, which inherit handles, and locks that nobody releases there.

use std::sync::Barrier;
use std::task::{Context, Poll, Waker};

use rdma_test_support::holds_in_child;

use super::*;

/// Runs `work` while another thread has the locks of a node and of a connection.
fn while_locked<R>(node: &Node, connection: &connection::Core, work: impl FnOnce() -> R) -> R {
    let (begun, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            node.tables().locked(|| {
                connection.locked(|| {
                    begun.wait();
                    end.wait();
                });
            });
        });
        begun.wait();
        let result = work();
        end.wait();
        result
    })
}

fn polled<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Whether a call fails at once because it is made in a child.
fn fails<T>(call: impl Future<Output = Result<T, Failure>>) -> bool {
    matches!(polled(std::pin::pin!(call)), Poll::Ready(Err(failure)) if failure.kind() == FailureKind::Local)
}

#[test]
fn a_forked_child_waits_for_no_lock_and_changes_nothing() {
    for options in by_each_exchange() {
        let mut world = World::new(&options);
        let (client, mut server) = world.pair();
        let at = world.listener.local_addr();
        block_on(client.send("held")).unwrap();
        let held = block_on(server.next()).unwrap().unwrap();
        let connecting = thread::spawn({
            let client = world.client.clone();
            move || block_on(client.connect(at))
        });
        let incoming = block_on(world.listener.accept()).unwrap();
        let (node, core) = (world.server.clone(), Arc::clone(server.core()));
        let sender = server.clone_sender();
        let permit = block_on(sender.reserve()).unwrap();
        let (_to, mut from) = client.split();
        let (idle, driver) = Node::new(&context(), &options).unwrap();
        {
            // The child drops what the parent keeps.
            let mut waiting = Some(Box::pin(from.next()));
            assert!(waiting.as_mut().is_some_and(|next| polled(next.as_mut()).is_pending()));
            let (mut world, mut server, mut held) = (Some(&mut world), Some(server), Some(held));
            let (mut incoming, mut permit, mut idle) = (Some(incoming), Some(permit), Some((idle, driver)));
            assert!(while_locked(&node, &core, || holds_in_child(|| {
                let (Some(World { listener, server: node, .. }), Some((_, driver))) = (&mut world, &mut idle) else {
                    return false;
                };
                let are_refused = waiting.as_mut().is_some_and(|next| fails(next.as_mut()))
                    && server.as_mut().is_some_and(|server| fails(server.send("x")) && fails(server.next()))
                    && fails(node.connect(at))
                    && node.listen(any_port(), &ListenOptions::new()).is_err()
                    && node.connections() == 0
                    && fails(listener.accept())
                    && driver.turn(0).is_err()
                    && driver.wait(None).is_err();
                drop((waiting.take(), held.take(), permit.take(), incoming.take(), idle.take()));
                drop(server.take());
                are_refused
            })));
            let (server, incoming) = (server.unwrap(), incoming.unwrap());
            assert_eq!(held.as_deref(), Some(&b"held"[..]));
            permit.unwrap().send(b"by the permit").unwrap();
            let message = block_on(waiting.unwrap()).unwrap().unwrap();
            assert_eq!(&message[..], b"by the permit");
            // The request was not refused.
            block_on(incoming.accept()).unwrap();
            drop((message, server));
        }
        drop((sender, from, _to, core, node, connecting.join().unwrap().unwrap()));
        world.end();
    }
}

#[test]
fn a_forked_child_makes_a_node_of_its_own() {
    rdma_test_support::passes_alone(&["tests::forks::parent_of_a_child_with_a_node"], &[]);
}

/// Runs in a process of its own: other tests may have locks of the standard library.
#[test]
#[ignore = "run by a_forked_child_makes_a_node_of_its_own"]
fn parent_of_a_child_with_a_node() {
    let _parents = World::new(&options());
    assert!(holds_in_child(|| {
        let mut world = World::new(&options().exchange(Exchange::Tcp));
        let (client, mut server) = world.pair();
        block_on(async {
            client.send("hello").await?;
            Ok::<_, Failure>(server.next().await?.is_some_and(|message| &message[..] == b"hello"))
        })
        .unwrap_or(false)
    }));
}
