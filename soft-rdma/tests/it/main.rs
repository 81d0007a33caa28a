//! Runs `soft-rdma` as a user does: the program that it becomes keeps its status, and finds the
//! device.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::unistd::geteuid;
use rdma_test_support::program::{finish, has_failed, has_succeeded, text};
use rdma_test_support::{Compiler, skip};

/// A folder of a test, which is also its cache.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soft-rdma").join(name);
    // An earlier build has left another copy of the library.
    let _removed = std::fs::remove_dir_all(&folder);
    folder
}

/// The launcher with its cache in `folder`.
fn launcher(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_soft-rdma"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("XDG_CACHE_HOME", folder);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the launcher.
fn launch(folder: &Path, arguments: &[&str]) -> Output {
    finish(launcher(folder, arguments).spawn().unwrap())
}

#[test]
fn a_user_without_a_home_gets_the_library_in_the_folder_of_temporary_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_soft-rdma"));
    command.env_clear().env("HOME", "/nonexistent").env("TMPDIR", folder.path());
    command.args(["sh", "-c", "echo $LD_LIBRARY_PATH"]).env("PATH", std::env::var_os("PATH").unwrap());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let path = has_succeeded("soft-rdma", &finish(command.spawn().unwrap()));
    assert!(path.starts_with(folder.path().to_str().unwrap()), "{path}");
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
    has_failed("soft-rdma", &launch(&folder, &["--chek", "true"]), "unexpected argument '--chek'");
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

#[test]
fn a_program_with_the_device_built_in_lists_it_once() {
    // The launcher is one itself.
    let checked = launch(&folder("built-in"), &[env!("CARGO_BIN_EXE_soft-rdma"), "--check"]);
    let checked = has_succeeded("soft-rdma", &checked);
    assert!(checked.contains("devices      soft0\n"), "{checked}");
}

/// A file with these bytes as a key.
fn key(folder: &Path, name: &str, bytes: &str, mode: u32) -> String {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn the_address_and_the_key_for_other_hosts_are_variables_of_the_program() {
    let folder = folder("hosts");
    let key = key(&folder, "job.key", SECRET, 0o600);
    let shown = ["sh", "-c", "echo $RDMA_SOFT_TCP $RDMA_SOFT_KEY $RDMA_SOFT_KEY_FD"];
    let given = |options: &[&str]| {
        let mut command = launcher(&folder, &[options, &shown].concat());
        command.current_dir(&folder).env("RDMA_SOFT_KEY_FD", "7");
        has_succeeded("soft-rdma", &finish(command.spawn().unwrap()))
    };
    assert_eq!(given(&["--tcp", "127.0.0.2", "--key", "job.key"]), format!("127.0.0.2:4791 {key}\n"));
    assert_eq!(given(&["--tcp", "lo:7000", "--key", &key]), format!("lo:7000 {key}\n"));
    // The key is the environment's, in a descriptor, which the launcher leaves to the program.
    assert_eq!(given(&["--tcp", "127.0.0.2:7000"]), "127.0.0.2:7000 7\n");
}

#[test]
fn what_is_in_the_way_of_other_hosts_is_said_before_the_program_starts() {
    let folder = folder("hosts-wrong");
    let good = key(&folder, "job.key", SECRET, 0o600);
    let open = key(&folder, "open.key", SECRET, 0o644);
    let short = key(&folder, "short.key", "secret", 0o600);
    let refused = |options: &[&str], expected: &str| {
        let output = launch(&folder, &[options, &["echo", "started"]].concat());
        has_failed("soft-rdma", &output, expected);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()));
        has_failed("soft-rdma --check", &launch(&folder, &[options, &["--check"]].concat()), expected);
    };
    refused(&["--tcp", "127.0.0.2"], "--key");
    refused(&["--key", &good], "--tcp");
    refused(&["--tcp", "127.0.0.2", "--key", &open], "chmod 600");
    refused(&["--tcp", "127.0.0.2", "--key", &short], "6 bytes");
    refused(&["--tcp", "127.0.0.2", "--key", "/nonexistent"], "/nonexistent");
    refused(&["--tcp", "nosuch0", "--key", &good], "there is no network interface nosuch0");
    refused(&["--tcp", "0.0.0.0", "--key", &good], "an IP address of this host");
    // An address that this host lacks (RFC 5737), if it may not use such ones.
    let may_lack =
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_nonlocal_bind").is_ok_and(|value| value.trim() == "1");
    if !may_lack {
        refused(&["--tcp", "192.0.2.1", "--key", &good], "192.0.2.1");
    }
}

#[test]
fn the_check_says_how_other_hosts_are_reached() {
    let folder = folder("hosts-check");
    let key = key(&folder, "job.key", SECRET, 0o600);
    let off = has_succeeded("soft-rdma", &launch(&folder, &["--check"]));
    assert!(off.contains("hosts        not reached: --tcp ADDRESS --key FILE"), "{off}");
    let other = std::net::TcpListener::bind("127.88.6.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    let options = ["--tcp", &taken, "--key", &key, "--check"];
    has_failed("soft-rdma", &launch(&folder, &options), "of this user listens there and does not share it");
    drop(other);
    let on = has_succeeded("soft-rdma", &launch(&folder, &options));
    assert!(on.contains(&format!("hosts        reached over TCP at {taken} by those with the key of {key}")), "{on}");
    // The environment chooses as the options do.
    let mut command = launcher(&folder, &["--check"]);
    command.env("RDMA_SOFT_TCP", &taken).env("RDMA_SOFT_KEY", &key);
    assert_eq!(has_succeeded("soft-rdma", &finish(command.spawn().unwrap())), on);
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

/// Compiles a C program; `None` without a compiler.
fn compile(folder: &Path, name: &str, source: &str) -> Option<String> {
    let compiler = Compiler::find(folder)?;
    let program = compiler.output(name);
    let compiled = compiler.run(name, source, &["-o", &program, "-Wl,--no-as-needed", "-libverbs"]).unwrap();
    let _out = has_succeeded("cc", &compiled);
    Some(program)
}

#[test]
fn a_c_program_finds_the_devices() {
    let folder = folder("program");
    let Some(program) = compile(&folder, "devices", PROGRAM) else { return };
    let run = |arguments: &[&str]| has_succeeded("soft-rdma", &launch(&folder, &[arguments, &[&program]].concat()));
    assert_eq!(run(&[]), "soft0 2\n");
    assert_eq!(run(&["--devices", "2", "--link-layer", "infiniband"]), "soft0 1\nsoft1 1\n");
    let checked = run(&["--check"]);
    assert!(checked.contains("devices      soft0\n") && checked.contains(" uses the library\n"), "{checked}");
}

#[test]
fn a_program_that_loads_the_library_without_a_version_finds_the_device() {
    let source = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <infiniband/verbs.h>
int main(void) {
    void *verbs = dlopen("libibverbs.so", RTLD_NOW), *cm = dlopen("librdmacm.so", RTLD_NOW);
    if (!verbs || verbs != cm) return 1;
    struct ibv_device **(*list)(int *) = dlvsym(verbs, "ibv_get_device_list", "IBVERBS_1.1");
    const char *(*name)(struct ibv_device *) = dlvsym(verbs, "ibv_get_device_name", "IBVERBS_1.1");
    int count = 0;
    struct ibv_device **devices = list(&count);
    if (count != 1) return 2;
    puts(name(devices[0]));
    return 0;
}
"#;
    let folder = folder("unversioned");
    let Some(compiler) = Compiler::find(&folder) else { return };
    let program = compiler.output("loads");
    let _out = has_succeeded("cc", &compiler.run("loads", source, &["-o", &program, "-ldl"]).unwrap());
    assert_eq!(has_succeeded("soft-rdma", &launch(&folder, &[&program])), "soft0\n");
}

#[test]
fn devices_get_names_that_programs_insist_on() {
    let folder = folder("names");
    let Some(program) = compile(&folder, "named", PROGRAM) else { return };
    let run = |arguments: &[&str]| has_succeeded("soft-rdma", &launch(&folder, &[arguments, &[&program]].concat()));
    assert_eq!(run(&["--device-name", "mlx5_0"]), "mlx5_0 2\n");
    assert_eq!(run(&["--device-name", "mlx5_0,mlx5_1", "--devices", "2"]), "mlx5_0 2\nmlx5_1 2\n");
    assert_eq!(run(&["--device-name", "mlx5_0", "--fault", "delay=1ms"]), "mlx5_0 2\n");
    let checked = run(&["--check", "--device-name", "mlx5_0"]);
    assert!(checked.contains("devices      mlx5_0\n") && checked.contains("no /dev/infiniband/mlx5_0: "), "{checked}");
    // A program with the device built in finds it under the name once.
    let inner = env!("CARGO_BIN_EXE_soft-rdma");
    let checked = launch(&folder, &["--device-name", "mlx5_0", inner, "--check"]);
    assert!(has_succeeded("soft-rdma", &checked).contains("devices      mlx5_0\n"), "{}", text(&checked.stdout));
    let long = "m".repeat(64);
    for (names, reason) in [
        ("", "names of 1 to 63 bytes"),
        ("a,", "names of 1 to 63 bytes"),
        (&long, "names of 1 to 63 bytes"),
        ("a/b", "names of letters, digits"),
        ("a,a", "names of which none comes twice"),
    ] {
        let refused = launch(&folder, &["--device-name", names, "echo", "started"]);
        has_failed("soft-rdma", &refused, reason);
        assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(2), String::new()), "{names}");
    }
    let refused = launch(&folder, &["--device-name", "a", "--devices", "2", "true"]);
    has_failed("soft-rdma", &refused, "give a name for each device");
    let mut listed = launcher(&folder, &["--devices", "3", "true"]);
    let refused = finish(listed.env("RDMA_SOFT_NAMES", "a,b").spawn().unwrap());
    has_failed("soft-rdma", &refused, "RDMA_SOFT_NAMES has an invalid value: it may be one name for each");
}

#[test]
fn the_check_says_which_processes_the_device_reaches() {
    let checked = has_succeeded("soft-rdma", &launch(&folder("reach"), &["--check"]));
    for kind in ["net", "pid", "user"] {
        let namespace = std::fs::read_link(Path::new("/proc/self/ns").join(kind)).unwrap();
        assert!(checked.contains(namespace.to_str().unwrap()), "{kind}: {checked}");
    }
    assert!(checked.contains(&format!("processes of user {} in one container", geteuid())), "{checked}");
}

#[test]
fn a_program_with_a_renamed_library_needs_a_preload() {
    let folder = folder("renamed");
    std::fs::create_dir_all(&folder).unwrap();
    let Some(compiler) = Compiler::find(&folder) else { return };
    let name = "libibverbs-1de1263b.so.1.14.48.0";
    let (copy, program) = (compiler.output(name), compiler.output("carrier"));
    let soname = format!("-Wl,-soname,{name}");
    let copied = "struct ibv_device **ibv_get_device_list(int *count);\n\
                  struct ibv_device **ibv_get_device_list(int *count) { *count = 77; return 0; }\n";
    // A renamed copy keeps its symbol versions.
    let versions = compiler.output("copy.map");
    std::fs::write(&versions, "IBVERBS_1.1 { global: ibv_get_device_list; };").unwrap();
    let versions = format!("-Wl,--version-script={versions}");
    let built = compiler.run("copy", copied, &["-shared", "-fPIC", "-o", &copy, &soname, &versions]).unwrap();
    let _out = has_succeeded("cc", &built);
    let source = "#include <stdio.h>\n\
                  struct ibv_device **ibv_get_device_list(int *count);\n\
                  int main(void) { int count; ibv_get_device_list(&count); printf(\"%d devices\\n\", count); return 0; }\n";
    let path = Path::new(&copy).parent().unwrap().display().to_string();
    let _out = has_succeeded(
        "cc",
        &compiler
            .run("carrier", source, &["-o", &program, "-Wl,--no-as-needed", &copy, &format!("-Wl,-rpath,{path}")])
            .unwrap(),
    );
    assert_eq!(has_succeeded("its own copy", &launch(&folder, &[&program])), "77 devices\n");
    let checked = launch(&folder, &["--check", &program]);
    has_failed(
        "soft-rdma",
        &checked,
        "is a library under another name, which is taken in place of ours: give --preload",
    );
    assert!(text(&checked.stdout).contains(name), "{}", text(&checked.stdout));
    assert_eq!(has_succeeded("the preload", &launch(&folder, &["--preload", &program])), "1 devices\n");
    let checked = has_succeeded("soft-rdma", &launch(&folder, &["--check", "--preload", &program]));
    assert!(checked.contains("--preload loads the library before it"), "{checked}");
}

/// Makes a program of a script. Another process writes it: a child that another test starts at this
/// moment would keep a file of this process open, and a file that somebody writes cannot be run.
fn make_program(path: &Path, text: &str) {
    let mut writer = Command::new("sh");
    writer.args(["-c", "printf '%s' \"$1\" > \"$0\" && chmod +x \"$0\""]).arg(path).arg(text);
    assert!(writer.status().unwrap().success());
}

/// A Python interpreter in the folder, and a library under another name in one of its packages.
fn python_with_a_copy(folder: &Path) -> [PathBuf; 2] {
    let package = folder.join("site-packages/some.libs");
    std::fs::create_dir_all(&package).unwrap();
    let copy = package.join("libibverbs-1de1263b.so.1.14.48.0");
    std::fs::write(&copy, "").unwrap();
    let python = folder.join("python3");
    make_program(&python, &format!("#!/bin/sh\necho '{}/site-packages'\n", folder.display()));
    [python, copy]
}

/// The check of a program by a launcher finds the copy.
fn finds(copy: &Path, mut launcher: Command) {
    let checked = has_succeeded("soft-rdma", &finish(launcher.spawn().unwrap()));
    let line = checked.lines().find(|line| line.starts_with("copies")).expect(&checked);
    assert!(line.contains(copy.to_str().unwrap()) && line.contains("give --preload"), "{line}");
}

#[test]
fn the_check_finds_renamed_libraries_in_python_packages() {
    let folder = folder("packages");
    let [python, copy] = python_with_a_copy(&folder);
    finds(&copy, launcher(&folder, &["--check", python.to_str().unwrap()]));
}

#[test]
fn the_check_says_why_a_file_is_no_program() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder("no-program");
    std::fs::create_dir_all(&folder).unwrap();
    let check = |program: &Path| launch(&folder, &["--check", program.to_str().unwrap()]);
    let file = folder.join("data");
    has_failed("soft-rdma", &check(&folder), "is a folder");
    has_failed("soft-rdma", &check(&file), "data: No such file or directory");
    std::fs::write(&file, "#!/no/such/python3\n").unwrap();
    has_failed("soft-rdma", &check(&file), "is not executable");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    has_failed("soft-rdma", &check(&file), "is a script: /no/such/python3: No such file or directory");
}

/// Entry points of Python packages are scripts: what the interpreter loads matters.
#[test]
fn the_check_of_a_script_is_one_of_its_interpreter() {
    let folder = folder("script");
    let [python, copy] = python_with_a_copy(&folder);
    let entry = folder.join("entry");
    make_program(&entry, &format!("#!{} -u\n", python.display()));
    finds(&copy, launcher(&folder, &["--check", entry.to_str().unwrap()]));
    make_program(&entry, "#!/usr/bin/env -S python3 -u\n");
    let mut by_env = launcher(&folder, &["--check", entry.to_str().unwrap()]);
    by_env.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
    finds(&copy, by_env);
}

#[test]
fn the_check_names_the_limit_that_is_too_small() {
    let folder = folder("limit");
    let check = |files: u32| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" --check"), env!("CARGO_BIN_EXE_soft-rdma")]);
        command.env("XDG_CACHE_HOME", &folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().unwrap())
    };
    let _works = has_succeeded("soft-rdma", &check(64));
    let refused = check(7);
    has_failed("soft-rdma", &refused, "raise the limit of open files (`ulimit -n`)");
    assert!(text(&refused.stderr).contains("ibv_open_device"), "{}", text(&refused.stderr));
}

/// The dynamic loader would replace the word.
#[test]
fn a_home_that_the_loader_would_read_otherwise_is_not_used() {
    let folder = folder("$ORIGIN");
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = launcher(&folder, &["sh", "-c", "echo $LD_LIBRARY_PATH"]);
    command.env_remove("XDG_CACHE_HOME").env("HOME", &folder);
    let path = has_succeeded("soft-rdma", &finish(command.spawn().unwrap()));
    assert!(path.contains("soft-rdma-") && !path.contains('$'), "{path}");
    has_failed("soft-rdma", &launch(&folder, &["true"]), "cannot contain a colon, semicolon or dollar sign");
}

#[test]
fn a_folder_that_forbids_execution_is_not_used() {
    let folder = folder("noexec");
    std::fs::create_dir_all(&folder).unwrap();
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        if !geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", &format!("mount -t tmpfs -o noexec none \"$0\" && {script}")]);
        command
            .arg(&folder)
            .arg(env!("CARGO_BIN_EXE_soft-rdma"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap());
        finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    if !run("true").status.success() {
        return skip("this user may not mount");
    }
    let refused = run("XDG_CACHE_HOME=\"$0\" \"$1\" --check");
    has_failed("soft-rdma", &refused, "its filesystem forbids execution (noexec); XDG_CACHE_HOME sets another folder");
    // A home of that kind is passed over.
    let elsewhere = run("HOME=\"$0\" \"$1\" sh -c 'echo $LD_LIBRARY_PATH'");
    let path = has_succeeded("soft-rdma", &elsewhere);
    assert!(path.contains("soft-rdma") && !path.starts_with(folder.to_str().unwrap()), "{path}");
}

/// Sends three messages between two queue pairs, and prints the status of each completion.
const SENDER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <infiniband/verbs.h>
#define CHECK(good) do { if (!(good)) { fprintf(stderr, "line %d\n", __LINE__); exit(3); } } while (0)
static struct ibv_cq *cqs[2];
static struct ibv_qp *make(struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                     .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}
static void join(struct ibv_context *context, struct ibv_qp *qp, struct ibv_qp *to) {
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
                                .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num,
                                  .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
                                  .ah_attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 1 } };
    CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 3, .rnr_retry = 3,
                                  .max_rd_atomic = 1 };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}
int main(void) {
    static char memory[64];
    struct ibv_device **list = ibv_get_device_list(NULL);
    if (!list) { perror("no list"); return 2; }
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(pd && mr);
    struct ibv_qp *qps[2];
    for (int i = 0; i < 2; i++) {
        CHECK(cqs[i] = ibv_create_cq(context, 16, NULL, NULL, 0));
        qps[i] = make(pd, cqs[i]);
    }
    join(context, qps[0], qps[1]);
    join(context, qps[1], qps[0]);
    struct ibv_sge sge = { (uintptr_t) memory, 32, mr->lkey };
    for (int i = 0; i < 3; i++) {
        struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive;
        struct ibv_send_wr send = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                                    .send_flags = IBV_SEND_SIGNALED }, *bad;
        CHECK(!ibv_post_recv(qps[1], &receive, &bad_receive));
        CHECK(!ibv_post_send(qps[0], &send, &bad));
    }
    for (int i = 0; i < 3; i++) {
        struct ibv_wc wc;
        int polled;
        while (!(polled = ibv_poll_cq(cqs[0], 1, &wc))) { }
        if (polled < 0) { puts("no poll"); break; }
        CHECK(wc.wr_id == (uint64_t) i);
        puts(ibv_wc_status_str(wc.status));
    }
    CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]));
    CHECK(!ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cqs[1]) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(context));
    return 0;
}
"#;

#[test]
fn a_c_program_meets_each_fault() {
    let folder = folder("sender");
    let Some(program) = compile(&folder, "sender", SENDER) else { return };
    let (ok, flushed) = ("success", "Work Request Flushed Error");
    for (plan, second, third) in [
        ("delay=1ms..2ms", ok, ok),
        ("loss:nth=2; rnr:nth=3", ok, ok),
        ("loss=all:nth=2", "transport retry counter exceeded", flushed),
        ("rnr=all:nth=2", "RNR retry counter exceeded", flushed),
        ("rnr=all:recv:nth=2", "RNR retry counter exceeded", flushed),
        ("operation:recv:nth=2", "remote operation error", flushed),
        ("protection:nth=2", "local protection error", flushed),
        ("response:nth=2", "bad response error", flushed),
        ("flush:nth=2", flushed, flushed),
    ] {
        let out = has_succeeded(plan, &launch(&folder, &["--fault", plan, &program]));
        assert_eq!(out.to_lowercase(), format!("success\n{second}\n{third}\n").to_lowercase(), "{plan}");
    }
    let out = has_succeeded("cq-error", &launch(&folder, &["--fault", "cq-error:nth=2", &program]));
    assert!(out.ends_with("no poll\n"), "{out}");
    assert_eq!(launch(&folder, &["--fault", "die:nth=2", &program]).status.signal(), Some(9));
}

/// The sender's queue pair is connected to a number that no process has.
#[test]
fn a_c_program_says_why_a_peer_is_not_reached() {
    let folder = folder("nobody");
    let source = SENDER.replace(".dest_qp_num = to->qp_num,", ".dest_qp_num = to->qp_num ^ 1 << 23,");
    let Some(program) = compile(&folder, "nobody", &source) else { return };
    let said = |options: &[&str]| {
        let output = launch(&folder, &[options, &[&program]].concat());
        let out = has_succeeded("nobody", &output);
        assert!(out.to_lowercase().starts_with("transport retry counter exceeded\n"), "{out}");
        text(&output.stderr)
    };
    let reason = "no process of this network namespace has that number";
    let (usual, log) = (said(&[]), said(&["--log", "debug"]));
    // Once for each peer and cause.
    assert_eq!((usual.lines().count(), usual.matches(reason).count()), (1, 1), "{usual}");
    assert!(log.contains(reason) && log.contains(": debug: software RDMA device starts"), "{log}");
    assert_eq!(said(&["--quiet"]), "");
    has_failed("soft-rdma", &launch(&folder, &["--quiet", "--log", "debug", "true"]), "--quiet");
}

#[test]
fn variables_without_a_meaning_are_refused() {
    let folder = folder("variables");
    let names = finish(launcher(&folder, &["true"]).env("RDMA_SOFT_NAMES", "a/b").spawn().unwrap());
    has_failed("RDMA_SOFT_NAMES", &names, "RDMA_SOFT_NAMES");
    for name in ["RDMA_SOFT", "RDMA_SOFT_DEVICES", "RDMA_SOFT_LOG", "RDMA_SOFT_FAULT", "RDMA_SOFT_CM_TIMEOUT"] {
        let output = finish(launcher(&folder, &["true"]).env(name, "wrong").spawn().unwrap());
        has_failed(name, &output, name);
    }
}

/// Connects to an address at which nobody listens.
const CALLER: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <rdma/rdma_cma.h>
int main(void) {
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(1), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct rdma_conn_param param = { .qp_num = 7 };
    struct rdma_cm_id *id;
    for (int i = 0; i < 2; i++) {
        if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(id, NULL, (struct sockaddr *) &to, 2000)
            || rdma_resolve_route(id, 2000))
            return 3;
        if (!rdma_connect(id, &param))
            return 4;
        perror("rdma_connect");
        rdma_destroy_id(id);
    }
    return 0;
}
"#;

#[test]
fn a_c_program_says_why_a_connection_is_refused() {
    let folder = folder("caller");
    let Some(compiler) = Compiler::find(&folder) else { return };
    let program = compiler.output("caller");
    let compiled = compiler.run("caller", CALLER, &["-o", &program, "-Wl,--no-as-needed", "-lrdmacm"]).unwrap();
    let _out = has_succeeded("cc", &compiled);
    let output = launch(&folder, &[&program]);
    let _out = has_succeeded("caller", &output);
    let said = text(&output.stderr);
    let reason = "no process of this user and network namespace listens there peer=127.0.0.1:1";
    // Once for each peer and cause.
    assert_eq!((said.matches(reason).count(), said.matches("rdma_connect: ").count()), (1, 2), "{said}");
    assert!(!text(&launch(&folder, &["--quiet", &program]).stderr).contains(reason));
}

/// Takes what the heap has in small pieces, until the system has given it more.
const HEAP: &str = r#"
#include <malloc.h>
#include <stdlib.h>
static int grow_heap(void) {
    const void *end = sbrk(0);
    while (sbrk(0) == end)
        if (!malloc(4096))
            return 0;
    return 1;
}
"#;

/// A limit of the address space, after which the program's link cannot be made.
#[test]
fn a_c_program_says_which_call_a_limit_has_refused() {
    let folder = folder("limit");
    // Space for small maps, and none for the stack of a thread. What is allocated is in the heap,
    // which has a mebibyte to spare.
    let limit = "CHECK(mallopt(M_TOP_PAD, 1 << 20) && grow_heap());
                 unsigned long pages;
                 FILE *used = fopen(\"/proc/self/statm\", \"r\");
                 CHECK(used && fscanf(used, \"%lu\", &pages) == 1);
                 struct rlimit limit = { pages * getpagesize() + (200 << 10), RLIM_INFINITY };
                 CHECK(!setrlimit(RLIMIT_AS, &limit));
                 join(context, qps[0]";
    let source = SENDER.replace(".dest_qp_num = to->qp_num,", ".dest_qp_num = to->qp_num ^ 1 << 23,");
    let source = source.replace("    join(context, qps[0]", limit);
    let source = format!("#include <sys/resource.h>\n#include <unistd.h>\n{HEAP}{source}");
    let Some(program) = compile(&folder, "limit", &source) else { return };
    let mut command = launcher(&folder, &[&program]);
    // A heap for each thread counts as 64 MiB, and as 128 MiB while it is made.
    let output = finish(command.env("MALLOC_ARENA_MAX", "1").spawn().unwrap());
    let out = has_succeeded("limit", &output);
    assert!(out.to_lowercase().starts_with("transport retry counter exceeded\n"), "{out}");
    let said = text(&output.stderr);
    assert!(said.contains("no thread can be started for it: clone: "), "{said}");
}

/// Whether the launcher can show the devices in sysfs here; the reason why not is printed.
fn shows_sysfs(folder: &Path) -> bool {
    let checked = launch(folder, &["--check", "--sysfs"]);
    if !checked.status.success() {
        skip(&text(&checked.stderr));
    }
    checked.status.success()
}

#[test]
fn the_program_sees_the_devices_in_sysfs() {
    let folder = folder("sysfs");
    if !shows_sysfs(&folder) {
        return;
    }
    let run = |arguments: &[&str]| launch(&folder, &[&["--sysfs", "--devices", "2"], arguments].concat());
    let script = "cd /sys/class/infiniband && cat */ports/1/state && test -c /dev/infiniband/soft1 \
                  && test -d /sys/class/net/lo/ && test -w /dev/null && exit 7";
    let output = run(&["sh", "-c", script]);
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("4: ACTIVE\n4: ACTIVE\n", Some(7)));
    // The host has got nothing.
    assert!(!Path::new("/dev/infiniband/soft1").exists());
    let named = ["--sysfs", "--device-name", "mlx5_7"];
    let script = "cat /sys/class/infiniband/mlx5_7/hca_type && test -c /dev/infiniband/mlx5_7 \
                  && test ! -e /sys/class/infiniband/soft0";
    let shown = launch(&folder, &[&named[..], &["sh", "-c", script]].concat());
    assert_eq!(has_succeeded("a name", &shown), "rdma-soft\n");
    // Of the host's links there may be others.
    let links = has_succeeded("rdma", &run(&["rdma", "link", "show", "-j"]));
    for device in ["soft0", "soft1"] {
        assert!(links.contains(&format!("\"ifname\":\"{device}\"")), "{links}");
    }
    let named_link = launch(&folder, &[&named[..], &["rdma", "link", "show", "mlx5_7/1"]].concat());
    let line = has_succeeded("rdma", &named_link);
    assert!(line.starts_with("link mlx5_7/1 state ACTIVE physical_state LINK_UP netdev "), "{line}");
    // A program starts without the stand-in if it cannot be placed.
    let copies = std::fs::read_dir(folder.join("soft-rdma")).unwrap().map(|entry| entry.unwrap().path());
    let placed = copies.map(|copy| copy.join("soft-rdma-bin/rdma")).find(|link| link.is_symlink()).unwrap();
    std::fs::remove_file(&placed).unwrap();
    std::fs::create_dir(&placed).unwrap();
    let without = run(&["true"]);
    std::fs::remove_dir(&placed).unwrap();
    let _out = has_succeeded("no stand-in", &without);
    assert!(text(&without.stderr).contains("warning: `rdma link` shows no software device"));
    // A program under a launcher may be one itself.
    let inner = env!("CARGO_BIN_EXE_soft-rdma");
    let _out = has_succeeded("the same devices", &run(&[inner, "--sysfs", "true"]));
    let same = launch(&folder, &[&named[..], &[inner], &named[..], &["true"]].concat());
    let _out = has_succeeded("the same name", &same);
    has_failed("more devices", &run(&[inner, "--sysfs", "--devices", "3", "true"]), "an outer soft-rdma --sysfs");
}

#[test]
fn programs_of_a_user_who_may_not_mount_can_trace_each_other() {
    let folder = folder("user-namespace");
    std::fs::create_dir_all(&folder).unwrap();
    let user = if geteuid().is_root() { 65534 } else { geteuid().as_raw() };
    std::os::unix::fs::chown(&folder, Some(user), None).unwrap();
    let start = |arguments: &[&str]| {
        let mut command = launcher(&folder, arguments);
        if geteuid().is_root() {
            command.uid(user).gid(user);
        }
        command.stdin(Stdio::piped()).spawn()
    };
    let checked = match start(&["--check", "--sysfs"]) {
        Ok(child) => finish(child),
        Err(error) => return skip(&format!("another user cannot run the launcher: {error}")),
    };
    if !checked.status.success() {
        return skip(&text(&checked.stderr));
    }
    // Runs until the test closes its input.
    let mut first = start(&["--sysfs", "sh", "-c", "echo $$; read line"]).unwrap();
    let mut id = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut id).unwrap();
    let path = |file: &str| format!("/proc/{}/{file}", id.trim());
    let namespace = finish(start(&["--sysfs", "readlink", "/proc/self/ns/user", &path("ns/user")]).unwrap());
    let namespaces = has_succeeded("readlink", &namespace);
    let [second, of_first] = namespaces.lines().collect::<Vec<_>>()[..] else { panic!("{namespaces}") };
    assert_eq!(second, of_first);
    let traced = finish(start(&["--sysfs", "cat", &path("environ")]).unwrap());
    assert!(has_succeeded("cat", &traced).contains("LD_LIBRARY_PATH"));
    drop(first.stdin.take());
    let _status = first.wait().unwrap();
}

#[test]
fn folders_may_have_spaces_but_no_colon() {
    let folder = folder("with a space");
    assert!(has_succeeded("soft-rdma", &launch(&folder, &["--check", "true"])).contains("with a space"));
    has_failed("soft-rdma", &launch(&folder.join("a:b"), &["true"]), "XDG_CACHE_HOME sets another folder");
}
