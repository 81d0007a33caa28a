//! The handle of the peer's notifications.

use std::future::poll_fn;
use std::sync::Arc;

use super::core::Core;
use crate::failure::Failure;
use crate::waiters::Place;

/// The notifications of a connection's peer: numbers of 32 bits that the peer's
/// [`write_imm`](super::Remote::write_imm) leaves, each once its bytes are in the memory of this
/// side.
///
/// Tasks wait for the [next](Self::next) number, or [count](Self::count) equal ones, whatever comes
/// between them. A number goes to one task: to the first that counts it, else to the one that waits
/// for the next.
///
/// Numbers for which nobody waits are kept, up to
/// [`NodeOptions::notifications`](crate::NodeOptions::notifications); then the peer has to wait.
/// They survive the end of the connection. Clones are handles to the same notifications.
#[derive(Clone, Debug)]
pub struct Notifications {
    core: Arc<Core>,
}

impl Notifications {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core) }
    }

    /// Waits for the next notification, and returns its number. Notifications come in the order in
    /// which the peer has posted them.
    ///
    /// Dropping the future loses no notification.
    ///
    /// # Errors
    ///
    /// The reason why the connection failed, or `Closed` once the peer has closed it, after all
    /// notifications that arrived before.
    pub async fn next(&self) -> Result<u32, Failure> {
        let mut waiting = Waiting { core: &self.core, place: None };
        poll_fn(|cx| self.core.poll(cx, true, |flow, now, task| flow.poll_notification(&mut waiting.place, now, task)))
            .await
    }

    /// Waits until `count` notifications with this number have come since the last call that has
    /// returned, in any order with others.
    ///
    /// A transfer of many pages, over which its writes may be spread as they like, is complete when
    /// the notifications of all have come. Several tasks may count: those with the same number get
    /// it one after the other. Dropping the future leaves what has come to others.
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next), if fewer have come; these wait for another call.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/notified.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// let pages = server.domain().allocate_exposed(16 * 64, rdma::RemoteAccess::WRITE)?;
    /// let to = pages.remote(..)?;
    /// // 16 pages of transfer 9, under one doorbell.
    /// let mut batch = client.remote().batch();
    /// for page in 0..16 {
    ///     batch.write_imm(to.slice(64 * page..64 * (page + 1))?, client.domain().allocate(64)?, 64, 9)?;
    /// }
    /// let writing = std::thread::spawn(move || block_on(batch.submit()));
    /// block_on(server.notifications().count(9, 16))?;
    /// assert_eq!(writing.join().expect("no panic")?.len(), 16);
    /// # Ok(()) }
    /// ```
    pub async fn count(&self, number: u32, count: u64) -> Result<(), Failure> {
        self.core.check_process()?;
        let key = self.core.with(|flow, now| flow.begin_count(number, count, now));
        let counting = Counting { core: &self.core, key };
        poll_fn(|cx| self.core.poll(cx, true, |flow, _, task| flow.poll_count(counting.key, task))).await
    }

    /// The notifications that wait for a task.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        if self.core.check_process().is_err() {
            return 0;
        }
        self.core.with(|flow, _| flow.notifications())
    }
}

/// A task that waits for the next notification. Dropping it passes the turn on.
struct Waiting<'a> {
    core: &'a Core,
    place: Option<Place>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.core.tell(|flow, _| flow.give_up_notification(&mut self.place));
        }
    }
}

/// A task that counts notifications. Dropping it leaves what has come to others.
struct Counting<'a> {
    core: &'a Core,
    key: u64,
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.core.tell(|flow, _| flow.give_up_count(self.key));
    }
}
