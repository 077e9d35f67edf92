//! The tests of Sherman in one program, so that it is linked once.

mod apart;
mod budget;
mod conformance;
mod sound;
mod sound_budget;
