#![no_main]
//! Profiles of the simulated fabric: what parses is written as it can be read.

use dmtree_fabric::sim::Profile;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(profile) = Profile::parse("fuzz.toml", text) {
        Profile::parse("again", &profile.to_toml()).expect("its own text");
    }
});
