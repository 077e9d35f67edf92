//! The tests of the laboratory in one program, so that it is linked once and the crate is compiled
//! once.

mod campaign;
mod cases;
mod checkers;
mod histories;
mod kit;
mod network;
mod shrinker;
