//! Senders and receivers that are hostile, or of another version.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Child;
use std::thread;

use rdma::aio::block_on;
use rdma_examples::file_copy::node_options;
use rdma_examples::message::{decode, encode};
use rdma_net::{Connection, ListenOptions, Listener, Node};

use super::{GREETING, UNFINISHED, World, same};
use crate::common::*;

/// A message: its number, and its fields.
fn order(number: u8, fields: &impl serde::Serialize) -> Vec<u8> {
    [vec![number], encode(fields).unwrap()].concat()
}

fn directory(path: &[u8]) -> Vec<u8> {
    order(0, &(0o755u32, path))
}

/// Attributes: mode, user, group, and a time.
fn attributes(nanoseconds: u32) -> (u32, u32, u32, i64, u32) {
    (0o777, 0, 0, 1, nanoseconds)
}

fn file(path: &[u8]) -> Vec<u8> {
    order(1, &(attributes(0), 4u64, path))
}

fn start(offset: u64) -> Vec<u8> {
    order(2, &offset)
}

fn end(checksum: u64) -> Vec<u8> {
    order(3, &checksum)
}

fn finish_directory(path: &[u8]) -> Vec<u8> {
    order(4, &(attributes(0), path))
}

fn hole(len: u64) -> Vec<u8> {
    order(7, &len)
}

fn link(path: &[u8], to: &[u8]) -> Vec<u8> {
    order(8, &(attributes(0), path, to))
}

fn hard_link(path: &[u8], of: &[u8]) -> Vec<u8> {
    order(9, &(path, of))
}

fn node() -> Node {
    let context = rdma::open(&"soft0".parse().unwrap()).unwrap().context;
    let (node, driver) = Node::new(&context, &node_options(2)).unwrap();
    thread::spawn(move || driver.run_blocking());
    node
}

/// Sends messages to a receiver, and returns the reason for which it fails.
fn reason_against(node: &Node, world: &World, messages: &[Vec<u8>]) -> String {
    block_on(async {
        let mut connection = node.connect(world.receiver.address).await.unwrap();
        for message in messages {
            // The receiver may have closed meanwhile.
            drop(connection.send(message).await);
        }
        loop {
            match connection.next().await {
                Ok(Some(message)) => {
                    if let Some((2u8, reason)) = decode::<(u8, String)>(&message) {
                        break reason;
                    }
                }
                ended => panic!("no reason for {messages:?}: {ended:?}"),
            }
        }
    })
}

#[test]
fn hostile_senders_reach_nothing_and_harm_nobody() {
    let world = World::new();
    let outside = world.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "precious").unwrap();
    fs::set_permissions(&outside, PermissionsExt::from_mode(0o711)).unwrap();
    let before = fs::metadata(&outside).unwrap();
    symlink("../outside", world.to("link")).unwrap();
    let unfinished = |path: &str| format!("{UNFINISHED}{path}").into_bytes();
    // A link of the sender's own, to a folder outside.
    let leads_out = || link(b"sent", outside.to_str().unwrap().as_bytes());
    let hostile: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("malformed", vec![vec![]]),
        ("cannot write", vec![file(b"../outside/file")]),
        ("cannot write", vec![file(b"/tmp/file")]),
        ("cannot write", vec![file(b"link/file")]),
        ("cannot write", vec![directory(b"../outside/directory")]),
        ("cannot write", vec![directory(&unfinished(""))]),
        ("cannot write", vec![file(&unfinished(""))]),
        ("cannot write", vec![file(&unfinished("/good"))]),
        ("malformed", vec![file(b"more"), start(0), b"\xffmore than four".to_vec()]),
        ("malformed", vec![file(b"early"), b"\xffdata".to_vec()]),
        ("checksum", vec![file(b"wrong"), start(0), b"\xffdata".to_vec(), end(1)]),
        ("offered more than 3", (0..100).map(|name| file(&[b'a' + name % 26, b'0' + name % 10])).collect()),
        ("malformed", vec![file(b"hole"), hole(4)]),
        ("malformed", vec![file(b"hole"), start(0), hole(5)]),
        ("malformed", vec![file(b"hole"), start(0), hole(u64::MAX)]),
        ("cannot write", vec![order(1, &(attributes(0), u64::MAX, &b"endless"[..])), start(0), hole(u64::MAX)]),
        ("malformed", vec![order(1, &(attributes(1_000_000_000), 4u64, &b"time"[..]))]),
        ("malformed", vec![order(8, &(attributes(u32::MAX), &b"time"[..], &b"to"[..]))]),
        ("cannot write", vec![leads_out(), file(b"sent/file")]),
        ("cannot write", vec![leads_out(), file(b"sent/precious")]),
        ("cannot write", vec![leads_out(), directory(b"sent/directory")]),
        ("cannot write", vec![leads_out(), directory(b"sent")]),
        ("cannot write", vec![leads_out(), finish_directory(b"sent")]),
        ("cannot write", vec![leads_out(), link(b"sent/link", b"anywhere")]),
        ("cannot write", vec![leads_out(), hard_link(b"sent/name", b"other")]),
        ("cannot write", vec![leads_out(), hard_link(b"name", b"sent/precious")]),
        ("cannot write", vec![hard_link(b"name", b"../outside/precious")]),
        ("cannot write", vec![hard_link(b"../outside/name", b"other")]),
        ("cannot write", vec![hard_link(b"name", b"missing")]),
        ("cannot write", vec![link(b"../outside/link", b"anywhere")]),
        ("cannot write", vec![link(&unfinished(""), b"anywhere")]),
        ("cannot write", vec![link(&unfinished("/good"), b"anywhere")]),
        ("cannot write", vec![link(b"zero", b"a\0b")]),
        ("cannot write", vec![link(b"long", &[b'x'; 5000])]),
        ("malformed", vec![link(b"empty", b"")]),
    ];
    let node = node();
    fs::write(world.to("other"), "other").unwrap();
    for (expected, messages) in hostile {
        let reason = reason_against(&node, &world, &[vec![GREETING.to_vec()], messages.clone()].concat());
        assert!(reason.contains(expected), "{messages:?}: {reason}");
    }
    let after = fs::metadata(&outside).unwrap();
    assert_eq!(after.permissions(), before.permissions());
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
    assert_eq!(fs::read(outside.join("precious")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    fs::write(world.from("good"), "good").unwrap();
    world.copy(&world.from("good"));
    assert!(same(&world.from("good"), &world.to("good")));
}

#[test]
fn a_file_replaces_a_link_that_the_sender_has_sent_and_is_not_written_through_it() {
    let world = World::new();
    let precious = world.folder.path().join("precious");
    fs::write(&precious, "four").unwrap();
    let to = precious.to_str().unwrap().as_bytes();
    let messages = [GREETING.to_vec(), link(b"name", to), file(b"name"), start(4)];
    // The file that the link leads to has the right length, and is not taken for the one that is
    // there.
    let reason = reason_against(&node(), &world, &messages);
    assert!(reason.contains("malformed"), "{reason}");
    let messages = [GREETING.to_vec(), link(b"name", to), file(b"name"), start(0), hole(4), end(0)];
    let reason = reason_against(&node(), &world, &messages);
    assert!(reason.contains("checksum"), "{reason}");
    fs::write(world.from("name"), "new!").unwrap();
    world.copy(&world.from("name"));
    assert!(same(&world.from("name"), &world.to("name")) && !world.to("name").is_symlink());
    assert_eq!(fs::read(&precious).unwrap(), b"four");
}

#[test]
fn a_sender_of_another_version_is_told_both() {
    let world = World::new();
    let node = node();
    let mine = "this receiver's has version 2";
    for (first, theirs) in
        [(file(b"file"), "has version 1"), (b"\xfefile_copy \x07\0\0\0more".to_vec(), "has version 7")]
    {
        let reason = reason_against(&node, &world, &[first, directory(b"directory")]);
        assert!(reason.contains(mine) && reason.contains(theirs), "{reason}");
    }
    assert_eq!(fs::read_dir(world.to("")).unwrap().count(), 0);
}

/// A receiver in this process, its connection, and the process of the sender of a file.
fn sender_to_us(path: &Path) -> (Listener, Connection, Child) {
    let mut listener = node().listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
    let port = format!("--port={}", listener.local_addr().port());
    let sender = crate::common::start("file_copy", &["send", "127.0.0.1", &port, path.to_str().unwrap()]);
    let connection = block_on(async { listener.accept().await.unwrap().accept().await.unwrap() });
    (listener, connection, sender)
}

#[test]
fn a_receiver_of_another_version_is_named_with_ours() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "contents").unwrap();
    // A later version, which goes on or gives a reason, and the first, which knows no greeting.
    let failed = |reason: &str| encode(&(2u8, reason)).unwrap();
    for (answer, expected) in [
        (vec![3, 9], ["has version 2", "has version 9"]),
        (failed("the sender's message is malformed or out of turn"), ["has version 2", "may have 1"]),
    ] {
        let (_listener, mut connection, sender) = sender_to_us(&path);
        block_on(async {
            assert_eq!(&connection.next().await.unwrap().unwrap()[..], GREETING);
            connection.send(&answer).await.unwrap();
            while let Ok(Some(_)) = connection.next().await {}
        });
        drop(connection);
        let output = finish(sender);
        expected.iter().for_each(|part| has_failed("send", &output, part));
    }
}

#[test]
fn a_file_that_shrinks_ends_the_copy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big");
    // Longer than what is sent before the receiver reads it.
    fs::write(&path, vec![7; 16 << 20]).unwrap();
    let (_listener, mut connection, sender) = sender_to_us(&path);
    block_on(async {
        let mut has_shrunk = false;
        while let Ok(Some(message)) = connection.next().await {
            let answer = match message.first() {
                Some(0xfe) => vec![3, 2],
                // Nothing is there.
                Some(1) => order(0, &(0u64, 0u64)),
                Some(0xff) if !has_shrunk => {
                    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
                    has_shrunk = true;
                    continue;
                }
                _ => continue,
            };
            connection.send(&answer).await.unwrap();
        }
        assert!(has_shrunk);
    });
    drop(connection);
    has_failed("send", &finish(sender), "cannot read");
}
