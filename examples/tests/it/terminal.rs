//! What the programs draw on a terminal.

use std::fs::File;
use std::io::{self, Read};
use std::process::Stdio;
use std::thread;

use nix::pty::{Winsize, openpty};

use crate::common::*;

/// Runs a program whose standard output and standard error are a terminal of so many columns, and
/// returns what it draws.
fn drawn(name: &str, args: &[&str], columns: u16) -> String {
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(&size, None).unwrap();
    let mut command = program(name);
    command.args(args).env("TERM", "xterm");
    command.stdout(terminal.slave.try_clone().unwrap()).stderr(Stdio::from(terminal.slave));
    let mut child = command.spawn().unwrap();
    // The terminal ends when nobody has its other side any more.
    drop(command);
    let reader = thread::spawn(move || {
        let (mut drawn, mut bytes) = (Vec::new(), [0; 4096]);
        let mut file = File::from(terminal.master);
        loop {
            match file.read(&mut bytes) {
                Ok(count @ 1..) => drawn.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A terminal without another end fails with EIO.
                Ok(0) | Err(_) => return drawn,
            }
        }
    });
    let status = child.wait().unwrap();
    let drawn = String::from_utf8(reader.join().unwrap()).unwrap();
    assert!(status.success(), "{name}: {status}\n{drawn}");
    drawn
}

/// The lines that remain: a line is erased from its beginning before something else is drawn there.
fn remaining(drawn: &str) -> Vec<&str> {
    let last = |line: &'_ str| line.rfind("\u{1b}[2K").map_or(0, |at| at + "\u{1b}[2K".len());
    drawn.split("\r\n").map(|line| line[last(line)..].trim_end()).collect()
}

#[test]
fn one_rank_shows_its_progress_and_erases_it_for_the_table() {
    let steps = ["-b", "8", "-e", "1K", "-n", "20"];
    let ranks = [&steps[..], &["-g", "3"]].concat();
    for (name, args) in [("all_reduce", &ranks[..]), ("pingpong", &["-n", "20", "-s", "64"])] {
        for columns in [0, 80, 400] {
            let drawn = drawn(name, args, columns);
            assert!(drawn.contains("[0/") && !drawn.contains("[0/0]"), "{name}: {drawn:?}");
            let lines = remaining(&drawn);
            assert!(lines[0].starts_with("# using"), "{name}: {drawn:?}");
            let is_progress = |line: &&&str| line.contains("[0/") || line.contains("[1/");
            assert_eq!(lines.iter().find(is_progress), None, "{name}: {drawn:?}");
        }
    }
}

#[test]
fn a_terminal_of_a_few_columns_is_one() {
    for columns in [1, 5] {
        let drawn = drawn("all_reduce", &["-g", "2", "-b", "8", "-e", "64", "-n", "5"], columns);
        assert!(drawn.contains("# Collective test concluded: all_reduce"), "{drawn:?}");
    }
}
