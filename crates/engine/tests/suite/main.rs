//! DMTree in one test program: it is linked once.

mod budget;
mod concurrent;
mod conformance;
mod crash;
mod digest;
mod direct;
mod dropped_leader;
mod durable;
mod fair;
mod fair_sim;
mod shrink;
mod sim;
mod tables;
