//! Real RDMA: reliable connections over `libibverbs`, which is looked for at run time.
//!
//! This is the data path, free of sockets. A host opens a `Port`, a client thread opens a
//! `Client`; the embedder carries the client's offer to `Port::accept` and the answer back to
//! `Client::connect`. [`VerbsFabric`] does so inside one process. See DESIGN.md beside this file.

mod client;
mod config;
mod fabric;
mod flights;
mod memory;
mod nic;
mod offer;
mod peers;
mod port;
mod queue_pair;
mod send;
mod transport;

pub(crate) use client::Client;
pub use client::Stats;
pub use config::Config;
pub use fabric::VerbsFabric;
pub use nic::Nic;
pub(crate) use port::{Accepted, Port};
pub use transport::VerbsTransport;
