//! `drive`: a compute process that works for a test, which reads on its standard output what was
//! done.

mod contend;
mod work;

use clap::{Args, ValueEnum};
use dmtree_command::{Failure, Result};

/// What a driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Task {
    /// Writes and reads keys of its own, and says of every write when it begins and how it ends.
    Work,
    /// Adds to counters that all drivers share, as fast as it can.
    Contend,
}

/// `drive`.
#[derive(Debug, Args)]
pub struct DriveArgs {
    /// What to do.
    #[arg(value_enum)]
    pub task: Task,
    /// The running pool, by the address of its first memory node.
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: String,
    /// The index; it is made if there is none of this name.
    #[arg(long, default_value = "drive", value_name = "NAME")]
    pub index: String,
    /// Threads, each with a session of its own.
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub threads: u32,
    /// The key space of the driver: drivers of one slot follow each other, and those of different
    /// slots write different keys.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub slot: u32,
    /// Keys of each thread, or counters.
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub keys: u32,
    /// Numbers of writes begin above this one.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub after: u64,
    /// Seed of everything drawn.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long to contend.
    #[arg(long, default_value_t = 3, value_name = "S")]
    pub seconds: u64,
}

/// Opens the pool and does it.
pub fn run(a: &DriveArgs) -> Result<()> {
    let pool = dmtree::Pool::connect(&a.connect).open().map_err(Failure::refused)?;
    let index =
        pool.open_or_create(&a.index, dmtree::Options::default()).map_err(Failure::refused)?;
    match a.task {
        Task::Work => work::run(a, &pool, &index),
        Task::Contend => contend::run(a, &index),
    }
}
