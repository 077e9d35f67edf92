#![no_main]
//! Experiments: a text that parses is resolved, or refused with a reason.

use std::sync::LazyLock;

use dmtree_bench::config::{Flags, resolve};
use dmtree_bench::experiment::Experiment;

static NO_FLAGS: LazyLock<Flags> = LazyLock::new(|| Flags::of::<&str>(&[]).expect("no words"));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(experiment) = Experiment::parse("fuzz", "fuzz.toml", text) else { return };
    // A setting may name a file, and the input must not choose a file of this machine.
    if !text.contains("file") && !text.contains('/') {
        let _ = resolve(&experiment, &NO_FLAGS);
    }
});
