//! The tests of the FPTree family in one program, so that it is linked once.

mod apart;
mod budget;
mod concurrent;
mod conformance;
mod layout;
