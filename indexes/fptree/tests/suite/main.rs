//! The tests of the FPTree family in one program, so that it is linked once.

mod budget;
mod concurrent;
mod conformance;
mod layout;
mod multi_process;
