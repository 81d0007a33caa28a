//! The functions of `rsocket.h` on the software device.

use std::ffi::{c_int, c_void};

use libc::{epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, timeval};
use rdma_rsocket::{Descriptors, Libraries};

use crate::cancel::Pending;

static SOCKETS: Descriptors = Descriptors::new();

// SAFETY: `new` requires tables of one implementation: both are the software device's.
const LIBRARIES: Libraries = unsafe { Libraries::new(&crate::VERBS, &crate::CM) };

/// A new socket.
pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let _pending = Pending::new();
    SOCKETS.rsocket(LIBRARIES, domain, kind, protocol)
}

/// C's variable argument is an `int` for the commands that take one. The calling conventions of
/// x86_64 and aarch64 pass it like a third parameter.
pub(crate) extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_int) -> c_int {
    let _pending = Pending::new();
    SOCKETS.rfcntl(socket, command, argument)
}

/// Functions with the signatures of `rsocket.h`, by methods of the same names. Those in the second
/// list have pointers.
macro_rules! functions {
    (
        safe { $(fn $safe:ident($($safe_arg:ident: $safe_ty:ty),*) -> $safe_ret:ty;)* }
        unsafe { $(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)* }
    ) => {
        $(pub(crate) extern "C" fn $safe($($safe_arg: $safe_ty),*) -> $safe_ret {
            let _pending = Pending::new();
            SOCKETS.$safe($($safe_arg),*)
        })*
        $(
            /// # Safety
            ///
            /// The arguments are valid as the function's manual page says.
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                let _pending = Pending::new();
                // SAFETY: the method requires arguments that are valid as for its C namesake, by
                // this function's condition.
                unsafe { SOCKETS.$name($($arg),*) }
            }
        )*
    };
}

functions! {
    safe {
        fn rlisten(socket: c_int, backlog: c_int) -> c_int;
        fn rshutdown(socket: c_int, how: c_int) -> c_int;
        fn rclose(socket: c_int) -> c_int;
        fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int;
        fn repoll_create(flags: c_int) -> c_int;
    }
    unsafe {
        fn rbind(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int;
        fn raccept(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
        fn rconnect(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int;
        fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize;
        fn rrecvfrom(
            socket: c_int, buf: *mut c_void, len: usize, flags: c_int, src: *mut sockaddr, addrlen: *mut socklen_t
        ) -> isize;
        fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> isize;
        fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize;
        fn rsendto(
            socket: c_int, buf: *const c_void, len: usize, flags: c_int, dest: *const sockaddr, addrlen: socklen_t
        ) -> isize;
        fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> isize;
        fn rread(socket: c_int, buf: *mut c_void, count: usize) -> isize;
        fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize;
        fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize;
        fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize;
        fn riomap(
            socket: c_int, buf: *mut c_void, len: usize, prot: c_int, flags: c_int, offset: off_t
        ) -> off_t;
        fn riowrite(socket: c_int, buf: *const c_void, count: usize, offset: off_t, flags: c_int) -> isize;
        fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int;
        fn rselect(
            nfds: c_int, readfds: *mut fd_set, writefds: *mut fd_set, exceptfds: *mut fd_set, timeout: *mut timeval
        ) -> c_int;
        fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
        fn repoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int;
        fn rgetpeername(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
        fn rgetsockname(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
        fn rsetsockopt(
            socket: c_int, level: c_int, optname: c_int, optval: *const c_void, optlen: socklen_t
        ) -> c_int;
        fn rgetsockopt(
            socket: c_int, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut socklen_t
        ) -> c_int;
    }
}
