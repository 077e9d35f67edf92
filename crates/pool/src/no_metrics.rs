//! Stands for `metrics.rs` in a build without the feature `metrics`.

#[cfg(feature = "tcp")]
use dmtree_fabric::net::NodeStatus;
use dmtree_fabric::{Error, Result};

use crate::reports::NodeReport;

/// The content type of the text.
pub const CONTENT_TYPE: &str = "text/plain";

/// Refuses.
///
/// # Errors
/// `Unsupported`.
#[cfg(feature = "tcp")]
pub fn of_status(_: &NodeStatus) -> Result<String> {
    of_report(&NodeReport::default())
}

/// Refuses.
///
/// # Errors
/// `Unsupported`.
pub fn of_report(_: &NodeReport) -> Result<String> {
    Err(Error::unsupported("this program was built without the feature `metrics`: build it with"))
}
