//! `file_copy` on the software device: contents, interruptions and damage; what else a copy keeps
//! (`trees`), and peers that are hostile or of another version (`peers`).

mod peers;
mod trees;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdma::aio::block_on;
use rdma_examples::file_copy::{MAX_SENDERS, node_options};
use rdma_net::{Node, NodeOptions};
use tempfile::TempDir;

use crate::common::*;

/// Length of the file whose copy is interrupted.
const BIG: u64 = 96 << 20;
/// Bytes of a file in one message.
const CHUNK: u64 = 256 << 10;
/// The first message of a sender: a word, and the version of the wire format.
const GREETING: &[u8] = b"\xfefile_copy \x02\0\0\0";
/// The folder of the receiver's unfinished files.
const UNFINISHED: &str = ".file_copy-unfinished";

/// A directory to copy from, another one to copy to, and a receiver.
struct World {
    folder: TempDir,
    receiver: Server,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("to")).unwrap();
        fs::create_dir(folder.path().join("from")).unwrap();
        let receiver = Self::receiver(&folder);
        Self { folder, receiver }
    }

    fn receiver(folder: &TempDir) -> Server {
        Server::start("file_copy", &["serve", "127.0.0.1", folder.path().join("to").to_str().unwrap()])
    }

    fn from(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join("from").join(path)
    }

    fn to(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join("to").join(path)
    }

    /// Makes a long file whose blocks differ, without holes.
    fn big(&self) -> PathBuf {
        let path = self.from("big");
        let mut file = File::create(&path).unwrap();
        let len = usize::try_from(BIG / 64).unwrap();
        for block in 0..64 {
            file.write_all(&vec![block; len]).unwrap();
        }
        file.write_all(&[1; 77]).unwrap();
        path
    }

    /// Copies what must succeed; returns the summary.
    fn copy(&self, path: &Path) -> serde_json::Value {
        let output = self.receiver.client("file_copy", "send", &[path.to_str().unwrap(), "--json"]);
        serde_json::from_str(&rdma_test_support::program::has_succeeded("send", &output)).unwrap()
    }

    /// The unfinished files of the receiver.
    fn partials(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.to(UNFINISHED)).ok();
        entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }

    /// Begins a copy and waits until the receiver has some of it.
    fn begin(&self, path: &Path) -> std::process::Child {
        let child = self.receiver.spawn("file_copy", "send", &[path.to_str().unwrap()]);
        let start = Instant::now();
        let has_begun = || self.partials().first().is_some_and(|path| path.metadata().is_ok_and(|it| it.len() > CHUNK));
        while !has_begun() && !self.to("big").exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "the copy has not begun");
        }
        child
    }
}

fn kept(summary: &serde_json::Value) -> u64 {
    summary["kept"].as_u64().unwrap()
}

fn same(one: &Path, other: &Path) -> bool {
    fs::read(one).unwrap() == fs::read(other).unwrap()
}

#[test]
fn a_tree_with_odd_names_arrives_whole_and_only_once() {
    let world = World::new();
    let long = "n".repeat(255);
    let odd = OsStr::from_bytes(b"not \xff utf-8\n");
    for directory in ["tree/a/b", "tree/empty"] {
        fs::create_dir_all(world.from(directory)).unwrap();
    }
    let names = [Path::new("a/file"), Path::new("a/b/..."), Path::new(&long), Path::new(odd), Path::new("-rf *")];
    let tree = world.from("tree");
    for (len, name) in [0usize, 1, 4096, 262_144, 600_000].into_iter().zip(names) {
        fs::write(tree.join(name), vec![len.to_le_bytes()[0] | 1; len]).unwrap();
    }
    for number in 0..40 {
        fs::write(tree.join(format!("small {number}")), number.to_string()).unwrap();
    }
    fs::set_permissions(tree.join("a/file"), PermissionsExt::from_mode(0o750)).unwrap();
    symlink("/etc/passwd", tree.join("link")).unwrap();
    symlink("/etc/passwd", tree.join(OsStr::from_bytes(b"link \xff"))).unwrap();
    let summary = world.copy(&tree);
    assert_eq!((&summary["files"], &summary["directories"]), (&45.into(), &4.into()));
    assert_eq!((kept(&summary), summary["skipped"].as_array().unwrap().len()), (0, 0));
    assert_eq!(summary["links"], 2);
    for name in names {
        assert!(same(&tree.join(name), &world.to("tree").join(name)), "{}", name.display());
    }
    assert!(world.to("tree/empty").is_dir());
    for name in [&b"link"[..], b"link \xff"] {
        let link = world.to("tree").join(OsStr::from_bytes(name));
        assert_eq!(fs::read_link(link).unwrap(), Path::new("/etc/passwd"), "a link stays one");
    }
    assert_eq!(fs::metadata(world.to("tree/a/file")).unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(kept(&world.copy(&tree)), summary["bytes"].as_u64().unwrap(), "nothing is sent again");
}

#[test]
fn silent_senders_shut_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("file"), folder.path().join("to"));
    fs::create_dir(&to).unwrap();
    fs::write(&from, "contents").unwrap();
    let receiver = Server::start("file_copy", &["serve", "127.0.0.1", to.to_str().unwrap(), "--idle=1"]);
    let options = NodeOptions::new().window(1).payload(240).max_connections(40);
    let (node, driver) = Node::new(&rdma::open(&"soft0".parse().unwrap()).unwrap().context, &options).unwrap();
    std::thread::spawn(move || driver.run_blocking());
    let silent: Vec<_> = (0..32).map(|_| block_on(node.connect(receiver.address))).collect();
    let start = Instant::now();
    loop {
        let output = receiver.client("file_copy", "send", &[from.to_str().unwrap()]);
        if output.status.success() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{}", text(&output.stderr));
    }
    drop(silent);
    assert!(same(&from, &to.join("file")));
}

#[test]
fn connections_are_set_up_by_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("file"), folder.path().join("to"));
    fs::create_dir(&to).unwrap();
    fs::write(&from, vec![7; 300_000]).unwrap();
    let receiver = Server::start("file_copy", &["serve", "127.0.0.1", to.to_str().unwrap(), "--exchange=tcp"]);
    let output = receiver.client("file_copy", "send", &[from.to_str().unwrap(), "--exchange=tcp"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(same(&from, &to.join("file")));
}

#[test]
fn a_copy_goes_on_after_its_sender_was_killed() {
    let world = World::new();
    let big = world.big();
    let mut sender = world.begin(&big);
    sender.kill().unwrap();
    sender.wait().unwrap();
    // The receiver may hold the file until it has noticed.
    let start = Instant::now();
    let summary = loop {
        let output = world.receiver.client("file_copy", "send", &[big.to_str().unwrap(), "--json"]);
        if output.status.success() {
            break serde_json::from_slice(&output.stdout).unwrap();
        }
        assert!(text(&output.stderr).contains("another copy") && start.elapsed() < Duration::from_secs(60));
    };
    assert!(kept(&summary) >= CHUNK, "{summary}");
    assert!(same(&big, &world.to("big")) && world.partials().is_empty());
}

#[test]
fn a_copy_goes_on_after_its_receiver_was_killed() {
    let mut world = World::new();
    let big = world.big();
    let sender = world.begin(&big);
    world.receiver.kill();
    let output = finish(sender);
    if !output.status.success() {
        let err = text(&output.stderr);
        assert!(err.contains("the peer is gone") && err.contains("; run it again to go on"), "{err}");
    }
    world.receiver = World::receiver(&world.folder);
    assert!(kept(&world.copy(&big)) >= CHUNK);
    assert!(same(&big, &world.to("big")));
}

#[test]
fn what_differs_is_sent_again() {
    let world = World::new();
    let file = world.from("file");
    fs::write(&file, vec![7; 3 << 20]).unwrap();
    world.copy(&file);
    // The unfinished file of an earlier copy, with a damaged byte in its front part.
    let partial = world.to(UNFINISHED).join("file");
    let mut front = vec![7; 2 << 20];
    front[1000] = 8;
    fs::remove_file(world.to("file")).unwrap();
    fs::create_dir(world.to(UNFINISHED)).unwrap();
    fs::write(&partial, &front).unwrap();
    assert_eq!(kept(&world.copy(&file)), 0);
    assert!(same(&file, &world.to("file")) && world.partials().is_empty());
    // A file of the same length with other contents.
    fs::write(world.to("file"), vec![9; 3 << 20]).unwrap();
    assert_eq!(kept(&world.copy(&file)), 0);
    assert!(same(&file, &world.to("file")));
    // An undamaged front part that ends within a chunk.
    fs::remove_file(world.to("file")).unwrap();
    fs::create_dir(world.to(UNFINISHED)).unwrap();
    fs::write(&partial, vec![7; (1 << 20) + 5]).unwrap();
    assert_eq!(kept(&world.copy(&file)), 1 << 20);
    assert!(same(&file, &world.to("file")));
}

#[test]
fn a_files_name_is_never_that_of_another_unfinished_file() {
    let world = World::new();
    let tree = world.from("tree");
    fs::create_dir_all(tree.join(UNFINISHED)).unwrap();
    fs::write(tree.join("data.bin"), "all of the data").unwrap();
    // The names that an unfinished `data.bin` may have.
    let hashed = format!(".{:016x}.part", xxhash_rust::xxh64::xxh64(b"data.bin", 0));
    fs::write(tree.join(&hashed), "a part of it").unwrap();
    fs::write(tree.join(UNFINISHED).join("data.bin"), "a front part").unwrap();
    let output = world.receiver.client("file_copy", "send", &[tree.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(23), "{}", text(&output.stderr));
    let said = format!("{UNFINISHED} was not copied: its name is kept for folders of unfinished files");
    assert!(text(&output.stderr).contains(&said), "{}", text(&output.stderr));
    for name in ["data.bin", &hashed] {
        assert!(same(&tree.join(name), &world.to("tree").join(name)), "{name}");
    }
    assert!(!world.to("tree").join(UNFINISHED).exists());
}

#[test]
fn a_folder_that_others_may_write_is_not_used() {
    let world = World::new();
    let (file, folder) = (world.from("file"), world.to(UNFINISHED));
    fs::write(&file, "secret").unwrap();
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    let prepared = folder.join("file");
    fs::write(&prepared, "prepared").unwrap();
    let output = world.receiver.client("file_copy", "send", &[file.to_str().unwrap()]);
    has_failed("send", &output, "can be written by others; remove it");
    assert_eq!(fs::read(&prepared).unwrap(), b"prepared");
    // In a folder of the receiver's own, a file with another name is not written.
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
    fs::rename(&prepared, world.to("other")).unwrap();
    fs::hard_link(world.to("other"), &prepared).unwrap();
    world.copy(&file);
    assert_eq!(fs::read(world.to("other")).unwrap(), b"prepared");
    assert!(same(&file, &world.to("file")));
}

#[test]
fn paths_with_one_last_name_are_not_sent() {
    let world = World::new();
    let paths = ["a/x", "m", "b/x"].map(|path| world.from(path));
    for path in &paths {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, path.as_os_str().as_bytes()).unwrap();
    }
    let names = paths.each_ref().map(|path| path.to_str().unwrap());
    let output = world.receiver.client("file_copy", "send", &names);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let both = format!("{} and {} have the same last name", names[0], names[2]);
    assert!(text(&output.stderr).contains(&both), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(world.to("")).unwrap().count(), 0);
}

#[test]
fn permissions_arrive_also_alone() {
    let world = World::new();
    let tree = world.from("tree");
    let modes = [("inner/file", 0o4640), ("inner", 0o3555), ("", 0o700)];
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let set = |path: &str, mode| fs::set_permissions(tree.join(path), PermissionsExt::from_mode(mode)).unwrap();
    fs::create_dir_all(tree.join("inner")).unwrap();
    fs::write(tree.join("inner/file"), "contents").unwrap();
    modes.iter().for_each(|&(path, mode)| set(path, mode));
    for _again in 0..2 {
        world.copy(&tree);
        for (path, expected) in modes {
            assert_eq!(mode(world.to("tree").join(path)), expected & 0o777, "{path}");
        }
    }
    set("inner/file", 0o604);
    set("", 0o751);
    assert_eq!(kept(&world.copy(&tree)), 8, "nothing is sent again");
    assert_eq!(mode(world.to("tree/inner/file")), 0o604);
    assert_eq!(mode(world.to("tree")), 0o751);
    // Lets the folder be removed by its owner.
    set("inner", 0o755);
    world.copy(&tree);
}

#[test]
fn what_cannot_be_copied_is_said_with_escapes_and_alone_is_a_failure() {
    let world = World::new();
    let fifo = world.from("fifo \u{1b}[2J\nfile_copy: all is well");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(world.from("file"), "contents").unwrap();
    let said = "fifo \\u{1b}[2J\\nfile_copy: all is well was not copied: it is neither a file nor a directory";
    let output = world.receiver.client("file_copy", "send", &[fifo.to_str().unwrap()]);
    has_failed("send", &output, "nothing can be copied");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    let output = world.receiver.client("file_copy", "send", &[world.from("").to_str().unwrap()]);
    let (status, err) = (output.status.code(), text(&output.stderr));
    assert!(status == Some(23) && err.contains(said), "{status:?} {err}");
    assert!(err.ends_with("file_copy: 1 of 3 entries were not copied\n"), "{err}");
    assert!(same(&world.from("file"), &world.to("from/file")));
}

#[test]
fn a_path_that_does_not_exist_is_left_out_beside_others() {
    let world = World::new();
    let (file, missing) = (world.from("file"), world.from("missing"));
    fs::write(&file, "contents").unwrap();
    let paths = [&missing, &file].map(|path| path.to_str().unwrap());
    let output = world.receiver.client("file_copy", "send", &paths);
    let (status, err) = (output.status.code(), text(&output.stderr));
    assert_eq!(status, Some(23), "{err}");
    assert!(err.contains("missing was not copied: it cannot be read: No such file"), "{err}");
    assert!(err.ends_with("file_copy: 1 of 2 entries were not copied\n"), "{err}");
    assert!(same(&file, &world.to("file")));
}

#[test]
fn a_full_receiver_is_busy() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("file");
    fs::write(&from, "contents").unwrap();
    let mut serve = program("file_copy");
    let mut receiver = Server::of(serve.args(["serve", "127.0.0.1", folder.path().to_str().unwrap(), "--idle=3600"]));
    let options = node_options(40);
    let (node, driver) = Node::new(&rdma::open(&"soft0".parse().unwrap()).unwrap().context, &options).unwrap();
    std::thread::spawn(move || driver.run_blocking());
    let connect = |_| {
        block_on(async {
            let mut connection = node.connect(receiver.address).await.unwrap();
            // A sender that has greeted and has its answer has time.
            connection.send(GREETING).await.unwrap();
            assert!(connection.next().await.unwrap().is_some());
            connection
        })
    };
    let senders: Vec<_> = (0..MAX_SENDERS).map(connect).collect();
    let output = receiver.client("file_copy", "send", &[from.to_str().unwrap()]);
    has_failed("send", &output, "busy: 32 senders are served, the most at a time");
    drop(senders);
    let mut line = String::new();
    BufReader::new(receiver.child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("the sender was refused: busy: 32 senders are served"), "{line}");
}

#[test]
fn failures_have_a_reason() {
    let world = World::new();
    let send = |path: &str, part: &str| has_failed(path, &world.receiver.client("file_copy", "send", &[path]), part);
    send(
        "/nonexistent/file",
        "nothing can be copied: /nonexistent/file was not copied: it cannot be read: No such file",
    );
    let file = world.from("name");
    fs::write(&file, "contents").unwrap();
    fs::create_dir(world.to("name")).unwrap();
    send(file.to_str().unwrap(), "the receiver: cannot write name");
    let nowhere = ["serve", "127.0.0.1", "--port=0", "/nonexistent"];
    fail("file_copy", &nowhere, "cannot open the directory /nonexistent");
    assert_eq!(text(&run("file_copy", &nowhere).stdout), "", "it does not listen before");
}

#[test]
fn a_receiver_that_cannot_write_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("file"), folder.path().join("to"));
    fs::create_dir(&to).unwrap();
    // Longer than a file may be, and still being sent when the receiver has said why it fails.
    File::create(&from).unwrap().set_len(1 << 36).unwrap();
    let serve = program("file_copy");
    let limited = "trap '' XFSZ; ulimit -f 131072; exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", limited, "sh"]).arg(serve.get_program()).args(["serve", "127.0.0.1", to.to_str().unwrap()]);
    let mut receiver = Server::of(shell.env("RDMA_DEVICE", "soft0").stderr(Stdio::piped()));
    let output = receiver.client("file_copy", "send", &[from.to_str().unwrap()]);
    has_failed("send", &output, "the receiver: cannot write file: File too large");
    let mut line = String::new();
    BufReader::new(receiver.child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("cannot write file: File too large"), "{line}");
}
