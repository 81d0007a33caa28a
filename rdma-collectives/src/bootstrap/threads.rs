//! An exchange between threads of one process.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::exchange::{Exchange, not_set};
use crate::Error;

/// An exchange between threads of one process, for ranks that are threads. Each takes a clone.
#[derive(Clone, Debug, Default)]
pub struct Threads(Arc<Keys>);

#[derive(Debug, Default)]
struct Keys {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl Threads {
    /// An exchange without values.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no key is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values().is_empty()
    }

    fn values(&self) -> MutexGuard<'_, HashMap<String, Vec<u8>>> {
        self.0.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange for Threads {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.values().insert(key.to_owned(), value.to_vec());
        self.0.changed.notify_all();
        Ok(())
    }

    fn get(&mut self, key: &str, limit: Duration) -> Result<Vec<u8>, Error> {
        let began = Instant::now();
        let mut values = self.values();
        loop {
            if let Some(value) = values.get(key) {
                return Ok(value.clone());
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(not_set(key));
            }
            values = self.0.changed.wait_timeout(values, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn delete(&mut self, key: &str) -> Result<(), Error> {
        self.values().remove(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_awaited_replaced_and_deleted() {
        let mut ours = Threads::new();
        let mut theirs = ours.clone();
        assert_eq!(ours.get("a", Duration::ZERO).unwrap_err().to_string(), "a is not set");
        let waiting = std::thread::spawn(move || theirs.get("a", Duration::MAX).unwrap());
        ours.set("b", b"other").unwrap();
        ours.set("a", b"first").unwrap();
        assert_eq!(waiting.join().unwrap(), b"first");
        ours.set("a", b"second").unwrap();
        assert_eq!(ours.get("a", Duration::ZERO).unwrap(), b"second");
        for key in ["a", "a", "b"] {
            ours.delete(key).unwrap();
        }
        assert!(ours.is_empty());
    }
}
