//! The tests of SMART in one program, so that it is linked once.

mod budget;
mod conformance;
mod multi_process;
mod published_defects;
mod sound;
mod sound_budget;
