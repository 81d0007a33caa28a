//! Finds a C compiler and rdma-core's headers: the system's, or those in `RDMA_CORE_INCLUDE`.

use std::{
    ffi::OsString,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Prints past the test harness, which shows nobody what a passing test prints.
pub(crate) fn say(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// A compiler that can read the headers.
#[derive(Debug)]
pub(crate) struct Compiler {
    program: OsString,
    include: Option<OsString>,
    folder: PathBuf,
}

impl Compiler {
    /// The compiler in `CC`, or `cc`. Without one, or without headers, the test counts as skipped, and in CI as failed.
    pub(crate) fn find(test: &str) -> Option<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        std::fs::create_dir_all(&folder).expect("cargo's folder for tests is writable");
        let program = set("CC").unwrap_or_else(|| "cc".into());
        let compiler = Self { program, include: set("RDMA_CORE_INCLUDE"), folder };
        let reason = match compiler.run(
            "probe",
            "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n",
            &["-fsyntax-only"],
        ) {
            Ok(output) if output.status.success() => return Some(compiler),
            Ok(output) => format!("no headers of rdma-core: {}", String::from_utf8_lossy(&output.stderr).trim()),
            Err(error) => format!("no C compiler ({:?}): {error}", compiler.program),
        };
        assert!(std::env::var_os("CI").is_none_or(|value| value != "true"), "in CI, this test must run: {reason}");
        say(&format!("SKIPPED {test}: {reason}"));
        None
    }

    /// Whether the headers are the newest: those from which the bindings were made.
    #[allow(dead_code, reason = "not every test asks")]
    pub(crate) fn newest(&self) -> bool {
        self.include.is_some()
    }

    /// Compiles `source`.
    pub(crate) fn run(&self, name: &str, source: &str, arguments: &[&str]) -> std::io::Result<Output> {
        let path = self.folder.join(name).with_extension("c");
        std::fs::write(&path, source)?;
        let mut command = Command::new(&self.program);
        if let Some(include) = &self.include {
            command.arg("-isystem").arg(include);
        }
        command.env("LC_ALL", "C").arg("-std=gnu11").args(arguments).arg(path).output()
    }

    /// A path for what the compiler makes.
    #[allow(dead_code, reason = "not every test makes something")]
    pub(crate) fn output(&self, name: &str) -> String {
        self.folder.join(name).into_os_string().into_string().expect("cargo's paths are UTF-8 here")
    }
}
