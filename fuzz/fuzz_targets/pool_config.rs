#![no_main]
//! The config of a pool for processes that join.

libfuzzer_sys::fuzz_target!(|data: &[u8]| dmtree_pool::fuzzing::pool_config(data));
