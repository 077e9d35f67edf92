//! The tests of SMART in one program, so that it is linked once.

mod apart;
mod budget;
mod conformance;
mod hazards;
mod sound;
mod sound_budget;
