//! Runs programs with a time limit and checks their output.

use std::io::Read;
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{LIMIT, lacks};

/// Waits for a program and collects its output.
///
/// # Panics
///
/// If the program still runs after [`LIMIT`].
#[must_use]
pub fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + LIMIT;
    // Reads while the program runs: a full pipe would stop it.
    let out = child.stdout.take().map(read_all);
    let err = child.stderr.take().map(read_all);
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().expect("a child");
            let _reaped = child.wait();
            let said = err.map(|reader| reader.join().expect("a reader")).unwrap_or_default();
            panic!("still running after {LIMIT:?}: {}", text(&said));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let collect =
        |reader: Option<JoinHandle<Vec<u8>>>| reader.map(|it| it.join().expect("a reader")).unwrap_or_default();
    Output { status, stdout: collect(out), stderr: collect(err) }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe");
        bytes
    })
}

/// Converts output to text.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks that a program has succeeded, and returns its standard output.
///
/// # Panics
///
/// If the program has failed.
#[must_use]
pub fn has_succeeded(what: &str, output: &Output) -> String {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
    out
}

/// Checks that a program has failed with one line on standard error that contains `part`, beside
/// the line that says which device it uses.
///
/// # Panics
///
/// If the program has succeeded or panicked, or printed anything else.
pub fn has_failed(what: &str, output: &Output, part: &str) {
    let err = text(&output.stderr);
    assert!(!output.status.success(), "{what} succeeded");
    assert!(output.status.code().is_some_and(|code| code != 101), "{what}: {}\n{err}", output.status);
    // On a loaded machine, a program may also say that it waits for a peer.
    let lines = err.lines().filter(|line| !["waiting for ", "using "].iter().any(|begin| line.starts_with(begin)));
    assert_eq!(lines.count(), 1, "{what}: more or less than one line:\n{err}");
    assert!(err.contains(part), "{what}: {part:?} is not in {err}");
}

/// Connects to a program that has just been started.
///
/// # Panics
///
/// If the program does not listen within [`LIMIT`].
#[must_use]
pub fn connect(address: &str) -> TcpStream {
    let deadline = Instant::now() + LIMIT;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a tool that the test needs is installed. Without the tool the test counts as skipped,
/// and in CI as failed.
///
/// # Panics
///
/// If `CI` is `true` and the tool is missing.
#[must_use]
pub fn has(tool: &str, package: &str) -> bool {
    let reason = match Command::new(tool).arg("--version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => format!("{tool} --version ended with {}", output.status),
        Err(error) => format!("no {tool} (Debian's {package}): {error}"),
    };
    lacks(&reason);
    false
}
