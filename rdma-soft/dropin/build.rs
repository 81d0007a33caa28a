//! Makes the symbols of `symbols.txt`: their trampolines, and the linker's map of their versions.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const LIST: &str = "symbols.txt";
/// The private symbols are the same in all these versions, as far as anybody calls them.
const PRIVATE: &str = "IBVERBS_PRIVATE";
const PRIVATE_NUMBERS: [&str; 5] = ["34", "57", "59", "64", "65"];

/// A line of the list.
struct Symbol<'a> {
    version: &'a str,
    name: &'a str,
    kind: &'a str,
}

fn main() {
    println!("cargo:rerun-if-changed={LIST}");
    let list = fs::read_to_string(LIST).expect("symbols.txt lies in the package's folder");
    let symbols = parse(&list);
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let write = |name: &str, text: String| {
        let path = out.join(name);
        fs::write(&path, text).expect("cargo's folder is writable");
        path
    };
    write("symbols.rs", trampolines(&symbols));
    let versions = write("versions.map", version_script(&symbols));
    let linker = out.join("linker");
    fs::create_dir_all(&linker).expect("cargo's folder is writable");
    let wrapper = write("linker/ld", linker_wrapper());
    fs::set_permissions(wrapper, fs::Permissions::from_mode(0o755)).expect("a file of ours");
    link(&versions, &linker);
}

/// Asks the linker for the versions and for libibverbs' name. Programs may unload the library, but
/// its threads run on, so its code stays mapped.
fn link(versions: &Path, linker: &Path) {
    for argument in ["-Wl,-soname,libibverbs.so.1", "-Wl,-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", versions.display());
    println!("cargo:rustc-cdylib-link-arg=-B{}", linker.display());
}

/// Reads the list: a line with one word begins a version, the others are `name kind`.
fn parse(list: &str) -> Vec<Symbol<'_>> {
    let mut version = "";
    let mut symbols = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [] => (),
            [word] => version = word,
            [name, kind] => symbols.push(Symbol { version, name, kind }),
            _ => panic!("{LIST}: not `name kind`: {line}"),
        }
    }
    symbols
}

/// The versions for which a version of the list stands.
fn versions_of(version: &str) -> Vec<String> {
    if version == PRIVATE {
        PRIVATE_NUMBERS.iter().map(|number| format!("{PRIVATE}_{number}")).collect()
    } else {
        vec![version.to_owned()]
    }
}

/// The linker's map: each version with its symbols, after the version before.
fn version_script(symbols: &[Symbol<'_>]) -> String {
    let mut script = String::new();
    let mut before: Option<String> = None;
    for of_version in symbols.chunk_by(|one, next| one.version == next.version) {
        let names: String = of_version.iter().map(|symbol| format!("    {};\n", symbol.name)).collect();
        for version in versions_of(of_version[0].version) {
            let (hidden, parent) = match before {
                None => ("local:\n    *;\n", String::new()),
                Some(before) => ("", format!(" {before}")),
            };
            writeln!(script, "{version} {{\nglobal:\n{names}{hidden}}}{parent};").expect("memory");
            before = Some(version);
        }
    }
    script
}

/// One call of a macro of `trampoline.rs` for each symbol and version.
fn trampolines(symbols: &[Symbol<'_>]) -> String {
    let newest: HashMap<&str, &str> = symbols.iter().map(|symbol| (symbol.name, symbol.version)).collect();
    let mut text = String::new();
    let mut number = 0;
    for &Symbol { version, name, kind } in symbols {
        let versions = versions_of(version);
        for (index, full) in versions.iter().enumerate() {
            let is_default = newest[name] == version && index + 1 == versions.len();
            let at = if is_default { "@@" } else { "@" };
            let target = match kind {
                "verbs" => format!("table VERBS, rdma_sys::Ibverbs, {name}"),
                "cm" => format!("table CM, rdma_sys::RdmaCm, {name}"),
                "own" | "rsocket" | "cancel" => format!("function {kind}::{name}"),
                "data" => "data".to_owned(),
                other => format!("function unsupported::{other}"),
            };
            writeln!(text, "symbol!(\"{number}\", \"{name}{at}{full}\", {target});").expect("memory");
            number += 1;
        }
    }
    text
}

/// A linker for C compilers that call GNU ld, which takes only one version script: it leaves out
/// rustc's, which would hide every symbol without `#[no_mangle]`. lld, rustc's own choice on
/// x86_64, takes both, and the compiler finds it by another name.
fn linker_wrapper() -> String {
    let compiler = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".into());
    let asked = Command::new(compiler).arg("-print-prog-name=ld").output();
    let linker = asked.ok().and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    let linker = if linker.trim().is_empty() { "ld" } else { linker.trim() };
    format!(
        "#!/bin/sh\nfor argument; do\n    shift\n    case $argument in\n        --version-script=*/versions.map) ;;\n        \
         --version-script=*) continue ;;\n    esac\n    set -- \"$@\" \"$argument\"\ndone\nexec '{linker}' \"$@\"\n"
    )
}
