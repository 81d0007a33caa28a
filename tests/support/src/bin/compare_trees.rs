//! Compares two trees of files: `compare_trees ONE OTHER` prints what differs.

use std::path::Path;
use std::process::ExitCode;

use rdma_test_support::trees;

fn main() -> ExitCode {
    let paths: Vec<_> = std::env::args_os().skip(1).collect();
    let [one, other] = &paths[..] else {
        println!("usage: compare_trees ONE OTHER");
        return ExitCode::from(2);
    };
    let found = trees::differences(Path::new(one), Path::new(other)).expect("both trees can be read");
    found.iter().take(100).for_each(|difference| println!("{difference}"));
    println!("{} differences", found.len());
    ExitCode::from(u8::from(!found.is_empty()))
}
