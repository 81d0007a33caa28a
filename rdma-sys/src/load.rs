//! Finding the system's libraries, and the symbols in them.

use std::{ffi::CStr, fmt, path::PathBuf};

#[cfg(not(feature = "linked"))]
use std::{ffi::OsString, sync::OnceLock};

#[cfg(not(feature = "linked"))]
use libloading::os::unix::Library;

/// A library that this crate knows how to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    /// As its documentation calls it.
    library: &'static str,
    /// The names under which the dynamic loader may know it, the best first.
    #[cfg(not(feature = "linked"))]
    sonames: &'static [&'static str],
    /// The environment variable that holds a path to use instead.
    variable: &'static str,
}

#[cfg(not(feature = "linked"))]
pub(crate) const IBVERBS: Name =
    Name { library: "libibverbs", sonames: &["libibverbs.so.1"], variable: "RDMA_IBVERBS_PATH" };
#[cfg(not(feature = "linked"))]
pub(crate) const RDMACM: Name =
    Name { library: "librdmacm", sonames: &["librdmacm.so.1"], variable: "RDMA_RDMACM_PATH" };

/// A library could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    name: Name,
    from_environment: bool,
    attempts: Vec<Attempt>,
}

/// One path that was tried in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The path, or a bare name for the dynamic loader to search.
    pub path: PathBuf,
    /// Why it failed, in the dynamic loader's words.
    pub reason: String,
}

impl LoadError {
    /// The library's name, such as `libibverbs`.
    #[must_use]
    pub fn library(&self) -> &'static str {
        self.name.library
    }

    /// The environment variable that sets the library's path.
    #[must_use]
    pub fn variable(&self) -> &'static str {
        self.name.variable
    }

    /// Everything that was tried, in order; not empty.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Name { library, variable, .. } = self.name;
        write!(f, "{library} cannot be loaded: ")?;
        for (index, Attempt { path, reason }) in self.attempts.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}tried {}: {reason}", path.display())?;
        }
        if self.from_environment {
            write!(f, " (the path is from {variable})")
        } else {
            write!(f, " (install it, or set {variable} to its path)")
        }
    }
}

impl std::error::Error for LoadError {}

/// The table in `cell`, filled from the library if this is the first call that finds it.
#[cfg(not(feature = "linked"))]
pub(crate) fn load_once<T>(
    cell: &'static OnceLock<T>,
    name: Name,
    fill: fn(&'static Library) -> T,
) -> Result<&'static T, LoadError> {
    if let Some(table) = cell.get() {
        return Ok(table);
    }
    let library = open(name, std::env::var_os(name.variable))?;
    Ok(cell.get_or_init(|| fill(library)))
}

/// Loads the library for the rest of the program's life: its threads, `atexit` handlers and providers may run at any
/// time, so code that was mapped once must stay.
#[cfg(not(feature = "linked"))]
fn open(name: Name, path: Option<OsString>) -> Result<&'static Library, LoadError> {
    let path = path.filter(|path| !path.is_empty());
    let from_environment = path.is_some();
    let candidates: Vec<OsString> = match path {
        Some(path) => vec![path],
        None => name.sonames.iter().map(OsString::from).collect(),
    };
    let mut attempts = Vec::new();
    for path in candidates {
        // SAFETY: the initialisers of the library run here. rdma-core's ask nothing of the caller; a path from the
        // environment is the user's choice of code to run, as LD_PRELOAD is.
        match unsafe { Library::open(Some(&path), libc::RTLD_NOW | libc::RTLD_LOCAL) } {
            Ok(library) => return Ok(Box::leak(Box::new(library))),
            Err(error) => attempts.push(Attempt { path: path.into(), reason: reason(&error) }),
        }
    }
    Err(LoadError { name, from_environment, attempts })
}

/// What `dlerror` said: libloading's own text only says that `dlopen` failed.
#[cfg(not(feature = "linked"))]
fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { desc } => format!("{desc:?}").trim_matches('"').to_owned(),
        other => other.to_string(),
    }
}

/// The function of that NUL-terminated name, or `None` if the library has none.
///
/// # Safety
///
/// `F` is a function pointer type, and the symbol, if it exists, is a function of that type in a library that stays
/// loaded: what is returned does not borrow `library`.
#[cfg(not(feature = "linked"))]
pub(crate) unsafe fn symbol<F: Copy>(library: &'static Library, name: &str) -> Option<F> {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
    // SAFETY: the caller promises that `F` is the symbol's type. libloading checks that it has a pointer's size.
    let symbol = unsafe { library.get::<Option<F>>(name.to_bytes_with_nul()) }.ok()?;
    *symbol
}

/// The function of that NUL-terminated name in the running program and what it is linked with.
///
/// # Safety
///
/// As `symbol`.
#[cfg(feature = "linked")]
pub(crate) unsafe fn symbol_of_program<F: Copy>(name: &str) -> Option<F> {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
    let program = libloading::os::unix::Library::this();
    // SAFETY: the caller promises that `F` is the symbol's type. libloading checks that it has a pointer's size.
    let symbol = unsafe { program.get::<Option<F>>(name.to_bytes_with_nul()) }.ok()?;
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
        // An empty variable is as good as none.
        let text = open(name, Some("".into())).unwrap_err().to_string();
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
        // Every Linux program is linked with the C library, so this one is there.
        let library = open(Name { sonames: &["libc.so.6"], ..IBVERBS }, None).unwrap();
        type GetPid = unsafe extern "C" fn() -> libc::pid_t;
        // SAFETY: getpid(2) has this type.
        let getpid: Option<GetPid> = unsafe { symbol(library, "getpid\0") };
        // SAFETY: it takes nothing and cannot fail.
        let pid = unsafe { getpid.unwrap()() };
        assert_eq!(u32::try_from(pid), Ok(std::process::id()));
        // SAFETY: there is no such symbol.
        let none: Option<GetPid> = unsafe { symbol(library, "ibv_not_there\0") };
        assert!(none.is_none());
    }
}
