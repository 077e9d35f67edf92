//! The tests of journals in one program: most of them wait, and wait together.

mod directory;
mod shards;
