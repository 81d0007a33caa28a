//! Loading of the system's libraries, and look-up of their symbols.

use std::env::consts::OS;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

#[cfg(not(feature = "linked"))]
use std::sync::OnceLock;

use libloading::os::unix::Library;

use crate::os;

/// An environment variable that this workspace reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// The variable's name.
    pub name: &'static str,
    /// The values that the variable may have, in words.
    pub values: &'static str,
}

#[cfg(not(feature = "linked"))]
const LIBRARY_PATH: &str = "the path of a library that can be loaded";
#[cfg(not(feature = "linked"))]
static IBVERBS_PATH: Variable = Variable { name: "RDMA_IBVERBS_PATH", values: LIBRARY_PATH };
#[cfg(not(feature = "linked"))]
static RDMACM_PATH: Variable = Variable { name: "RDMA_RDMACM_PATH", values: LIBRARY_PATH };

/// The value of an environment variable that decides which code a process runs, or whether the
/// process lives. `None` if the variable is unset or empty, or if the process has rights that its
/// caller lacks (a set-user-ID program): then the caller chose the environment, and the dynamic
/// loader ignores `LD_PRELOAD`, too.
#[must_use]
pub fn trusted_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !os::is_privileged() && !value.is_empty())
}

/// A library that this crate can load.
#[cfg(not(feature = "linked"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name {
    /// The library's usual name, for messages.
    library: &'static str,
    /// The file names that the dynamic loader searches for, the best first.
    sonames: &'static [&'static str],
    /// The environment variable that can hold a path to use instead.
    variable: &'static Variable,
}

#[cfg(not(feature = "linked"))]
pub(crate) static IBVERBS: Name =
    Name { library: "libibverbs", sonames: &["libibverbs.so.1"], variable: &IBVERBS_PATH };
#[cfg(not(feature = "linked"))]
pub(crate) static RDMACM: Name = Name { library: "librdmacm", sonames: &["librdmacm.so.1"], variable: &RDMACM_PATH };

/// The obstacle to this program, if there is one.
#[cfg(not(feature = "linked"))]
const OBSTACLE: Option<Obstacle> = if cfg!(not(target_os = "linux")) {
    Some(Obstacle::NotLinux)
} else if cfg!(all(target_env = "musl", target_feature = "crt-static")) {
    Some(Obstacle::Static)
} else {
    None
};

/// A library could not be loaded. The text names every path that was tried, and the environment
/// variable that sets the path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{library} cannot be loaded: {}", self.reason())]
pub struct LoadError {
    library: &'static str,
    variable: &'static Variable,
    from_environment: bool,
    attempts: Vec<Attempt>,
    obstacle: Option<Obstacle>,
}

/// The reason why a program can load no library at all, whatever is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The program does not run on Linux, and the bindings are Linux's.
    NotLinux,
    /// The program is linked statically with musl, whose `dlopen` then always fails.
    Static,
}

impl Obstacle {
    /// Advice on how to get past the obstacle.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NotLinux => "run the program on Linux",
            Self::Static => "link the program dynamically: RUSTFLAGS=-Ctarget-feature=-crt-static",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLinux => write!(f, "RDMA verbs need Linux; this is {OS}"),
            Self::Static => f.write_str("a program that is linked statically with musl can load no library"),
        }
    }
}

/// One path from which a library could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The path, or a bare name for the dynamic loader to search.
    pub path: PathBuf,
    /// The reason, in the dynamic loader's words.
    pub reason: String,
}

impl LoadError {
    /// The library's name, such as `libibverbs`.
    #[must_use]
    pub fn library(&self) -> &'static str {
        self.library
    }

    /// The environment variable that sets the library's path: `RDMA_IBVERBS_PATH` or
    /// `RDMA_RDMACM_PATH`.
    #[must_use]
    pub fn variable(&self) -> &'static Variable {
        self.variable
    }

    /// All attempts, in order; empty only on a system other than Linux, where nothing is tried.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Why this program can load no library at all; `None` if it loads one that is installed.
    #[must_use]
    pub fn obstacle(&self) -> Option<Obstacle> {
        self.obstacle
    }

    /// The attempts, with advice.
    fn reason(&self) -> String {
        let tried = |Attempt { path, reason }: &Attempt| format!("tried {}: {reason}", path.display());
        let attempts = self.attempts.iter().map(tried).collect::<Vec<_>>().join("; ");
        let variable = self.variable.name;
        match self.obstacle {
            Some(obstacle @ Obstacle::NotLinux) => obstacle.to_string(),
            Some(obstacle) => format!("{attempts} ({obstacle}; {})", obstacle.remedy()),
            None if self.from_environment => format!("{attempts} (the path is from {variable})"),
            None => format!("{attempts} (install it, or set {variable} to its path)"),
        }
    }
}

/// Returns the table in `cell`; the first call that finds the library fills the table from it.
#[cfg(not(feature = "linked"))]
pub(crate) fn load_once<T>(
    cell: &'static OnceLock<T>,
    name: Name,
    fill: fn(&'static Library) -> T,
) -> Result<&'static T, LoadError> {
    if let Some(table) = cell.get() {
        return Ok(table);
    }
    let library = open(name, trusted_variable(name.variable.name), OBSTACLE)?;
    Ok(cell.get_or_init(|| fill(library)))
}

/// Loads the library for the rest of the program's life. Its threads, `atexit` handlers and
/// providers may run at any time, so its code must stay mapped.
#[cfg(not(feature = "linked"))]
fn open(name: Name, path: Option<OsString>, obstacle: Option<Obstacle>) -> Result<&'static Library, LoadError> {
    let Name { library, sonames, variable } = name;
    let from_environment = path.is_some();
    let candidates = match path {
        // A library of that name would have other layouts than the bindings.
        _ if obstacle == Some(Obstacle::NotLinux) => Vec::new(),
        Some(path) => vec![path],
        None => sonames.iter().map(OsString::from).collect(),
    };
    let mut attempts = Vec::new();
    for path in candidates {
        // SAFETY: open requires that the library's initialisers may run. rdma-core's demand nothing
        // of a program; a path from the environment is the user's choice of code to run, as
        // LD_PRELOAD is, and `trusted_variable` has refused those of another user.
        match unsafe { Library::open(Some(&path), libc::RTLD_NOW | libc::RTLD_LOCAL) } {
            Ok(library) => return Ok(Box::leak(Box::new(library))),
            Err(error) => attempts.push(Attempt { path: path.into(), reason: reason(&error) }),
        }
    }
    Err(LoadError { library, variable, from_environment, attempts, obstacle })
}

/// The text of `dlerror`, because libloading's own text only says that `dlopen` failed.
#[cfg(not(feature = "linked"))]
fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { desc } => format!("{desc:?}").trim_matches('"').to_owned(),
        other => other.to_string(),
    }
}

/// Looks up a function by name; `None` if the library lacks it.
///
/// # Safety
///
/// `F` is a function pointer type, and the symbol, if it exists, is a function of that type, whose
/// code stays loaded: the result does not borrow `library`.
pub(crate) unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: get requires the symbol's type. An `Option` of a function pointer has the pointer's
    // layout, and `F` is the function's type by this function's condition. libloading checks the
    // size.
    let symbol = unsafe { library.get::<Option<F>>(name.as_bytes()) }.ok()?;
    *symbol
}

#[cfg(all(test, not(feature = "linked")))]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_says_what_was_tried() {
        let error = open(IBVERBS, Some("/nonexistent/libibverbs.so.1".into()), None).unwrap_err();
        assert_eq!(error.library(), "libibverbs");
        assert_eq!(error.attempts().len(), 1);
        assert_eq!(error.attempts()[0].path, PathBuf::from("/nonexistent/libibverbs.so.1"));
        let text = error.to_string();
        assert!(text.contains("libibverbs cannot be loaded: tried /nonexistent/libibverbs.so.1: "), "{text}");
        assert!(text.contains("No such file"), "{text}");
        assert!(text.contains("the path is from RDMA_IBVERBS_PATH"), "{text}");
    }

    #[test]
    fn every_name_that_was_searched_is_in_the_error() {
        let name = Name { sonames: &["libnot-there.so.1", "libnor-there.so.1"], ..RDMACM };
        let text = open(name, None, None).unwrap_err().to_string();
        assert!(text.contains("tried libnot-there.so.1: libnot-there.so.1: cannot open shared object file"), "{text}");
        assert!(text.contains("; tried libnor-there.so.1: "), "{text}");
        assert!(text.contains("set RDMA_RDMACM_PATH"), "{text}");
    }

    /// Even a library that is there stays unloaded: its layouts are not those of the bindings.
    #[test]
    fn nothing_is_tried_on_a_system_other_than_linux() {
        let error = open(IBVERBS, Some("libc.so.6".into()), Some(Obstacle::NotLinux)).unwrap_err();
        assert_eq!(error.to_string(), format!("libibverbs cannot be loaded: RDMA verbs need Linux; this is {OS}"));
        assert!(error.attempts().is_empty() && error.obstacle() == Some(Obstacle::NotLinux));
    }

    #[test]
    fn a_static_program_learns_that_no_installation_would_help() {
        let name = Name { sonames: &["libnot-there.so.1"], ..IBVERBS };
        let text = open(name, None, Some(Obstacle::Static)).unwrap_err().to_string();
        assert!(text.contains("tried libnot-there.so.1: "), "{text}");
        assert!(text.contains("linked statically with musl") && text.contains("-crt-static"), "{text}");
        assert!(!text.contains("install it"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error() {
        let text = open(IBVERBS, Some("/etc/passwd".into()), None).unwrap_err().to_string();
        assert!(text.contains("/etc/passwd"), "{text}");
        assert!(text.contains("file too short") || text.contains("invalid ELF header"), "{text}");
    }

    #[test]
    fn a_missing_symbol_is_none() {
        // Every Linux program is linked with the C library, so it can be loaded.
        let library = open(Name { sonames: &["libc.so.6"], ..IBVERBS }, None, None).unwrap();
        type GetPid = unsafe extern "C" fn() -> libc::pid_t;
        // SAFETY: symbol requires the symbol's type, which is that of getpid(2), in a library that
        // stays loaded: `open` never unloads one.
        let getpid: Option<GetPid> = unsafe { symbol(library, "getpid") };
        // SAFETY: getpid has no requirement.
        let pid = unsafe { getpid.unwrap()() };
        assert_eq!(u32::try_from(pid), Ok(std::process::id()));
        // SAFETY: symbol requires the type of a symbol that exists, and this one does not.
        let none: Option<GetPid> = unsafe { symbol(library, "ibv_not_there") };
        assert!(none.is_none());
    }
}
