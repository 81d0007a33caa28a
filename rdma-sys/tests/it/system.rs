//! The system's libraries, where there are any: loading, the environment, missing symbols.

#![allow(missing_docs, reason = "a test")]

use std::ffi::CStr;

use rdma_sys::{Ibverbs, LoadError, RdmaCm, ibv_wc_status};

fn success() -> Result<String, LoadError> {
    let verbs = Ibverbs::system()?;
    // SAFETY: ibv_wc_status_str has no requirement: it takes a number.
    let text = unsafe { (verbs.ibv_wc_status_str)(ibv_wc_status::IBV_WC_SUCCESS) };
    // SAFETY: from_ptr requires a NUL-terminated string that lives: the function returns a
    // constant.
    Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[test]
fn the_systems_library_answers_or_its_absence_is_an_error() {
    match success() {
        Ok(text) => assert_eq!(text, "success"),
        Err(error) => {
            rdma_test_support::skip(&error.to_string());
            assert!(error.to_string().contains("tried libibverbs.so.1: "), "{error}");
        }
    }
    if let (Ok(one), Ok(two)) = (Ibverbs::system(), Ibverbs::system()) {
        assert!(std::ptr::eq(one, two));
    }
    if let Err(error) = RdmaCm::system() {
        assert!(error.to_string().contains("tried librdmacm.so.1: "), "{error}");
    }
}

#[cfg(not(feature = "linked"))]
mod loaded {
    use std::ptr::null_mut;

    use rdma_test_support::{Compiler, passes_alone};

    use super::*;

    #[test]
    fn the_environment_names_the_library() {
        passes_alone(
            &["system::loaded::from_a_path_that_does_not_exist"],
            &[("RDMA_IBVERBS_PATH", "/nonexistent/verbs.so")],
        );
        passes_alone(
            &["system::loaded::librdmacm_from_a_path_that_does_not_exist"],
            &[("RDMA_RDMACM_PATH", "/nonexistent/cm.so")],
        );
    }

    /// The user who starts a set-user-ID program must not choose the code that it runs.
    #[test]
    fn a_program_with_rights_of_its_own_takes_no_library_from_the_environment() {
        // Only root can give a file to another user.
        const NOBODY: u32 = 65534;
        let this = std::env::current_exe().unwrap();
        let program = concat!(env!("CARGO_TARGET_TMPDIR"), "/set-user-id");
        std::fs::copy(this, program).unwrap();
        if let Err(error) = std::os::unix::fs::chown(program, Some(NOBODY), None) {
            return rdma_test_support::skip(&format!("a file of another user: {error}"));
        }
        std::fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
        let mut command = std::process::Command::new(program);
        command.args(["--exact", "--ignored", "--nocapture", "system::loaded::in_a_set_user_id_program"]);
        let output = command.env("RDMA_IBVERBS_PATH", "/nonexistent/verbs.so").output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.contains(" 1 passed"), "{out}");
    }

    #[test]
    #[ignore = "run by a_program_with_rights_of_its_own_takes_no_library_from_the_environment"]
    fn in_a_set_user_id_program() {
        // SAFETY: getauxval has no requirement.
        if unsafe { libc::getauxval(libc::AT_SECURE) } == 0 {
            return rdma_test_support::skip("the file system ignores the set-user-ID bit");
        }
        if let Err(error) = Ibverbs::system() {
            assert_eq!(error.attempts()[0].path.to_str(), Some("libibverbs.so.1"));
        }
    }

    #[test]
    #[ignore = "run by the_environment_names_the_library"]
    fn from_a_path_that_does_not_exist() {
        let error = Ibverbs::system().unwrap_err();
        assert_eq!(error.attempts()[0].path.to_str(), Some("/nonexistent/verbs.so"));
        // A later call tries again.
        assert_eq!(Ibverbs::system().unwrap_err(), error);
    }

    #[test]
    #[ignore = "run by the_environment_names_the_library"]
    fn librdmacm_from_a_path_that_does_not_exist() {
        let error = RdmaCm::system().unwrap_err();
        assert_eq!((error.library(), error.variable().name), ("librdmacm", "RDMA_RDMACM_PATH"));
        assert_eq!(error.attempts()[0].path.to_str(), Some("/nonexistent/cm.so"));
    }

    /// A library with one function.
    #[test]
    fn a_symbol_that_the_library_lacks_is_unsupported() {
        let Some(compiler) = Compiler::find(concat!(env!("CARGO_TARGET_TMPDIR"), "/system")) else { return };
        let path = compiler.output("one.so");
        let source = "int ibv_fork_init(void) { return 42; }\n";
        let output = compiler.run("one", source, &["-shared", "-fPIC", "-o", &path]).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        passes_alone(&["system::loaded::with_one_function"], &[("RDMA_IBVERBS_PATH", &path)]);
    }

    #[test]
    #[ignore = "run by a_symbol_that_the_library_lacks_is_unsupported"]
    fn with_one_function() {
        let verbs = Ibverbs::system().unwrap();
        // SAFETY: the library's function takes nothing and returns a number.
        assert_eq!(unsafe { (verbs.ibv_fork_init)() }, 42);
        // SAFETY: the library lacks the function, and the one of this crate in its place uses no
        // argument.
        assert_eq!(unsafe { (verbs.ibv_dealloc_pd)(null_mut()) }, libc::EOPNOTSUPP);
        // SAFETY: the library lacks the function, and the one of this crate in its place uses no
        // argument.
        assert!(unsafe { (verbs.ibv_open_device)(null_mut()) }.is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
    }
}
