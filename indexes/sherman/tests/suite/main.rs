//! Sherman in one test program: it is linked once.

mod apart;
mod budget;
mod conformance;
mod sound;
mod sound_budget;
