//! Runs `soft-rdma` as a user does: the program that it becomes keeps its status, and finds the
//! device.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rdma_test_support::Compiler;
use rdma_test_support::program::{finish, has_failed, has_succeeded, text};

/// A folder of a test, which is also its cache.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("soft-rdma").join(name)
}

/// Runs the launcher with its cache in `folder`.
fn launch(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_soft-rdma"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("XDG_CACHE_HOME", folder);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

#[test]
fn status_and_signals_are_the_programs() {
    let folder = folder("status");
    assert_eq!(launch(&folder, &["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(launch(&folder, &["sh", "-c", "kill -TERM $$"]).status.signal(), Some(15));
    // What follows the program's name is the program's.
    assert_eq!(text(&launch(&folder, &["echo", "--check", "--", "-x"]).stdout), "--check -- -x\n");
}

#[test]
fn mistakes_are_explained() {
    let folder = folder("mistakes");
    has_failed("soft-rdma", &launch(&folder, &["/nonexistent"]), "/nonexistent: No such file");
    has_failed("soft-rdma", &launch(&folder, &[]), "<PROGRAM>");
    has_failed("soft-rdma", &launch(Path::new("/proc/self/fd"), &["true"]), "XDG_CACHE_HOME sets another folder");
    has_failed("soft-rdma", &launch(&folder, &["--check", "no-such-program"]), "no-such-program is not in PATH");
}

#[test]
fn the_library_is_written_once_and_only_for_this_user() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder("once");
    assert!(launch(&folder, &["true"]).status.success());
    let copies = || std::fs::read_dir(folder.join("soft-rdma")).unwrap().map(|entry| entry.unwrap().path());
    let copy = copies().next().unwrap();
    let written = std::fs::metadata(copy.join("libibverbs.so.1")).unwrap().modified().unwrap();
    assert!(launch(&folder, &["true"]).status.success());
    assert_eq!(std::fs::metadata(copy.join("librdmacm.so.1")).unwrap().modified().unwrap(), written);
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&copy, open).unwrap();
    let refused = launch(&folder, &["true"]);
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o700)).unwrap();
    has_failed("soft-rdma", &refused, "other users can write to");
}

#[test]
fn a_plan_of_faults_is_checked_before_the_program_starts() {
    let folder = folder("faults");
    let help = has_succeeded("soft-rdma", &launch(&folder, &["--fault", "help"]));
    assert!(help.contains("delay=TIME") && help.contains("every=N"), "{help}");
    let refused = launch(&folder, &["--fault", "loss; lose", "echo", "started"]);
    has_failed("soft-rdma", &refused, "at 6, `lose`: there is no such fault");
    assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(2), String::new()));
    has_failed("soft-rdma", &launch(&folder, &["--fault", "loss"]), "no program");
    let shown = launch(&folder, &["--fault", "loss:every=3; seed=4", "sh", "-c", "echo $RDMA_SOFT_FAULT"]);
    assert_eq!(has_succeeded("soft-rdma", &shown), "seed=4; loss:every=3\n");
}

const PROGRAM: &str = r#"
#include <stdio.h>
#include <infiniband/verbs.h>
int main(void) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; i < count; i++) {
        struct ibv_context *context = ibv_open_device(list[i]);
        struct ibv_port_attr port;
        if (!context || ibv_query_port(context, 1, &port)) return 1;
        printf("%s %d\n", ibv_get_device_name(list[i]), port.link_layer);
        ibv_close_device(context);
    }
    ibv_free_device_list(list);
    return 0;
}
"#;

#[test]
fn a_c_program_finds_the_devices() {
    let folder = folder("program");
    let Some(compiler) = Compiler::find(&folder) else { return };
    let program = compiler.output("devices");
    let compiled = compiler.run("devices", PROGRAM, &["-o", &program, "-Wl,--no-as-needed", "-libverbs"]).unwrap();
    let _out = has_succeeded("cc", &compiled);
    let run = |arguments: &[&str]| has_succeeded("soft-rdma", &launch(&folder, &[arguments, &[&program]].concat()));
    assert_eq!(run(&[]), "soft0 2\n");
    assert_eq!(run(&["--devices", "2", "--link-layer", "infiniband"]), "soft0 1\nsoft1 1\n");
    let checked = run(&["--check"]);
    assert!(checked.contains("devices      soft0\n") && checked.contains(" uses the library\n"), "{checked}");
}
