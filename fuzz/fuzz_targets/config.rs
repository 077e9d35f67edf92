#![no_main]
//! Experiments: what parses is resolved, or refused with a reason.

use dmtree_bench::config::{Layer, resolve};
use dmtree_bench::experiment::Experiment;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(experiment) = Experiment::parse("fuzz", "fuzz.toml", text) else { return };
    // A setting may name a file, which is none of the input's business here.
    if !text.contains("file") && !text.contains('/') {
        let _ = resolve("fuzz", &experiment.layer, &Layer::default());
    }
});
