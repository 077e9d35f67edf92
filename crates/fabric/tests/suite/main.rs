//! The tests of the contract of verbs, calls and jobs in one program, so that it is linked once.

mod calls;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod held;
mod jobs;
mod local;
mod order;
mod sanitizer;
mod sim;
