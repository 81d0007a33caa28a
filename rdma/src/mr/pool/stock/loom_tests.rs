//! Models: returns from other threads, waiters, and the end of a stock.

use std::sync::atomic::AtomicUsize as Count;
use std::task::Wake;

use loom::thread;

use super::*;

/// Counts the wakes of one waiter. What it publishes is in the slot, so it needs no model.
#[derive(Default)]
struct Woken(Count);

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Item = Box<u32>;

fn stock(items: u32, seats: usize) -> Arc<Stock<Item>> {
    let stock = Stock::new(items as usize, seats);
    stock.add((0..items).map(Box::new).collect());
    Arc::new(stock)
}

/// Returns an item as a dropped buffer does.
fn give(stock: &Stock<Item>, item: Item) {
    // SAFETY: `put` requires a stock that stays valid: it is borrowed.
    if let Err(item) = unsafe { Stock::put(stock, item) } {
        if let Ok(Some(waker)) = stock.put_slow(item) {
            waker.wake();
        }
    }
}

/// Waits as a future does: returns the item, or the waiter that sleeps.
fn wait(stock: &Stock<Item>, waker: &Waker) -> Result<Item, Arc<Waiter<Item>>> {
    if let Some(item) = stock.take() {
        return Ok(item);
    }
    let waiter = stock.join(waker);
    let Some(item) = stock.take() else { return Err(waiter) };
    if let Some(other) = stock.leave(&waiter) {
        give(stock, other);
    }
    Ok(item)
}

/// All items that are in the stock.
fn drained(stock: &Stock<Item>) -> usize {
    std::iter::from_fn(|| stock.take()).count()
}

#[test]
fn an_item_that_another_thread_returns_reaches_the_waiter() {
    loom::model(|| {
        let stock = stock(1, 2);
        let item = stock.take().unwrap();
        let returning = {
            let stock = Arc::clone(&stock);
            thread::spawn(move || {
                take_seat(1);
                give(&stock, item);
            })
        };
        let woken = std::sync::Arc::new(Woken::default());
        let taken = wait(&stock, &Waker::from(std::sync::Arc::clone(&woken)));
        returning.join().unwrap();
        if let Err(waiter) = taken {
            // It sleeps no longer, and finds the item.
            assert_eq!(woken.0.load(Ordering::Relaxed), 1);
            assert!(Stock::poll(&waiter, Waker::noop()).is_some());
        }
        assert_eq!((drained(&stock), stock.attention.0.load(Ordering::Relaxed)), (0, 0));
    });
}

/// The return that finds its cache full, while a waiter looks and other takers empty the caches.
#[test]
fn a_full_cache_that_goes_to_the_depot_hides_nothing_from_a_waiter() {
    loom::model(|| {
        let stock = stock(3, 1);
        let mut items: Vec<_> = std::iter::from_fn(|| stock.take()).collect();
        let last = items.pop().unwrap();
        items.into_iter().for_each(|item| give(&stock, item));
        let returning = {
            let stock = Arc::clone(&stock);
            thread::spawn(move || give(&stock, last))
        };
        let waiter = stock.join(Waker::noop());
        // The look of the waiter, in parts: other takers are faster at the cache.
        let is_in_depot = !stock.depot().items.is_empty();
        let taken = {
            let mut cache = stock.seats[0].0.lock();
            std::iter::from_fn(|| cache.take()).count()
        };
        returning.join().unwrap();
        let handed = usize::from(Stock::poll(&waiter, Waker::noop()).is_some());
        let left = drained(&stock);
        assert_eq!(taken + handed + left, 3);
        assert!(is_in_depot || handed == 1 || left == 0, "the waiter sleeps beside {left} items");
    });
}

#[test]
fn a_waiter_that_leaves_loses_no_item() {
    loom::model(|| {
        let stock = stock(1, 1);
        let item = stock.take().unwrap();
        let waiter = stock.join(Waker::noop());
        let returning = {
            let stock = Arc::clone(&stock);
            thread::spawn(move || give(&stock, item))
        };
        if let Some(item) = stock.leave(&waiter) {
            give(&stock, item);
        }
        returning.join().unwrap();
        assert_eq!((drained(&stock), stock.attention.0.load(Ordering::Relaxed)), (1, 0));
    });
}

#[test]
fn threads_that_take_and_return_have_different_items() {
    loom::model(|| {
        let stock = stock(2, 2);
        let other = {
            let stock = Arc::clone(&stock);
            thread::spawn(move || {
                take_seat(1);
                let item = stock.take().unwrap();
                let number = *item;
                give(&stock, item);
                number
            })
        };
        let mut item = stock.take().unwrap();
        *item += 10;
        let number = other.join().unwrap();
        assert_ne!(number, *item);
        give(&stock, item);
        assert_eq!(drained(&stock), 2);
    });
}

#[test]
fn an_item_that_comes_back_while_the_stock_closes_is_refused_or_handed_out() {
    loom::model(|| {
        let stock = stock(1, 1);
        let item = stock.take().unwrap();
        let returning = {
            let stock = Arc::clone(&stock);
            thread::spawn(move || {
                // SAFETY: `put` requires a stock that stays valid: the thread has an Arc of it.
                match unsafe { Stock::put(&raw const *stock, item) } {
                    Ok(()) => 0,
                    Err(item) => usize::from(stock.put_slow(item).is_err()),
                }
            })
        };
        let (items, _) = stock.close();
        assert_eq!(items.len() + returning.join().unwrap(), 1);
        assert_eq!(drained(&stock), 0);
    });
}

/// A stock that its only item keeps, as a chunk keeps its class.
struct Kept {
    stock: Stock<Arc<Kept>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Tells loom that the stock is freed, as the drop of its locks does: a put that loads
        // `attention` after it stored its item is noticed.
        self.stock.attention.0.with_mut(|_| ());
    }
}

#[test]
fn a_stock_that_ends_with_its_last_item_is_not_used_afterwards() {
    loom::model(|| {
        let kept = Arc::new(Kept { stock: Stock::new(1, 1) });
        let returning = {
            let item = Arc::clone(&kept);
            thread::spawn(move || {
                let stock = &raw const item.stock;
                // SAFETY: `put` requires a stock that is valid until the item is stored, which
                // keeps it, and then until it is closed: its other owner closes it first.
                let refused = unsafe { Stock::put(stock, item) };
                drop(refused);
            })
        };
        let (items, _) = kept.stock.close();
        drop(items);
        drop(kept);
        returning.join().unwrap();
    });
}
