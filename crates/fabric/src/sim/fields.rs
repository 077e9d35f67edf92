//! The fields of a profile: unit, meaning, allowed range, and for each value the confidence in it.

/// Confidence in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// Measured, raw data or a log seen.
    A,
    /// Measured and stated by authors, or fitted here with a small residual.
    B,
    /// Derived, or general knowledge of the field.
    C,
    /// An estimate that completes the profile.
    D,
}

/// One numeric field of a profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// `section.name`, as in the file.
    pub path: &'static str,
    /// Unit of the value.
    pub unit: &'static str,
    /// Its meaning.
    pub doc: &'static str,
    /// Where the value of the artifact's profile comes from.
    pub source: &'static str,
    /// Confidence in that source.
    pub confidence: Confidence,
    /// Least value allowed.
    pub low: f64,
    /// Greatest value allowed.
    pub high: f64,
    /// The value in a file that is older than the field; `None`: such a file is refused.
    pub older: Option<f64>,
}

const SPEC: &str = "packet formats of RoCEv2 and InfiniBand";
const FIT: &str = "fit to the bandwidth- and rate-bound cells of the FAST'26 artifact's table";
const SMART: &str = "micro-benchmarks published with Smart (ASPLOS'24), ConnectX-6 200 Gb";
const BREAKDOWN: &str = "operation breakdown of the FAST'26 paper (its table 1)";
const ERPC: &str = "10 M small calls per core and second, published with eRPC (NSDI'19)";
const HERE: &str = "operations of `dmtree bench quick --fabric local --systems rpc` on one thread of a virtual machine";
const LSM: &str = "1.01 M puts a second of one thread, published with dLSM (ICDE'23)";
const LSM_READ: &str = "0.20 M gets a second of one thread, published with dLSM (ICDE'23)";
const LSM_MERGE: &str =
    "2.64 M puts a second of 16 threads, which merging bounds, published with dLSM (ICDE'23)";
const LSM_RULE: &str = "the rule of dLSM's authors that places compactions";
const CURVES: &str = "fit to searches and updates by threads, published with DMTree (FAST'26)";
const COUNTS: &str =
    "gets of a million keys in one process: instructions and processor time, on an AMD EPYC";
const GUESS: &str = "no measurement found";

const fn first(values: &[f64]) -> Option<f64> {
    match values {
        [] => None,
        [value, ..] => Some(*value),
    }
}

macro_rules! fields {
    ($($path:literal, $unit:literal, $low:literal ..= $high:literal, $confidence:ident, $source:expr, $doc:literal $(, or $older:literal)?;)*) => {
        /// Every numeric field, in the order of the file.
        pub const FIELDS: &[Field] = &[$(Field {
            path: $path,
            unit: $unit,
            doc: $doc,
            source: $source,
            confidence: Confidence::$confidence,
            low: $low as f64,
            high: $high as f64,
            older: first(&[$($older)?]),
        }),*];
    };
}

fields! {
    "link.gbps", "Gb/s", 0 ..= 3200, A, "vendor", "data rate of the port, each direction; 0: infinite";
    "link.efficiency", "share", 0.1 ..= 1, B, FIT, "share of the data rate that packets, headers included, can use";
    "link.mtu_bytes", "B", 256 ..= 65536, A, "device attributes", "payload of one packet at most; also what a WRITE executes wholly or not at all";
    "link.ack_factor", "share", 0 ..= 1, C, FIT, "share of WRITE groups with an acknowledgement packet of their own";
    "header.read_request", "B", 0 ..= 1024, B, SPEC, "READ request on the wire";
    "header.read_response", "B", 0 ..= 1024, B, SPEC, "each packet of a READ response, beside its payload";
    "header.write_first", "B", 0 ..= 1024, B, SPEC, "first packet of a WRITE, beside its payload";
    "header.write_next", "B", 0 ..= 1024, B, SPEC, "further packets of a WRITE, beside their payload";
    "header.ack", "B", 0 ..= 1024, B, SPEC, "an acknowledgement";
    "header.atomic_request", "B", 0 ..= 1024, B, SPEC, "request of a compare-and-swap or fetch-and-add";
    "header.atomic_response", "B", 0 ..= 1024, B, SPEC, "its response";
    "header.send", "B", 0 ..= 1024, B, SPEC, "each packet of a remote call or reply, beside its payload";
    "latency.propagation_ns", "ns", 0 ..= 1e6, B, "ConnectX-5/6 round trips, perftest and Smart logs", "one way: wires, switch, PCIe of both ends";
    "latency.loopback_ns", "ns", 0 ..= 1e6, D, GUESS, "one way, when a node's NIC reaches its own memory";
    "latency.completion_ns", "ns", 0 ..= 1e6, C, "rest of the round trip", "from the response to its completion seen by the client";
    "latency.jitter_sigma", "log", 0 ..= 2, D, GUESS, "sigma of a log-normal factor on the propagation; 0: none, as in table runs";
    "responder_ns.read", "ns", 0 ..= 1e7, B, FIT, "time of the target NIC's pipeline for a READ";
    "responder_ns.write", "ns", 0 ..= 1e7, B, FIT, "the same for a WRITE";
    "responder_ns.atomic", "ns", 0 ..= 1e7, B, FIT, "the same for a compare-and-swap or fetch-and-add";
    "responder_ns.write_cold", "ns", 0 ..= 1e7, C, "explains the inserts of FPTree and SMART in the artifact's table; not measured by itself", "a WRITE to a line that no verb touched lately; 0: as any WRITE";
    "responder_ns.send", "ns", 0 ..= 1e7, C, "as a WRITE that consumes a receive buffer", "the same for the request of a data call";
    "initiator_ns.read", "ns", 0 ..= 1e6, B, SMART, "time of the client NIC's pipeline for a READ";
    "initiator_ns.write", "ns", 0 ..= 1e6, B, SMART, "the same for a WRITE";
    "initiator_ns.atomic", "ns", 0 ..= 1e6, C, SMART, "the same for an atomic";
    "same_word_ns.dram", "ns", 0 ..= 1e6, A, "perftest FAA log; stdrdma benchmarks", "atomics on one word of host memory are served one after another, this far apart";
    "same_word_ns.on_chip", "ns", 0 ..= 1e6, B, "stdrdma benchmarks", "the same in the NIC's own memory";
    "queue_pair.max_rd_atomic", "verbs", 1 ..= 1024, A, "device attributes", "READs and atomics outstanding on one queue pair; further ones wait at the initiator";
    "queue_pair.knee", "queue pairs", 0 ..= 1e6, D, GUESS, "active queue pairs of a target NIC before their contexts miss its cache; 0: never";
    "queue_pair.miss_ns", "ns", 0 ..= 1e4, D, GUESS, "responder time of such a miss";
    "outstanding.knee", "verbs", 0 ..= 1e6, A, SMART, "verbs outstanding at a client NIC before it slows down; 0: never";
    "outstanding.read_floor", "share", 0.01 ..= 1, A, SMART, "its rate of READs and atomics at 2.7 times the knee and beyond";
    "outstanding.write_floor", "share", 0.01 ..= 1, A, SMART, "its rate of WRITEs there";
    "doorbell.slots", "registers", 0 ..= 4096, A, "libmlx5 defaults, or contexts per thread", "doorbell registers of a node that its threads share; 0: one per thread";
    "doorbell.hold_ns", "ns", 0 ..= 1e5, B, SMART, "a shared doorbell is held this long per post";
    "doorbell.hold_per_sharer_ns", "ns", 0 ..= 1e5, B, SMART, "and this much longer for each thread that shares it";
    "cpu.post_ns", "ns", 0 ..= 1e6, B, SMART, "CPU time to post a verb";
    "cpu.round_ns", "ns", 0 ..= 1e6, C, BREAKDOWN, "CPU time to take up a completion and resume its client";
    "cpu.operation_ns", "ns", 0 ..= 1e6, C, BREAKDOWN, "fixed CPU time of an operation";
    "cpu.cache_lookup_ns", "ns", 0 ..= 1e6, A, BREAKDOWN, "finding the cached inner node of a key";
    "cpu.fingerprint_scan_ns", "ns", 0 ..= 1e6, A, BREAKDOWN, "scanning a leaf's fingerprints";
    "cpu.entry_check_ns", "ns", 0 ..= 1e6, D, GUESS, "checking an entry";
    "cpu.node_image_slot_ns", "ns", 0 ..= 1e6, D, GUESS, "checking or building a node image, per slot";
    "cpu.local_queue_ns", "ns", 0 ..= 1e6, D, GUESS, "a local queue: delegation, combining, turns";
    "cpu.polled_line_ns", "ns", 0 ..= 1e6, C, "core-to-core latencies of servers with two sockets", "a cache line that threads poll, or write, goes from one to the next";
    "cpu.cache_fill_ns", "ns", 0 ..= 1e6, D, GUESS, "putting a node into the cache";
    "cpu.scan_collect_pair_ns", "ns", 0 ..= 1e6, D, GUESS, "copying a pair of a scan";
    "cpu.mem_table_put_ns", "ns", 0 ..= 1e6, B, LSM, "inserting an entry into a MemTable", or 690.0;
    "cpu.mem_table_probe_ns", "ns", 0 ..= 1e6, D, GUESS, "searching a MemTable", or 500.0;
    "cpu.table_probe_ns", "ns", 0 ..= 1e6, B, LSM_READ, "looking into the filter of a sorted table, or searching its index", or 1015.0;
    "cpu.table_entry_ns", "ns", 0 ..= 1e6, D, GUESS, "adding an entry of a MemTable to a sorted table", or 500.0;
    "cpu.merge_entry_ns", "ns", 0 ..= 1e6, B, LSM_MERGE, "merging an entry of sorted tables on a compute node", or 975.0;
    "cpu.iter_entry_ns", "ns", 0 ..= 1e6, D, GUESS, "an entry that an iterator over sorted tables passes", or 100.0;
    "cpu.log_record_ns", "ns", 0 ..= 1e6, D, GUESS, "appending a record to a log of writes", or 0.0;
    "cpu.measured_factor", "ratio", 0 ..= 1000, D, GUESS, "time on this hardware's processor for a unit of time on the machine that simulates, where CPU is measured and not charged (`--cpu measured`)";
    "cpu.instructions_per_ns", "instructions", 0.01 ..= 1000, C, COUNTS, "instructions that a thread executes in a nanosecond, where CPU is counted and not charged (`--cpu counted`)", or 2.9;
    "cpu.cores", "cores", 0 ..= 4096, A, "the hosts of the FAST'26 paper", "cores of a compute node; two of its threads share one when they are more; 0: a core each", or 0.0;
    "cpu.pair_ratio", "ratio", 1 ..= 2, B, CURVES, "work of two threads that share a core, for a unit of work of one that has it alone", or 2.0;
    "cpu.contention", "share", 0 ..= 1, B, CURVES, "how much longer work takes for each further core of its node that has a thread: caches, memory, shared structures", or 0.0;
    "pcie.gbps", "Gb/s", 0 ..= 3200, C, "PCIe generation and width", "payload rate between NIC and memory, each direction; 0: no limit";
    "rpc.handler_ns", "ns", 0 ..= 1e9, C, "eRPC and UCX reports", "time of a remote call's handler on the node's core";
    "rpc.cores", "cores", 1 ..= 1024, C, "memory nodes have next to no CPU", "cores that serve remote calls";
    "rpc.atomics", "0 or 1", 0 ..= 1, C, "device attributes", "1: the NIC has no atomics; they are remote calls";
    "host.cores", "cores", 1 ..= 1024, C, "memory nodes have next to no CPU", "cores of a memory node that run data services, and as many that run jobs";
    "host.call_ns", "ns", 0 ..= 1e9, B, ERPC, "CPU time of a data call beside its handler: taking the request, sending the reply";
    "host.node_ns", "ns", 0 ..= 1e6, C, HERE, "a handler's visit of a page of its own memory";
    "host.entry_ns", "ns", 0 ..= 1e6, C, HERE, "a handler's look at, or change of, an entry";
    "host.copy_ns", "ns", 0 ..= 1e6, D, GUESS, "a handler's copy of a KiB";
    "host.merge_ratio", "ratio", 0.01 ..= 1000, B, LSM_RULE, "entries that a core of a memory node merges while one of a compute node merges one", or 2.125;
    "on_chip.bytes", "B", 0 ..= 1e9, B, "device attributes", "memory of the NIC that verbs reach; 0: none";
    "load_store.line_ns", "ns", 0 ..= 1e6, C, "CXL latency reports", "a verb is a run of 64-byte accesses by the client's CPU with this latency; 0: a NIC does it";
    "load_store.in_flight", "lines", 1 ..= 1024, C, "line-fill buffers", "such accesses in flight per thread";
}
