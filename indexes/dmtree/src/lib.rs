//! The DMTree index.
#![forbid(unsafe_code)]
