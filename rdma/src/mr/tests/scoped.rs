//! Attacks on memory that is registered while it is borrowed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::ErrorKind;
use crate::pd::ProtectionDomain;
use crate::testing;

fn domain() -> ProtectionDomain {
    testing::context().alloc_pd().unwrap()
}

#[test]
fn memory_is_registered_while_the_body_runs() {
    let pd = domain();
    let mut words = [1_u32, 2, 3];
    let sum = pd.register_scoped(&mut words, |memory| {
        assert_eq!((testing::live("mr"), memory.len()), (1, 3));
        memory[2] = 4;
        assert_eq!(memory.lend_mut(1..).lent.len, 8);
        assert_eq!(memory.lend(..1).lent.len, 4);
        memory.iter().sum::<u32>()
    });
    assert_eq!((sum.unwrap(), words, testing::live("mr")), (7, [1, 2, 4], 0));
}

#[test]
fn a_refused_registration_runs_no_body() {
    let pd = domain();
    let refused = pd.register_scoped(&mut [0_u8; 0], |_| panic!("without memory"));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    let refused = pd.register_scoped(&mut [[0_u64; 0]; 3], |_| panic!("without bytes"));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    testing::fail("reg_mr", libc::ENOMEM);
    let refused = pd.register_scoped(&mut [0_u8; 8], |_| panic!("without a region"));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(testing::live("mr"), 0);
}

#[test]
fn a_body_that_panics_leaves_nothing_registered() {
    let (pd, mut bytes) = (domain(), [0_u8; 8]);
    let body = || pd.register_scoped(&mut bytes, |memory| memory.lend(..9).lent.len);
    let panic = catch_unwind(AssertUnwindSafe(body)).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "the range lies in the memory");
    assert_eq!(testing::live("mr"), 0);
}

#[test]
fn scopes_nest() {
    let (pd, mut outer, mut inner) = (domain(), [1_u8; 8], [2_u8; 4]);
    let copied = pd.register_scoped(&mut outer, |outer| {
        pd.register_scoped(&mut inner, |inner| {
            outer[..4].copy_from_slice(inner);
            testing::live("mr")
        })
    });
    assert_eq!((copied.unwrap().unwrap(), testing::live("mr")), (2, 0));
    assert_eq!(outer, [2, 2, 2, 2, 1, 1, 1, 1]);
}

#[test]
#[cfg(not(miri))] // which has no fork
fn a_child_that_is_forked_within_the_body_goes_on() {
    let (pd, mut bytes) = (domain(), [1_u8; 8]);
    // SAFETY: fork requires a child that calls no function that needs a lock of another thread: the
    // child leaves the body, which deregisters nothing there, and calls _exit.
    let child = pd.register_scoped(&mut bytes, |_| unsafe { libc::fork() }).unwrap();
    if child == 0 {
        let quiet = bytes == [1; 8] && testing::live("mr") == 1;
        // SAFETY: _exit has no requirements.
        unsafe { libc::_exit(if quiet { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waitpid requires space for a status: a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((status, testing::live("mr")), (0, 0));
}

#[test]
#[cfg(not(miri))] // which starts no process
fn memory_that_stays_registered_aborts_the_process() {
    const MARK: &str = "RDMA_TEST_REGISTRATION_ABORTS";
    if std::env::var_os(MARK).is_none() {
        let name = "mr::tests::scoped::memory_that_stays_registered_aborts_the_process";
        let output = rdma_test_support::alone(&[name]).env(MARK, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("about to end") && !text.contains("returned"), "{text}");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(libc::SIGABRT));
        return;
    }
    // The panic of the body does not unwind past memory that the device may access.
    let ended = catch_unwind(|| {
        domain().register_scoped(&mut [0_u8; 8], |_| {
            testing::fail("dereg_mr", libc::EBUSY);
            println!("about to end");
            panic!("the body's");
        })
    });
    println!(
        "returned {:?}",
        ended.map(|ended| ended.map_err(|error| error.verb() == crate::error::Verb::DeregisterMr)).is_ok()
    );
}
