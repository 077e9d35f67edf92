//! The library in one test program: it is linked once.

mod async_client;
mod blocking;
mod examples;
mod keys;
mod rejoin;
mod room;
