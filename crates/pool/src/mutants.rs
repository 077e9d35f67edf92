//! Defects of the pool on purpose, in front of its services.

dmtree_fabric::mutants! {
    /// A memory node answers that it has memory back, and does nothing.
    NothingComesBack,
}
