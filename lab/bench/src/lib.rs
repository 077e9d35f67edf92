//! Experiments on range indexes: the systems ([`registry`]), the experiments and their settings
//! ([`experiment`], [`config`]), running and checking them ([`mod@run`]), and the results
//! ([`results`], [`table`], [`report`], [`compare`]).
//!
//! Also, for the tools of the command line: an open index of any system ([`system::Tool`]), replay
//! of traces ([`replay`]).
#![forbid(unsafe_code)]

mod ablation;
pub mod client;
pub mod compare;
pub mod config;
mod config_check;
pub mod conform;
pub mod crash;
pub mod csv;
pub mod experiment;
pub mod files;
pub mod gains;
pub mod group;
pub mod instructions;
mod jobs;
pub mod latency;
mod layers;
pub mod matched;
mod measure;
pub mod memory;
pub mod offered;
pub mod opened;
pub mod oracle;
pub mod phases;
mod place;
mod prepare;
pub mod probe;
pub mod profile;
pub mod published;
pub mod registry;
pub mod replay;
pub mod report;
pub mod results;
pub mod run;
pub mod series;
pub mod settings;
pub mod simulated;
pub mod sizing;
pub mod summary;
pub mod sweep;
pub mod sweeps;
pub mod system;
pub mod table;
pub mod window;

pub use dmtree_check::clock;
pub use dmtree_command::{Failure, Result};

use dmtree_command::{access, bytes, fabrics, failure};
