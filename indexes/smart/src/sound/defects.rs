//! Defects on purpose, each a step left out or done too early: only a checker switches them on, to show that it finds them. Not an
//! option, not stored, off in every index that is opened.

dmtree_parts::defects! {
    /// A slot names a new leaf before the leaf is there.
    SlotBeforeLeaf,
    /// A slot names a new node before node and leaf are there.
    SlotBeforeNode,
    /// A leaf is let go, under the next version, before its area has landed.
    ReleaseBeforeArea,
    /// A dead leaf is retired before its slot is vacant.
    RetireNamed,
    /// A node is made dead without its slots being frozen.
    CloseUnfrozen,
    /// What the dead hold is not taken from them.
    NoTakeOver,
    /// New memory is live and linked at once, also where an old pointer can lead.
    NeverYoung,
    /// A census takes what somebody has noted meanwhile.
    CensusNoNotes,
}
