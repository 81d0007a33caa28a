//! Where ranks that know no address of rank 0 learn it.

use std::time::Duration;

use crate::Error;

/// Largest value that a group sets, in bytes.
pub const MAX_VALUE: usize = 8 << 10;

/// A place with values under keys that all ranks of a job can access, such as PyTorch's `Store` or
/// a service of the cluster. [`Group::meet_by`] finds rank 0 by it; [`Directory`] and [`Threads`]
/// are two that exist.
///
/// Each rank has a value of its own of this type. It is used by one thread at a time, and only
/// while the ranks meet.
///
/// A key consists of at most 100 ASCII letters, digits, `-`, `_`, `.` and `/`, and begins with
/// `rdma-collectives/`. A value has at most [`MAX_VALUE`] bytes. One rank sets a key and deletes
/// it, and the others get it. Groups that meet at the same time would take each other's values:
/// each needs an exchange of its own, or one that puts a name of the group before the keys.
///
/// What an exchange returns is checked. Whoever can write to an exchange can keep ranks from
/// meeting, or meet them in the place of rank 0.
///
/// [`Group::meet_by`]: super::Group::meet_by
/// [`Directory`]: super::Directory
/// [`Threads`]: super::Threads
pub trait Exchange: Send {
    /// Sets the value of a key, in place of any earlier one. From its return on, every rank gets
    /// this value, and all of it.
    ///
    /// # Errors
    /// If the value may not be set.
    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), Error>;

    /// Returns the value of a key. Waits for a key that is not set, up to about `limit`; a limit of
    /// zero asks once.
    ///
    /// The value may be one that has been replaced or deleted shortly before: the caller asks
    /// again.
    ///
    /// # Errors
    /// If the key is not set in time, or cannot be read. A wait that may succeed later is not to
    /// end before `limit`, as the caller gives up.
    fn get(&mut self, key: &str, limit: Duration) -> Result<Vec<u8>, Error>;

    /// Deletes a key; one that is not set is no error.
    ///
    /// # Errors
    /// If the key is still set.
    fn delete(&mut self, key: &str) -> Result<(), Error>;
}

/// The error of [`Exchange::get`] for a key that is not set in time.
pub(super) fn not_set(key: &str) -> Error {
    Error::new(format!("{key} is not set"))
}
