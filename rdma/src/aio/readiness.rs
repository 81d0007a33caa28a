//! The one service that an executor provides: waiting until a descriptor is readable.

use std::io;
use std::task::{Context, Poll};

/// A descriptor that a task can wait for.
///
/// The features `tokio` and `smol` give the implementations `aio::tokio::Readable` and
/// `aio::smol::Readable`, for a [`CompletionChannel`](crate::CompletionChannel), an
/// [`EventChannel`](crate::cm::EventChannel), a [`Context`](crate::Context), or any other
/// descriptor. One task at a time waits on each value.
///
/// # Examples
///
/// Waiting on tokio, with the feature `tokio`:
///
#[cfg_attr(feature = "tokio", doc = "```")]
#[cfg_attr(not(feature = "tokio"), doc = "```ignore")]
/// use std::future::poll_fn;
/// use rdma::aio::{self, Readiness};
///
/// # async fn f(context: &rdma::Context) -> Result<(), Box<dyn std::error::Error>> {
/// let channel = context.create_completion_channel()?;
/// let mut readable = aio::tokio::Readable::new(&channel)?;
/// poll_fn(|cx| readable.poll_readable(cx)).await?;
/// while let Some(queue) = channel.try_next_event()? {
///     println!("completions in {queue:?}");
/// }
/// # Ok(()) }
/// ```
pub trait Readiness: Send {
    /// Returns `Ready` while the descriptor is readable. Otherwise wakes the task of `cx`, and no
    /// other, once it may be readable.
    ///
    /// # Errors
    ///
    /// Errors of the executor, for example that it is shutting down.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl<R: Readiness + ?Sized> Readiness for &mut R {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_readable(cx)
    }
}

impl<R: Readiness + ?Sized> Readiness for Box<R> {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_readable(cx)
    }
}

#[cfg(all(test, any(feature = "tokio", feature = "smol")))]
mod tests {
    use super::*;

    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    /// Takes three bytes, each written after the one before was read, and reads the descriptor
    /// empty each time. A byte that comes before the wait must end it too.
    async fn take_three(mut readable: impl Readiness, mut near: UnixStream, far: UnixStream) {
        for number in 0..3 {
            let mut far = far.try_clone().unwrap();
            let write = move || {
                thread::sleep(Duration::from_millis(5 * u64::from(number)));
                far.write_all(&[number]).unwrap();
            };
            let writing = thread::spawn(write);
            let mut byte = [u8::MAX];
            while near.read(&mut byte).is_err() {
                poll_fn(|cx| readable.poll_readable(cx)).await.unwrap();
            }
            assert_eq!(byte, [number]);
            writing.join().unwrap();
        }
        let is_pending = poll_fn(|cx| Poll::Ready(readable.poll_readable(cx).is_pending())).await;
        assert!(is_pending, "nothing is left to read");
    }

    fn pair() -> (UnixStream, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (near, far)
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn a_task_of_tokio_waits_for_a_descriptor() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let (near, far) = pair();
            let readable = crate::aio::tokio::Readable::new(&near).unwrap();
            take_three(readable, near, far).await;
        });
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn a_runtime_that_shuts_down_and_a_missing_one_are_errors() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let (near, _far) = pair();
        let mut readable = {
            let _inside = runtime.enter();
            crate::aio::tokio::Readable::new(&near).unwrap()
        };
        drop(runtime);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(matches!(readable.poll_readable(&mut cx), Poll::Ready(Err(_))));
        assert!(crate::aio::tokio::Readable::new(&near).is_err());
    }

    #[cfg(feature = "smol")]
    #[test]
    fn a_task_of_async_io_waits_for_a_descriptor() {
        let (near, far) = pair();
        let readable = crate::aio::smol::Readable::new(&near).unwrap();
        async_io::block_on(take_three(readable, near, far));
    }
}
