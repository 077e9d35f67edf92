//! Whole runs of the systems in one test program, so that it is linked once. Tests that enable
//! mutants for the whole process are separate programs.

mod campaign;
mod crash;
mod exhaustive;
mod regressions;
mod results;
mod simulated;
mod sweeps;
mod toy;
