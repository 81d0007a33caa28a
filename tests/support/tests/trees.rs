//! The comparison of trees finds each kind of difference.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rdma_test_support::trees::differences;

/// A new folder for this process.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("compare-trees-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Makes a tree; all its times are the same.
fn make(root: &Path) {
    fs::create_dir_all(root.join("folder")).unwrap();
    fs::write(root.join("file"), vec![7; 10_000]).unwrap();
    fs::hard_link(root.join("file"), root.join("again")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(b"x", 1 << 29).unwrap();
    fs::write(root.join("fifo"), "no FIFO").unwrap();
    for path in ["file", "sparse", "fifo", "folder", ""] {
        set_time(&root.join(path), 1);
    }
}

fn set_time(path: &Path, seconds: u64) {
    File::open(path).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

#[test]
fn each_kind_of_difference_is_found() {
    let folder = Folder::new();
    let (one, other) = (folder.0.join("one"), folder.0.join("other"));
    type Change = fn(&Path);
    let changes: [(&str, Change); 9] = [
        ("mode of \"folder\"", |root| fs::set_permissions(root.join("folder"), Permissions::from_mode(0o711)).unwrap()),
        ("time of \"folder\"", |root| set_time(&root.join("folder"), 2)),
        ("bytes of \"file\"", |root| {
            fs::OpenOptions::new().write(true).open(root.join("file")).unwrap().write_all_at(b"x", 9).unwrap();
        }),
        ("length of \"sparse\"", |root| {
            fs::OpenOptions::new().write(true).open(root.join("sparse")).unwrap().set_len(9).unwrap();
        }),
        ("extents of \"sparse\"", |root| {
            fs::OpenOptions::new().write(true).open(root.join("sparse")).unwrap().write_all_at(&[0], 9).unwrap();
        }),
        ("names of \"again\"", |root| {
            fs::remove_file(root.join("again")).unwrap();
            fs::write(root.join("again"), vec![7; 10_000]).unwrap();
        }),
        ("mode of \"fifo\"", |root| {
            fs::remove_file(root.join("fifo")).unwrap();
            symlink("file", root.join("fifo")).unwrap();
        }),
        ("missing: \"fifo\"", |root| fs::remove_file(root.join("fifo")).unwrap()),
        ("new: \"more\"", |root| fs::create_dir(root.join("more")).unwrap()),
    ];
    for (expected, change) in changes {
        make(&one);
        make(&other);
        assert_eq!(differences(&one, &other).unwrap(), [""; 0]);
        change(&other);
        let found = differences(&one, &other).unwrap();
        assert!(found.iter().any(|difference| difference.starts_with(expected)), "{expected}: {found:?}");
        for root in [&one, &other] {
            fs::remove_dir_all(root).unwrap();
        }
    }
    fs::create_dir(&one).unwrap();
    fs::create_dir(&other).unwrap();
    symlink("here", one.join("link")).unwrap();
    symlink("there", other.join("link")).unwrap();
    let found = differences(&one, &other).unwrap();
    assert!(found.iter().any(|difference| difference.starts_with("target of \"link\"")), "{found:?}");
}
