//! Mutants: each omits a step, or executes it too early. Only mutation tests enable them, to show
//! that a checker finds them. Mutants are no options, are not stored, and are off in every index
//! that is opened.

dmtree_parts::mutants! {
    /// A slot names a new leaf before the leaf is written.
    SlotBeforeLeaf,
    /// A slot names a new node before node and leaf are written.
    SlotBeforeNode,
    /// A leaf is released, under the next version, before its area has landed.
    ReleaseBeforeArea,
    /// A leaf's tombstone is retired before its slot is vacant.
    RetireNamed,
    /// A node becomes a tombstone although its slots are not frozen.
    CloseUnfrozen,
    /// Abandoned locks of failed compute nodes are not taken over.
    NoTakeOver,
    /// New memory is live and linked at once (never `Pending`), also where an old pointer can lead.
    NeverPending,
    /// Garbage collection takes objects that were logged as retired meanwhile.
    GcNoLog,
}
