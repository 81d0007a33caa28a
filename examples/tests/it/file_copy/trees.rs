//! What a copy keeps of a tree besides the bytes of its files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::stat::{Mode, UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use rdma_test_support::trees::differences;

use super::{CHUNK, UNFINISHED, World, kept};
use crate::common::*;

/// The number of small files in the large tree, unless this variable gives another.
const FILES: &str = "RDMA_TEST_FILES";

fn set_time(path: &Path, seconds: i64) {
    let time = TimeSpec::new(seconds, 123_456_789);
    utimensat(nix::fcntl::AT_FDCWD, path, &time, &time, UtimensatFlags::NoFollowSymlink).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Makes a tree of all that a copy keeps, with a file of 100 GiB that has a few bytes.
fn make_tree(tree: &Path) {
    let files: u32 = std::env::var(FILES).map_or(1000, |files| files.parse().unwrap());
    for number in 0..files {
        let folder = tree.join(format!("many/{}", number / 1000));
        if number % 1000 == 0 {
            fs::create_dir_all(&folder).unwrap();
        }
        let mut name = format!("{number} ").into_bytes();
        name.push(0x80 | u8::try_from(number % 128).unwrap());
        let path = folder.join(OsStr::from_bytes(&name));
        fs::write(&path, number.to_string()).unwrap();
        set_time(&path, number.into());
    }
    for folder in ["private", "closed/inner", "sparse"] {
        fs::create_dir_all(tree.join(folder)).unwrap();
    }
    fs::write(tree.join("private/file"), "contents").unwrap();
    fs::write(tree.join("closed/inner/file"), "contents").unwrap();
    // Names of one inode in several folders, and a file that only looks like one.
    for name in ["again", "closed/again", "closed/inner/again"] {
        fs::hard_link(tree.join("private/file"), tree.join(name)).unwrap();
    }
    for name in ["empty", "executable"] {
        fs::write(tree.join(name), "").unwrap();
    }
    for (name, to) in [
        (&b"link"[..], &b"private/file"[..]),
        (b"dangling", b"nowhere/at all"),
        (b"absolute", b"/etc"),
        (b"upwards", b"../../.."),
        (b"odd \xff", b"to \xfe\n"),
        (b"loop", b"loop"),
    ] {
        symlink(OsStr::from_bytes(to), tree.join(OsStr::from_bytes(name))).unwrap();
        set_time(&tree.join(OsStr::from_bytes(name)), 77);
    }
    // A link has other names, too.
    nix::unistd::linkat(
        nix::fcntl::AT_FDCWD,
        &tree.join("link"),
        nix::fcntl::AT_FDCWD,
        &tree.join("sparse/link"),
        nix::fcntl::AtFlags::empty(),
    )
    .unwrap();
    let huge = File::create(tree.join("sparse/huge")).unwrap();
    huge.set_len(100 << 30).unwrap();
    huge.write_all_at(b"start", 0).unwrap();
    huge.write_all_at(&[1; 300_000], (50 << 30) + 12_345).unwrap();
    let only_holes = File::create(tree.join("sparse/holes")).unwrap();
    only_holes.set_len((1 << 30) + 1).unwrap();
    let ends_in_data = File::create(tree.join("sparse/ends")).unwrap();
    ends_in_data.write_all_at(b"end", 1 << 32).unwrap();
    let combed = File::create(tree.join("sparse/comb")).unwrap();
    for tooth in 0..50 {
        combed.write_all_at(b"tooth", tooth * 100_000).unwrap();
    }
    // Zeros that were written are no hole.
    fs::write(tree.join("sparse/zeros"), vec![0; 1_000_000]).unwrap();
    fs::write(tree.join("sparse/long"), vec![1; 800_000]).unwrap();
    for (path, mode) in [
        ("executable", 0o751),
        ("empty", 0o400),
        ("private/file", 0o600),
        ("sparse/huge", 0o644),
        ("private", 0o700),
        ("closed/inner", 0o555),
        ("closed", 0o500),
        ("sparse", 0o775),
        ("", 0o711),
    ] {
        set_mode(&tree.join(path), mode);
        set_time(&tree.join(path), -i64::from(mode));
    }
}

/// Lets a tree be removed by its owner.
fn open_again(tree: &Path) {
    for path in ["", "closed", "closed/inner"] {
        set_mode(&tree.join(path), 0o755);
    }
}

fn assert_same(world: &World, name: &str) {
    let found = differences(&world.from(name), &world.to(name)).unwrap();
    assert!(found.is_empty(), "{} differences: {:#?}", found.len(), &found[..found.len().min(20)]);
}

#[test]
fn a_tree_arrives_with_modes_times_links_and_holes() {
    let world = World::new();
    let tree = world.from("tree");
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    let summary = world.copy(&tree);
    assert_same(&world, "tree");
    assert_eq!((&summary["hard_links"], &summary["links"]), (&4.into(), &6.into()));
    assert!(summary["bytes"].as_u64().unwrap() > 100 << 30 && summary["sent"].as_u64().unwrap() < 8 << 20, "{summary}");
    // Run again, it sends nothing and changes nothing.
    let again = world.copy(&tree);
    assert_eq!((&again["sent"], kept(&again)), (&0.into(), summary["bytes"].as_u64().unwrap()));
    assert_same(&world, "tree");
    // It repairs what it does not have to send.
    let copy = world.to("tree");
    for name in ["executable", "link", "private", "sparse/huge"] {
        set_time(&copy.join(name), 5);
    }
    set_mode(&copy.join("closed"), 0o755);
    set_mode(&copy.join("executable"), 0o600);
    fs::remove_file(copy.join("again")).unwrap();
    fs::write(copy.join("again"), "contents").unwrap();
    fs::remove_file(copy.join("dangling")).unwrap();
    fs::write(copy.join("dangling"), "a file").unwrap();
    assert_eq!(world.copy(&tree)["sent"], 0);
    assert_same(&world, "tree");
    // The time of a file with several names is never changed in place, since some may be other
    // people's: the file is sent again.
    set_time(&copy.join("closed/again"), 5);
    assert_eq!(world.copy(&tree)["sent"], 8);
    assert_same(&world, "tree");
    [tree, copy].iter().for_each(|tree| open_again(tree));
}

#[test]
fn an_interrupted_copy_of_a_tree_goes_on_and_keeps_times() {
    let mut world = World::new();
    let tree = world.from("tree");
    fs::create_dir(&tree).unwrap();
    fs::rename(world.big(), tree.join("big")).unwrap();
    fs::write(tree.join("after"), "contents").unwrap();
    fs::hard_link(tree.join("big"), tree.join("link")).unwrap();
    let sparse = File::options().append(true).open(tree.join("big")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    set_time(&tree.join("big"), 1);
    set_time(&tree, 2);
    let sender = world.receiver.spawn("file_copy", "send", &[tree.to_str().unwrap()]);
    let partial = world.to("tree").join(UNFINISHED).join("big");
    let start = std::time::Instant::now();
    while !partial.metadata().is_ok_and(|it| it.len() > CHUNK) && !world.to("tree/big").exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "the copy has not begun");
    }
    world.receiver.kill();
    drop(finish(sender));
    world.receiver = World::receiver(&world.folder);
    assert!(kept(&world.copy(&tree)) >= CHUNK);
    assert_same(&world, "tree");
}

#[test]
fn owners_are_kept_by_root() {
    let world = World::new();
    if !nix::unistd::geteuid().is_root() {
        rdma_test_support::skip("only root gives files away");
        return;
    }
    let tree = world.from("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "contents").unwrap();
    symlink("file", tree.join("link")).unwrap();
    chown(tree.join("file"), Some(12345), Some(54321)).unwrap();
    lchown(tree.join("link"), Some(12346), None).unwrap();
    chown(&tree, None, Some(12347)).unwrap();
    // It stays so when the copy finds what it has made.
    for _again in 0..2 {
        world.copy(&tree);
        assert_same(&world, "tree");
    }
}

#[test]
fn a_receiver_that_is_not_root_says_that_it_keeps_no_owners() {
    let world = World::new();
    if !nix::unistd::geteuid().is_root() {
        rdma_test_support::skip("only root gives files away");
        return;
    }
    // The software device connects processes of one user only: root without its capabilities keeps
    // the user and may give nothing away.
    let (tree, to) = (world.from("tree"), world.folder.path().join("other"));
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&to).unwrap();
    for name in ["a", "b"] {
        fs::write(tree.join(name), "contents").unwrap();
        chown(tree.join(name), Some(12345), None).unwrap();
    }
    let receiver = program("file_copy");
    let mut limited = Command::new("setpriv");
    limited.args(["--bounding-set=-chown", "--inh-caps=-chown"]).arg(receiver.get_program());
    limited.args(["serve", "127.0.0.1", to.to_str().unwrap()]).env("RDMA_DEVICE", "soft0");
    let has_setpriv = Command::new("setpriv").arg("--version").output().is_ok();
    if !has_setpriv {
        rdma_test_support::lacks("there is no setpriv");
        return;
    }
    let receiver = Server::of(&mut limited);
    let output = receiver.client("file_copy", "send", &[tree.to_str().unwrap()]);
    let err = text(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert!(err.contains("owner or group of 2 entries was not kept"), "{err}");
    assert_eq!(fs::metadata(to.join("tree/a")).unwrap().uid(), 0);
}

/// A command for a `file_copy` whose user permissions bind, also if it is root's; `None` if there
/// is no program to take root's rights away.
fn bound_by_permissions() -> Option<Command> {
    let program = program("file_copy");
    if !nix::unistd::geteuid().is_root() {
        return Some(program);
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        rdma_test_support::lacks("there is no setpriv");
        return None;
    }
    let mut command = Command::new("setpriv");
    let rights = "-dac_override,-dac_read_search";
    command.args([format!("--bounding-set={rights}"), format!("--inh-caps={rights}")]).arg(program.get_program());
    command.env("RDMA_DEVICE", "soft0").stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

#[test]
fn what_cannot_be_read_is_left_out_and_counted() {
    let world = World::new();
    let Some(mut sender) = bound_by_permissions() else { return };
    let tree = world.from("tree");
    fs::create_dir_all(tree.join("shut")).unwrap();
    for name in ["closed", "open", "shut/file"] {
        fs::write(tree.join(name), "contents").unwrap();
    }
    fs::hard_link(tree.join("closed"), tree.join("closed too")).unwrap();
    for name in ["closed", "shut"] {
        set_mode(&tree.join(name), 0);
    }
    let port = format!("--port={}", world.receiver.address.port());
    let child = sender.args(["send", "127.0.0.1", &port, "--json"]).arg(&tree).spawn().unwrap();
    let output = finish(child);
    for name in ["from/tree/shut", "to/tree/shut"] {
        set_mode(&world.folder.path().join(name), 0o755);
    }
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(23), "{err}");
    for line in [
        "closed was not copied: it cannot be read: Permission denied",
        "shut was not copied: it is a directory whose contents cannot be read: Permission denied",
        "closed too was not copied: it is another name of a file that was not",
        "file_copy: 3 of 6 entries were not copied",
    ] {
        assert!(err.contains(line), "{line:?} is not in {err}");
    }
    assert!(world.to("tree/open").exists() && !world.to("tree/closed").exists());
}

#[test]
fn a_directory_that_its_owner_may_not_read_is_copied_again() {
    let world = World::new();
    if !nix::unistd::geteuid().is_root() {
        rdma_test_support::skip("only root reads such a directory");
        return;
    }
    let Some(mut receiver) = bound_by_permissions() else { return };
    let (tree, to) = (world.from("tree"), world.folder.path().join("other"));
    for folder in [&tree, &to] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(tree.join("file"), "contents").unwrap();
    set_mode(&tree, 0o311);
    let receiver = Server::of(receiver.args(["serve", "127.0.0.1", to.to_str().unwrap()]));
    for _again in 0..2 {
        let output = receiver.client("file_copy", "send", &[tree.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(fs::metadata(to.join("tree")).unwrap().mode() & 0o7777, 0o311);
    }
}

#[test]
fn what_is_left_out_is_said_in_one_line_for_each_kind() {
    let world = World::new();
    let tree = world.from("tree");
    fs::create_dir(&tree).unwrap();
    for name in ["fifo 1", "fifo 2", "fifo 3"] {
        nix::unistd::mkfifo(&tree.join(name), Mode::S_IRWXU).unwrap();
    }
    let socket = UnixListener::bind(tree.join("socket")).unwrap();
    fs::write(tree.join("file"), "contents").unwrap();
    set_mode(&tree.join("file"), 0o4755);
    set_time(&tree, 3);
    let output = world.receiver.client("file_copy", "send", &[tree.to_str().unwrap()]);
    drop(socket);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(23), "{err}");
    assert!(out.starts_with("1 file, 0 further names, 0 symbolic links and 1 directory of 8 bytes"), "{out}");
    // On a loaded machine, the sender may also say that it waits for the receiver.
    let lines: Vec<_> = err.lines().filter(|line| !line.starts_with("waiting for ")).collect();
    let expected = [
        "fifo 1 and 2 more were not copied: they are neither files nor directories, but FIFOs",
        "socket was not copied: it is neither a file nor a directory, but a socket",
        "file_copy: set-user-ID, set-group-ID and sticky bits of 1 entry were not kept",
        "file_copy: 4 of 6 entries were not copied",
    ];
    assert!(lines.len() == 4 && lines.iter().zip(expected).all(|(line, end)| line.ends_with(end)), "{err}");
    assert_eq!(fs::metadata(world.to("tree/file")).unwrap().mode() & 0o7777, 0o755);
    let modified = fs::metadata(world.to("tree")).unwrap().modified().unwrap();
    assert_eq!(modified.duration_since(UNIX_EPOCH).unwrap().as_secs(), 3);
    // The object says it too.
    let output = world.receiver.client("file_copy", "send", &[tree.to_str().unwrap(), "--json"]);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(23));
    assert!(text(&output.stderr).contains("FIFOs"), "{}", text(&output.stderr));
    let first = &summary["skipped"][0];
    assert!(first["path"].as_str().unwrap().ends_with("fifo 1"), "{first}");
    assert_eq!(first["why"], "it is neither a file nor a directory, but a FIFO");
    assert_eq!((summary["skipped"].as_array().unwrap().len(), &summary["not_kept"]["special_bits"]), (4, &1.into()));
}
