#![no_main]
//! Both sides of a handshake.

libfuzzer_sys::fuzz_target!(|data: &[u8]| dmtree_fabric::net::fuzzing::handshake(data));
