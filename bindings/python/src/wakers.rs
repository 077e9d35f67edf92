//! Wakers of the event loop, and the end of the interpreter.
//!
//! A worker thread of the library wakes the event loop by a call into the interpreter. An
//! interpreter that ends stops every other thread that is inside of such a call, which ends the
//! process by a signal. So the package waits at the interpreter's exit until no worker is inside of
//! one, and none enters one from then on.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pyo3::prelude::*;

/// Workers inside of a waker, and [`ENDED`] once the interpreter ends.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
const ENDED: usize = 1 << (usize::BITS - 1);
/// Between two looks at [`INSIDE`].
const PAUSE: Duration = Duration::from_millis(1);

/// The interpreter ends: returns when no worker is inside of a waker.
#[pyfunction]
#[expect(clippy::disallowed_methods, reason = "the interpreter's exit blocks its thread")]
pub(crate) fn before_exit(py: Python<'_>) {
    INSIDE.fetch_or(ENDED, SeqCst);
    py.detach(|| {
        while INSIDE.load(SeqCst) != ENDED {
            std::thread::sleep(PAUSE);
        }
    });
}

struct Guarded(Waker);

impl Wake for Guarded {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if INSIDE.fetch_add(1, SeqCst) & ENDED == 0 {
            self.0.wake_by_ref();
        }
        INSIDE.fetch_sub(1, SeqCst);
    }
}

/// A future with guarded wakers.
struct Awaited<F>(Pin<Box<F>>);

impl<F: Future> Future for Awaited<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let waker = Waker::from(Arc::new(Guarded(cx.waker().clone())));
        self.0.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// Awaits a future of the library on the event loop.
pub(crate) async fn awaited<F: Future>(future: F) -> F::Output {
    pin!(Awaited(Box::pin(future))).await
}
