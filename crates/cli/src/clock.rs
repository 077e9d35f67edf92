//! The real time of commands and services.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest wait between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Now.
#[expect(clippy::disallowed_methods, reason = "commands and services run in real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits for a time. False when the process is told to stop before it.
pub fn reaches(due: Instant, stop: &AtomicBool) -> bool {
    while !stop.load(Ordering::SeqCst) {
        let left = due.saturating_duration_since(now());
        if left.is_zero() {
            return true;
        }
        std::thread::park_timeout(LOOK.min(left));
    }
    false
}
