#![no_main]
//! Dumps: what is read whole is written as it was.

use dmtree_command::dump::{Dumper, read};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut pairs = Vec::new();
    let all = read("fuzz", data, |pair| {
        pairs.push(pair);
        Ok(())
    });
    if all.is_ok() {
        let mut again = Dumper::new(Vec::new()).expect("memory");
        pairs.iter().for_each(|(k, v)| again.pair(k, v).expect("memory"));
        assert_eq!(again.finish().expect("memory").0, pairs.len() as u64);
    }
});
