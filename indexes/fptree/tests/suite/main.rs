//! The FPTree family in one test program: it is linked once.

mod apart;
mod budget;
mod concurrent;
mod conformance;
mod layout;
