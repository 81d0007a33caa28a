use std::os::unix::fs::symlink;
use std::thread;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::*;
use crate::ErrorKind;

const KEY: &str = "rdma-collectives/root";

fn exchange(job: &str) -> (TempDir, Directory) {
    let directory = tempfile::tempdir().unwrap();
    let exchange = Directory::new(directory.path(), job).unwrap();
    (directory, exchange)
}

fn names(directory: &TempDir) -> Vec<String> {
    let names = fs::read_dir(directory.path()).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_key_is_awaited_replaced_and_deleted() {
    let (directory, mut ours) = exchange("7.0");
    let mut theirs = ours.clone();
    let waiting = thread::spawn(move || theirs.get(KEY, Duration::MAX).unwrap());
    ours.set("other", b"other").unwrap();
    ours.set(KEY, b"first").unwrap();
    assert_eq!(waiting.join().unwrap(), b"first");
    ours.set(KEY, b"second").unwrap();
    assert_eq!(ours.get(KEY, Duration::ZERO).unwrap(), b"second");
    for key in [KEY, KEY, "other"] {
        ours.delete(key).unwrap();
    }
    assert_eq!(names(&directory), [""; 0]);
    let error = ours.get(KEY, Duration::ZERO).unwrap_err().to_string();
    assert!(error.ends_with("rdma-collectives/root is not set"), "{error}");
}

#[test]
fn a_key_is_one_file_of_its_owner() {
    let (directory, mut exchange) = exchange("7/../0\n");
    exchange.set(KEY, b"value").unwrap();
    let expected = "rdma-7%2F%2E%2E%2F0%0A@rdma-collectives%2Froot";
    assert_eq!(names(&directory), [expected]);
    assert_eq!(fs::metadata(directory.path().join(expected)).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn jobs_with_other_names_have_other_keys() {
    let (directory, mut exchange) = exchange("a");
    exchange.set("b@c", b"value").unwrap();
    for (job, key) in [("b", "b@c"), ("a@b", "c"), ("a", "b")] {
        let mut other = Directory::new(directory.path(), job).unwrap();
        other.get(key, Duration::ZERO).unwrap_err();
        other.delete(key).unwrap();
    }
    assert_eq!(exchange.get("b@c", Duration::ZERO).unwrap(), b"value");
}

#[test]
fn names_that_make_no_file_are_refused() {
    for job in ["", &"x".repeat(200), &"\n".repeat(60)] {
        assert_eq!(Directory::new("/tmp", job).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    Directory::new("/tmp", &"x".repeat(90)).unwrap();
}

/// What another program has put in the place of a file neither blocks this one nor fills its
/// memory.
#[test]
fn what_is_no_file_of_an_exchange_is_refused() {
    let (directory, mut exchange) = exchange("7");
    let path = directory.path().join(exchange.file(KEY).unwrap());
    let mut get = || {
        let error = exchange.get(KEY, Duration::MAX).unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
        error
    };

    mkfifo(&path, Mode::S_IRWXU).unwrap();
    assert!(get().contains("it is not a file"));
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert!(get().contains("it is not a file"));
    fs::remove_dir(&path).unwrap();

    let elsewhere = directory.path().join("elsewhere");
    fs::write(&elsewhere, b"value").unwrap();
    symlink(&elsewhere, &path).unwrap();
    get();
    fs::remove_file(&path).unwrap();

    // A file of a terabyte, whose blocks do not exist.
    File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(get().contains("more than 8192 bytes"));
}

#[test]
fn a_directory_that_does_not_exist_is_named_at_once() {
    let (directory, mut exchange) = exchange("7");
    drop(directory);
    for error in [exchange.set(KEY, b"value").unwrap_err(), exchange.get(KEY, Duration::MAX).unwrap_err()] {
        assert!(error.to_string().contains("/rdma-7@rdma-collectives%2Froot: No such file"), "{error}");
    }
}

#[test]
fn a_value_that_cannot_be_set_leaves_no_file() {
    let (directory, mut exchange) = exchange("7");
    fs::create_dir(directory.path().join(exchange.file(KEY).unwrap())).unwrap();
    exchange.set(KEY, b"value").unwrap_err();
    assert_eq!(names(&directory), [exchange.file(KEY).unwrap()]);
}

#[test]
fn files_of_other_users_are_not_trusted() {
    let (user, other, root) = (1000, 1001, 0);
    assert!(is_trusted(user, root, user));
    // All users are one at the server.
    assert!(is_trusted(65534, 65534, user));
    assert!(!is_trusted(other, root, user));
    assert!(!is_trusted(user, root, root));
}
