//! Mutants of the sound system: steps of log, manifest and take-over that are left out, or done too
//! early.

dmtree_fabric::mutants! {
    /// A write is acknowledged before its record is on a memory node.
    AcknowledgeEarly,
    /// Readers see versions that are not logged yet.
    ReadUnlogged,
    /// Blocks of the log go before the manifest names the table.
    LogFreedEarly,
    /// A block of the log is used before the manifest names it.
    BlockUnnamed,
    /// Records with a wrong checksum count.
    TornRecords,
    /// Inputs of a merge are freed before the manifest names its outputs.
    InputsFreedEarly,
    /// The word of a range names a new segment of the manifest before it is written.
    SegmentEarly,
    /// A take-over does not wait until the owner is fenced.
    UnfencedTakeOver,
    /// A take-over reads the manifest alone.
    LogForgotten,
    /// A take-over forgets which writes of other nodes the log has.
    SessionsForgotten,
    /// An owner answers without a look at its lease.
    NoLease,
    /// A write that is asked for twice is executed twice.
    Twice,
    /// A range is given away while operations use it.
    GivenInUse,
    /// The tables of a range that is given away become garbage of the node that gives it.
    GivenFreed,
}
