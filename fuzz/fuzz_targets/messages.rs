#![no_main]
//! Messages, and sequences of questions to the membership server.

libfuzzer_sys::fuzz_target!(|data: &[u8]| dmtree_fabric::net::fuzzing::messages(data));
