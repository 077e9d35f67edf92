#![no_main]
//! Records in the heads of regions: superblock, chunks, catalog, directory.

libfuzzer_sys::fuzz_target!(|data: &[u8]| dmtree_pool::fuzzing::heads(data));
