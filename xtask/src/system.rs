//! File and process helpers whose errors name the file or the program.

use std::{
    ffi::OsStr,
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use serde_json::Value;

/// Prefixes an error's text with the path.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(at(path))
}

/// Writes a file and returns its path.
pub(crate) fn write(path: PathBuf, text: &str) -> Result<PathBuf, String> {
    fs::write(&path, text).map_err(at(&path))?;
    Ok(path)
}

/// Makes a folder and its parents.
pub(crate) fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(at(folder))
}

/// Removes a folder with its contents, if it exists.
pub(crate) fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(folder)(error)),
        _ => Ok(()),
    }
}

/// The files in a folder with that extension, sorted by name.
pub(crate) fn list(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(at(folder))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(at(folder))?;
    paths.retain(|path| path.extension() == Some(OsStr::new(extension)));
    paths.sort();
    Ok(paths)
}

/// Creates a command for the cargo that runs this program, in the workspace's folder.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// The target folder of the workspace.
pub(crate) fn target(root: &Path) -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    std::path::absolute(target).map_err(|error| error.to_string())
}

/// Runs cargo, whose output is this program's; `fault` says what it means if cargo fails.
pub(crate) fn succeeds(cargo: &mut Command, fault: impl FnOnce(ExitStatus) -> String) -> Result<(), String> {
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(fault(status)),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}

/// What `cargo metadata` says of the workspace in `root`.
pub(crate) fn metadata(root: &Path, options: &[&str]) -> Result<Value, String> {
    let text = output(cargo(root).args(["metadata", "--format-version", "1"]).args(options))?;
    serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))
}

/// Runs a program and returns its output.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        let arguments = command.get_args().map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
        Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// A port that no TCP socket has.
pub(crate) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
