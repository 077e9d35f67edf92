//! The tests of Sherman in one program, so that it is linked once.

mod budget;
mod conformance;
mod multi_process;
mod sound;
mod sound_budget;
