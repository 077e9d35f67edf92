//! Mutants of the pool: faults that tests enable, in front of its services.

dmtree_fabric::mutants! {
    /// A memory node acknowledges returned memory, and drops it.
    NothingComesBack,
    /// A purge does not wait for operations that run.
    PurgeAtOnce,
}
