//! The help of the programs: its width, its two lengths, and its groups.

use crate::common::*;

/// Every program, and the arguments that ask it for a help of its own.
const PAGES: &[(&str, &[&[&str]])] = &[
    ("all_gather", &[&[]]),
    ("all_reduce", &[&[]]),
    ("all_to_all", &[&[]]),
    ("barrier", &[&[]]),
    ("broadcast", &[&[]]),
    ("cm_time", &[&[]]),
    ("devinfo", &[&[]]),
    ("file_copy", &[&[], &["serve"], &["send"]]),
    ("gather", &[&[]]),
    #[cfg(feature = "cuda")]
    ("gpu_bw", &[&[]]),
    #[cfg(feature = "cuda")]
    ("gpu_doctor", &[&[]]),
    ("hypercube", &[&[]]),
    ("kv", &[&[], &["serve"], &["get"], &["put"], &["delete"], &["load"]]),
    ("pingpong", &[&[], &["--compat"]]),
    ("plan", &[&[]]),
    ("reduce", &[&[]]),
    ("reduce_scatter", &[&[]]),
    ("rpc", &[&[], &["serve"], &["call"], &["load"]]),
    ("rping", &[&[]]),
    ("scatter", &[&[]]),
    ("sendrecv", &[&[]]),
    ("training_step", &[&[]]),
    ("tune", &[&[]]),
];

/// The groups of every program.
const GROUPS: [&str; 5] = ["What", "Sizes", "Transport", "Job", "Output"];
/// The groups of single programs, which stand between the sizes and the transport.
const OWN_GROUPS: [&str; 7] = ["Grid", "Model", "Steps", "Planner", "Network", "Training", "Fit"];

/// The help of every program: its name with the arguments, and the text.
fn pages(option: &str) -> Vec<(String, String)> {
    let of = |(name, all): &(&str, &[&[&str]])| -> Vec<(String, String)> {
        let page = |args: &&[&str]| {
            let args = [args, &[option][..]].concat();
            // A terminal that is wider than the help.
            let output = program(name).args(&args).env("COLUMNS", "300").output().unwrap();
            (format!("{name} {args:?}"), rdma_test_support::program::has_succeeded(name, &output))
        };
        all.iter().map(page).collect()
    };
    PAGES.iter().flat_map(of).collect()
}

/// The headings of a page.
fn headings(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_suffix(':')).filter(|line| !line.contains(' ')).collect()
}

#[test]
fn lines_have_at_most_100_columns() {
    for (name, page) in ["-h", "--help"].into_iter().flat_map(pages) {
        let longest = page.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(longest.chars().count() <= 100, "{name}: {longest:?}");
    }
}

#[test]
fn the_first_screen_is_one() {
    for (name, page) in pages("-h") {
        let lines = page.lines().count();
        assert!(lines <= 40, "{name} has {lines} lines:\n{page}");
    }
}

#[test]
fn every_option_has_a_heading() {
    for (name, page) in ["-h", "--help"].into_iter().flat_map(pages) {
        let headings = headings(&page);
        let place = |heading: &&str| match GROUPS.iter().position(|group| group == heading) {
            Some(place @ 0..=1) => place,
            Some(place) => place + 1,
            None if OWN_GROUPS.contains(heading) => 2,
            // `Options` is where an option without a heading stands.
            None => panic!("{name} has the heading {heading}:\n{page}"),
        };
        let groups = headings.iter().filter(|heading| !["Arguments", "Commands"].contains(heading));
        let places: Vec<usize> = groups.map(place).collect();
        assert!(places.is_sorted() && places.last() == Some(&5), "{name}: {headings:?}");
    }
}
