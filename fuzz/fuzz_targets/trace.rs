#![no_main]
//! Traces of the YCSB client, plain or gzipped.

use dmtree_workload::trace::TraceReader;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let from = std::io::Cursor::new(data.to_vec());
    let Ok(trace) = TraceReader::from_reader("fuzz", from) else { return };
    // A small file can unpack to very much.
    for op in trace.with_line_limit(1 << 16).take(10_000) {
        if op.is_err() {
            return;
        }
    }
});
