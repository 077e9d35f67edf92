#![no_main]
//! Frames of a link: verbs as the host executes them, outcomes as the client reads them.

libfuzzer_sys::fuzz_target!(|data: &[u8]| dmtree_fabric::net::fuzzing::frames(data));
