//! C programs that are linked to the system's libraries run with this one.

mod common;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Library, built, symbols};
use rdma_soft_dropin::{IBVERBS, RDMACM};
use rdma_test_support::{Compiler, program::has_succeeded};

/// A folder with the library under its two names.
fn library_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // An earlier run may have left the folder.
    let _removed = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("cargo's folder is writable");
    std::os::unix::fs::symlink(built(), folder.join(IBVERBS)).expect("a new link");
    std::os::unix::fs::symlink(IBVERBS, folder.join(RDMACM)).expect("a new link");
    folder
}

/// A C program that takes the address of each of these symbols and lists the devices.
fn program_with(symbols: &[(&str, String)]) -> String {
    let mut source = String::from("#include <stdio.h>\n#include <infiniband/verbs.h>\n");
    for (index, (name, version)) in symbols.iter().enumerate() {
        writeln!(source, "extern char s{index}[];\n__asm__(\".symver s{index}, {name}@{version}\");").expect("memory");
    }
    source += "static void *const addresses[] = {\n";
    (0..symbols.len()).for_each(|index| writeln!(source, "s{index},").expect("memory"));
    source += "};\nint main(void) {
        for (unsigned i = 0; i < sizeof addresses / sizeof *addresses; i++) if (!addresses[i]) return 1;
        struct ibv_device **list = ibv_get_device_list(NULL);
        if (!list || !*list) return 2;
        puts(ibv_get_device_name(*list));
        ibv_free_device_list(list);
        return 0;
    }\n";
    source
}

/// Compiles a program against the system's libraries and runs it with ours; returns what it prints.
fn output_of(name: &str, source: &str, arguments: &[&str]) -> Option<String> {
    let folder = library_folder(name);
    let compiler = Compiler::find(&folder)?;
    let program = compiler.output(&format!("{name}-program"));
    let here = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/tests");
    let common = ["-o", &program, here, "-Wall", "-Wl,--no-as-needed", "-libverbs", "-lrdmacm"];
    let compiled = compiler.run(name, source, &[arguments, &common].concat());
    let _out = has_succeeded("cc", &compiled.expect("the compiler starts"));
    let run = Command::new(&program).env("LD_LIBRARY_PATH", &folder).env("LD_BIND_NOW", "1").output();
    Some(has_succeeded(name, &run.expect("a program that was just compiled")))
}

/// Runs a C program that prints "ok" at its end.
fn passes(name: &str, source: &str) {
    let Some(out) = output_of(name, source, &["-pthread"]) else { return };
    assert_eq!(out.trim(), "ok");
}

#[test]
fn endpoints_use_a_shared_receive_queue() {
    passes("endpoints", include_str!("endpoints.c"));
}

#[test]
fn a_forked_child_opens_its_own_device() {
    passes("forks", include_str!("forks.c"));
}

#[test]
fn objects_are_imported_within_a_process() {
    passes("import", include_str!("import.c"));
}

#[test]
fn a_gid_has_an_ethernet_address() {
    passes("ethernet", include_str!("ethernet.c"));
}

#[test]
fn rsockets_are_waited_for_in_lists() {
    passes("epoll", include_str!("epoll.c"));
}

#[test]
fn threads_that_wait_for_events_can_be_cancelled() {
    passes("cancel", include_str!("cancel.c"));
}

#[test]
fn a_cancellation_stays_pending_until_a_thread_waits_for_an_event() {
    passes("pending", include_str!("pending.c"));
}

#[test]
fn wrong_arguments_give_error_numbers() {
    passes("bad_values", include_str!("bad_values.c"));
}

#[test]
fn answers_are_those_of_libibverbs() {
    passes("answers", include_str!("answers.c"));
}

#[test]
fn lists_of_addresses_are_memory_of_malloc() {
    passes("addrinfo", include_str!("addrinfo.c"));
}

#[test]
fn a_program_with_every_symbol_of_the_system_starts() {
    let system: Vec<_> = [IBVERBS, RDMACM].into_iter().filter_map(Library::open).collect();
    let mut known = symbols();
    known.retain(|(name, version)| system.iter().any(|library| library.has(name, version)));
    assert!(known.len() > 100, "the system's libraries have {} symbols of the list", known.len());
    let Some(out) = output_of("every-symbol", &program_with(&known), &["-fPIE", "-pie"]) else { return };
    assert_eq!(out.trim(), "soft0");
}
