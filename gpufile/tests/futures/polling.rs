//! Polling by hand, for tests of futures.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;

use gpufile::IoFuture;
use testkit::in_flight::Call;

/// Polls once with a waker that calls `function`. Calls it now if the transfer is over.
pub fn poll_once<B>(future: &mut IoFuture<B>, function: impl FnOnce() + Send + 'static) {
    let waker = Call::waker(function);
    if future.is_done() {
        return waker.wake();
    }
    // A transfer that ends just now counts as done. The test calls `wait` on it later.
    let polled = Pin::new(future).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending(), "it ended between two lines: the caller keeps transfers busy long enough");
}
