//! The library in one test program: it is linked once.
#![expect(clippy::disallowed_macros, reason = "tests say what they skip")]

mod async_client;
mod blocking;
mod bytes;
mod checkpoint;
mod collection;
mod durable;
mod examples;
mod export;
mod images;
mod keys;
mod parquet;
mod rejoin;
mod room;
mod typed;
