//! SMART in one test program: it is linked once.

mod apart;
mod budget;
mod conformance;
mod hazards;
mod sound;
mod sound_budget;
