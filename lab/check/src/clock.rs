//! The only place of the laboratory that reads clocks.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The monotonic clock.
#[expect(clippy::disallowed_methods, reason = "campaigns and benchmarks measure real time")]
#[inline]
pub fn now() -> Instant {
    Instant::now()
}

/// Seconds since 1970, for reports.
#[expect(clippy::disallowed_methods, reason = "a report says when it was made")]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Nanoseconds of a duration, at most those of 584 years.
#[inline]
pub fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
