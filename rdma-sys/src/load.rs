//! Loading of the system's libraries, and look-up of their symbols.

use std::ffi::OsString;
use std::path::PathBuf;

#[cfg(not(feature = "linked"))]
use std::sync::OnceLock;

use libloading::os::unix::Library;

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
    // SAFETY: getauxval has no requirement.
    let is_trusted = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
    std::env::var_os(name).filter(|value| is_trusted && !value.is_empty())
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

/// A library could not be loaded. The text names every path that was tried, and the environment
/// variable that sets the path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{library} cannot be loaded: {}{}", list(.attempts), advice(.variable.name, *.from_environment))]
pub struct LoadError {
    library: &'static str,
    variable: &'static Variable,
    from_environment: bool,
    attempts: Vec<Attempt>,
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

    /// All attempts, in order; never empty.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }
}

fn list(attempts: &[Attempt]) -> String {
    let tried = |Attempt { path, reason }: &Attempt| format!("tried {}: {reason}", path.display());
    attempts.iter().map(tried).collect::<Vec<_>>().join("; ")
}

fn advice(variable: &str, from_environment: bool) -> String {
    if from_environment {
        format!(" (the path is from {variable})")
    } else {
        format!(" (install it, or set {variable} to its path)")
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
    let library = open(name, trusted_variable(name.variable.name))?;
    Ok(cell.get_or_init(|| fill(library)))
}

/// Loads the library for the rest of the program's life. Its threads, `atexit` handlers and
/// providers may run at any time, so its code must stay mapped.
#[cfg(not(feature = "linked"))]
fn open(name: Name, path: Option<OsString>) -> Result<&'static Library, LoadError> {
    let Name { library, sonames, variable } = name;
    let from_environment = path.is_some();
    let candidates = path.map_or_else(|| sonames.iter().map(OsString::from).collect(), |path| vec![path]);
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
    Err(LoadError { library, variable, from_environment, attempts })
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
        let error = open(IBVERBS, Some("/nonexistent/libibverbs.so.1".into())).unwrap_err();
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
        let text = open(name, None).unwrap_err().to_string();
        assert!(text.contains("tried libnot-there.so.1: libnot-there.so.1: cannot open shared object file"), "{text}");
        assert!(text.contains("; tried libnor-there.so.1: "), "{text}");
        assert!(text.contains("set RDMA_RDMACM_PATH"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error() {
        let text = open(IBVERBS, Some("/etc/passwd".into())).unwrap_err().to_string();
        assert!(text.contains("/etc/passwd"), "{text}");
        assert!(text.contains("file too short") || text.contains("invalid ELF header"), "{text}");
    }

    #[test]
    fn a_missing_symbol_is_none() {
        // Every Linux program is linked with the C library, so it can be loaded.
        let library = open(Name { sonames: &["libc.so.6"], ..IBVERBS }, None).unwrap();
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
