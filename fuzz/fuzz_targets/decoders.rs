#![no_main]
//! The decoders of the library, in one program: `FUZZ_TARGET` names the one to run.

use std::sync::LazyLock;

use dmtree_command::dump::{Dumper, read};
use dmtree_fabric::net::fuzzing as net;
use dmtree_fabric::sim::Profile;
use dmtree_pool::fuzzing as pool;
use dmtree_workload::trace::{Format, TraceReader};
use dmtree_workload::{KeyFile, KeyFileForm};

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    match std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET is the name of a decoder").as_str() {
        // Both sides of a handshake.
        "handshake" => net::handshake,
        // Frames of a link: verbs as the host executes them, outcomes as the client reads them.
        "frames" => net::frames,
        // Messages, and sequences of questions to the membership server.
        "messages" => net::messages,
        // What etcd answers, and what it has stored.
        "etcd" => net::etcd,
        // Names of certificates.
        "names" => net::names,
        // Records in the heads of regions: superblock, chunks, catalog, directory.
        "heads" => pool::heads,
        // The config of a pool for processes that join.
        "pool_config" => pool::pool_config,
        "profile" => profile,
        "dump" => dump,
        "trace" => trace,
        "keys" => keys,
        other => panic!("there is no decoder {other:?}"),
    }
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));

/// Profiles of the simulated fabric: what parses is written as it can be read.
fn profile(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(profile) = Profile::parse("fuzz.toml", text) {
        Profile::parse("again", &profile.to_toml()).expect("its own text");
    }
}

/// Dumps: what is read whole is written as it was.
fn dump(data: &[u8]) {
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
}

/// Traces, plain or gzipped, in every form.
fn trace(data: &[u8]) {
    for format in Format::ALL {
        let from = std::io::Cursor::new(data.to_vec());
        let Ok(trace) = TraceReader::from_reader("fuzz", from) else { return };
        // A small file can unpack to very much.
        let mut ops = trace.with_format(format).with_line_limit(1 << 16).take(10_000);
        while ops.next().is_some_and(|op| op.is_ok()) {}
    }
}

/// Key files: each key of one is found, and an absent one is not.
fn keys(data: &[u8]) {
    for form in [KeyFileForm::Lines, KeyFileForm::Sosd] {
        let Ok(file) = KeyFile::parse("fuzz", data.to_vec(), form) else { continue };
        (0..file.len()).for_each(|at| assert!(file.contains(file.get(at))));
    }
}
