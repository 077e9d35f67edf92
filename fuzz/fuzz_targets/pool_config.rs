#![no_main]
//! What a pool says of itself to processes that join.

libfuzzer_sys::fuzz_target!(|data: &[u8]| dmtree_pool::fuzzing::pool_config(data));
