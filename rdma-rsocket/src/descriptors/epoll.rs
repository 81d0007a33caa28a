//! `repoll_create`, `repoll_ctl`, `repoll_wait`: epoll(7) for rsockets and plain descriptors.

use std::mem::MaybeUninit;
use std::slice;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use libc::{c_int, epoll_event};
use nix::errno::Errno;

use super::{Answer, Descriptors, done, int};
use crate::epoll::{Epoll, Target};

impl Descriptors {
    /// `repoll_create`: a list of rsockets and descriptors. Of the flags, `EPOLL_CLOEXEC` has an
    /// effect. `rclose` ends the list. Its number is no descriptor to poll.
    pub fn repoll_create(&self, flags: c_int) -> c_int {
        int(Epoll::new(flags & libc::EPOLL_CLOEXEC != 0).map_err(Into::into).map(|list| {
            let number = list.number();
            // The number is a descriptor that the list owns, so no other list has it.
            self.lists.get().write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(list));
            number
        }))
    }

    fn list(&self, number: c_int) -> Option<Arc<Epoll>> {
        self.lists.get().read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Ends a list; `None` if the number is not one's.
    pub(super) fn close_list(&self, number: c_int) -> Option<()> {
        let removed = self.lists.get().write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        removed.map(|list| list.close())
    }

    /// `repoll_ctl`: adds, changes or removes an entry. As epoll_ctl(2), it fails with -1 and
    /// `errno`.
    ///
    /// # Safety
    ///
    /// The event is NULL or valid for reads.
    pub unsafe fn repoll_ctl(&self, epfd: c_int, op: c_int, fd: c_int, event: *const epoll_event) -> c_int {
        // SAFETY: as_ref requires NULL or a valid event, by this function's condition.
        let event = unsafe { event.as_ref() }.copied();
        done(self.control(epfd, op, fd, event))
    }

    fn control(&self, epfd: c_int, op: c_int, fd: c_int, event: Option<epoll_event>) -> Answer<()> {
        let list = self.list(epfd).ok_or(Errno::EBADF)?;
        // A list in a list would have to be ready with it.
        if self.list(fd).is_some() {
            return Err(Errno::EINVAL.into());
        }
        match op {
            libc::EPOLL_CTL_ADD => {
                let target = self.find(fd).map_or(Target::Descriptor, |socket| Target::Socket(Arc::downgrade(&socket)));
                list.add(fd, target, event.ok_or(Errno::EFAULT)?)?;
            }
            libc::EPOLL_CTL_MOD => list.modify(fd, event.ok_or(Errno::EFAULT)?)?,
            libc::EPOLL_CTL_DEL => list.remove(fd)?,
            _ => return Err(Errno::EINVAL.into()),
        }
        Ok(())
    }

    /// `repoll_wait`: waits until entries of the list are ready, -1 milliseconds without end. As
    /// epoll_wait(2), it returns the number of events, or -1 with `errno`.
    ///
    /// # Safety
    ///
    /// `events` is NULL, or valid for writes of `maxevents` events.
    pub unsafe fn repoll_wait(&self, epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int {
        let room = match usize::try_from(maxevents) {
            Ok(0) | Err(_) => return done(Err(Errno::EINVAL.into())),
            Ok(_) if events.is_null() => return done(Err(Errno::EFAULT.into())),
            // SAFETY: from_raw_parts_mut requires memory for `maxevents` events that nobody else
            // uses meanwhile, by this function's condition and the check; it needs no values.
            Ok(count) => unsafe { slice::from_raw_parts_mut(events.cast::<MaybeUninit<epoll_event>>(), count) },
        };
        // A negative time is no limit.
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let count = self.list(epfd).ok_or(Errno::EBADF).and_then(|list| list.wait(room, deadline));
        int(count.map(|count| c_int::try_from(count).unwrap_or(c_int::MAX)).map_err(Into::into))
    }
}
