//! A program of its own, because the process's first attempt to open the device must be refused:
//! the errors that a program gets if the kernel refuses the system calls that the software device
//! needs.

use std::time::Duration;
use std::{io, thread};

use rdma::cm::EventChannel;
use rdma::{Device, ErrorKind, RemoteAccess, Verb};

/// Makes a system call fail with EPERM in this thread and the threads that it starts.
fn refuse(call: libc::c_long) -> io::Result<()> {
    const NUMBER: u32 = 0;
    let statement = |code: u32, k: u32| libc::sock_filter { code: u16::try_from(code).unwrap(), jt: 0, jf: 0, k };
    let load = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER);
    // Any other system call skips the refusal.
    let compare = libc::sock_filter {
        jf: 1,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, u32::try_from(call).unwrap())
    };
    let refusal = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let allowance = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW);
    let mut program = [load, compare, refusal, allowance];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: prctl with PR_SET_NO_NEW_PRIVS takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: prctl with PR_SET_SECCOMP requires a filter program of the stated length that lives
    // during the call: `filter` names the local `program` of 4 statements.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Opens the device where a system call is refused; `None` if the host does not support filters.
fn opened_without(call: libc::c_long) -> Option<Result<(), rdma::Error>> {
    let opening = thread::spawn(move || {
        refuse(call).ok()?;
        let device = Device::list().unwrap().into_iter().find(|device| device.name() == "soft0").unwrap();
        Some(device.open().map(drop))
    });
    opening.join().unwrap()
}

#[test]
fn a_refused_system_call_is_named() {
    // The first attempt to open the device would start its thread; it fails before that.
    let calls = [
        (libc::SYS_epoll_create1, "epoll_create1"),
        (libc::SYS_eventfd2, "eventfd2"),
        (libc::SYS_timerfd_settime, "timerfd_settime"),
    ];
    for (number, call) in calls {
        let Some(opened) = opened_without(number) else { return };
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RefusedCall(call));
        let text = error.to_string();
        assert!(text.contains(call) && !text.contains("/dev/infiniband"), "{text}");
    }
    // A refusal is not permanent: the next attempt succeeds.
    let device = Device::list().unwrap().into_iter().find(|device| device.name() == "soft0").unwrap();
    let pd = device.open().unwrap().alloc_pd().unwrap();
    // Nor does a refusal that concerns memory alone speak of devices.
    let allocating = thread::spawn(move || {
        refuse(libc::SYS_memfd_create).ok()?;
        Some(pd.allocate_exposed(4096, RemoteAccess::READ).map(drop))
    });
    let error = allocating.join().unwrap().expect("filters work").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RefusedCall("memfd_create"), "{error}");
    assert!(!error.to_string().contains("/dev/infiniband"), "{error}");
    // Registration has another way to check whether memory is mapped.
    assert!(opened_without(libc::SYS_madvise).is_none_or(|opened| opened.is_ok()));
    refused_waits_name_their_system_call();
}

/// A part of the test above: it opens the device, which that test must be the first to do.
fn refused_waits_name_their_system_call() {
    let device = Device::list().unwrap().into_iter().find(|device| device.name() == "soft0").unwrap();
    let context = device.open().unwrap();
    let cq = context.create_cq(1).unwrap();
    let channel = EventChannel::of(&context).unwrap();
    let waiting = thread::spawn(move || {
        refuse(libc::SYS_ppoll).ok()?;
        // So long that it has not passed before the first call.
        let long = Some(Duration::from_secs(600));
        let mut poller = cq.poller();
        Some([poller.wait(long).map(drop).unwrap_err(), channel.next_event(long).map(drop).unwrap_err()])
    });
    let Some(errors) = waiting.join().unwrap() else { return };
    for (error, operation) in errors.into_iter().zip([Verb::GetCqEvent, Verb::GetCmEvent]) {
        assert_eq!((error.verb(), error.kind()), (operation, ErrorKind::RefusedCall("ppoll")));
        let text = error.to_string();
        assert!(
            text.contains("ppoll") && !text.contains("epoll_create1") && !text.contains("/dev/infiniband"),
            "{text}"
        );
    }
}
