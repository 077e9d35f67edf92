//! The CPU time of an index's code, where a simulator charges for that.

use std::pin::Pin;

use crate::endpoint::Endpoint;

impl Endpoint {
    /// Whether this fabric charges for the CPU time of an index's code, in place of its stages:
    /// [`Endpoint::measured`].
    pub fn measures_work(&self) -> bool {
        self.transport().measures_work()
    }

    /// Charges for the CPU time of an operation of an index: that of each poll, which is all that
    /// this client does meanwhile.
    pub async fn measured<F: Future + Unpin>(&self, mut work: F) -> F::Output {
        std::future::poll_fn(|cx| {
            self.transport().work_begins();
            let polled = Pin::new(&mut work).poll(cx);
            self.transport().work_ends();
            polled
        })
        .await
    }
}
