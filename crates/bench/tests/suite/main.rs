//! Whole runs of the systems in one test program: it is linked once. What plants defects for the whole process is beside it.

mod campaign;
mod crash;
mod exhaustive;
mod regressions;
mod results;
mod sherman;
mod simulated;
mod smart;
mod smart_hazards;
mod toy;
