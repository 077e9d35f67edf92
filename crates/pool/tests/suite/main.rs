//! The pool in one test program: it is linked once.

mod bump;
mod capacity;
mod catalog;
mod common;
mod deaths;
mod epochs;
mod generations;
mod holder;
mod lend;
mod tables;
