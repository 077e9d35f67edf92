//! The tests of the crate in one program: the crate is compiled and linked once.

mod campaign;
mod cases;
mod checkers;
mod kit;
mod network;
mod shrinker;
