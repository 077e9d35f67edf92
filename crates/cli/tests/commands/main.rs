//! The commands of the binary as users run them, in one program, so that it is linked once.

#[cfg(feature = "lab")]
mod check;
#[cfg(feature = "cloud")]
mod cloud;
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "lab")]
mod hardware;
#[cfg(feature = "lab")]
mod lab;
#[cfg(not(feature = "lab"))]
mod product;
