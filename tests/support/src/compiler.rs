//! A C compiler and rdma-core's headers: the system's, or those in `RDMA_CORE_INCLUDE`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::lacks;

/// A compiler that can read the headers.
#[derive(Debug)]
pub struct Compiler {
    program: OsString,
    include: Option<OsString>,
    folder: PathBuf,
}

impl Compiler {
    /// Finds the compiler in `CC`, or `cc`, and lets it work in `folder`. Without a compiler or the
    /// headers, the test counts as skipped, and in CI as failed.
    ///
    /// # Panics
    ///
    /// If the folder cannot be created; in CI, if there is no compiler.
    #[must_use]
    pub fn find(folder: impl AsRef<Path>) -> Option<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = folder.as_ref().to_owned();
        std::fs::create_dir_all(&folder).expect("a writable folder");
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
        lacks(&reason);
        None
    }

    /// Whether the headers are the newest: those from which the bindings were generated.
    #[must_use]
    pub fn newest(&self) -> bool {
        self.include.is_some()
    }

    /// Compiles `source`.
    ///
    /// # Errors
    ///
    /// If the compiler cannot be started.
    pub fn run(&self, name: &str, source: &str, arguments: &[&str]) -> std::io::Result<Output> {
        let path = self.folder.join(name).with_extension("c");
        std::fs::write(&path, source)?;
        let mut command = Command::new(&self.program);
        if let Some(include) = &self.include {
            command.arg("-isystem").arg(include);
        }
        command.env("LC_ALL", "C").arg("-std=gnu11").args(arguments).arg(path).output()
    }

    /// A path for an output of the compiler.
    ///
    /// # Panics
    ///
    /// If the folder's name is not UTF-8.
    #[must_use]
    pub fn output(&self, name: &str) -> String {
        self.folder.join(name).into_os_string().into_string().expect("cargo's paths are UTF-8 here")
    }
}
