//! Mutants: deliberate protocol bugs, one per edge that the protocol awaits and per order that it
//! chains. Only a checker enables one, to show that it finds the bug. A mutant is not an option, is
//! not stored, and is off in every index that is opened.

dmtree_parts::mutants! {
    /// The unlock is not behind the table's WRITE in its chain.
    UnlockBesideTable,
    /// A write is acknowledged before its entry has landed.
    AcknowledgeEarly,
    /// An absence is confirmed by one READ of lock and table instead of compare-and-swap and READ.
    ConfirmWithoutCas,
    /// A held lock does not send a reader to the leaf.
    ConfirmWhileLocked,
    /// A delete clears the fingerprint before it blanks the entry.
    DeleteTableFirst,
    /// The entry's WRITE is not ordered behind its block's.
    EntryBesideBlock,
    /// A torn update has no shadow.
    NoShadow,
    /// The shadow is written behind the entry.
    ShadowBehindEntry,
    /// A split writes the leaf's image before the commit word.
    ImageBeforeNext,
    /// A split writes the old leaf before the new one has landed.
    SplitBeforeSibling,
    /// A split publishes the new leaf before the old one has shrunk.
    PublishBeforeImage,
    /// A new leaf that was not published is reused in the same generation.
    NoNewGeneration,
    /// A merge writes the neighbour's entries live instead of staged.
    MergeLive,
    /// A merge bypasses the neighbour before it has its entries.
    MergeNextEarly,
    /// A merge retires the neighbour before it is unlinked.
    RetireMergedEarly,
    /// A relocated leaf is retired before its left sibling has dropped its link.
    RetireRelocatedEarly,
    /// A relocation does not blank the old leaf.
    NoBlank,
    /// The WRITE that closes a table is not awaited before its cell is retired.
    CloseDetached,
    /// A part of a leaf counts for a scan although its version is not the table's.
    ScanOtherVersion,
    /// An entry of another generation counts for a get.
    MirrorOtherGeneration,
    /// A write does not compare the table with its route.
    LockAnyTable,
    /// A merge of inner nodes moves the records that stay.
    InnerMergeMoves,
    /// A lock is taken over as soon as its holder is suspected.
    TakeOverEarly,
    /// A tombstone is repaired without its successor.
    RecoverWithoutSuccessor,
    /// A lock take-over does not finish a half split.
    RecoverNoSplit,
    /// A lock take-over does not build the table anew.
    RecoverOldTable,
    /// Operations do not check whether the lease has ended.
    NoLease,
    /// An abandoned lock word is freed without the repair of the change that it names.
    WordForgetsChange,
    /// The release of a lock word is not behind the entry's WRITE in its chain.
    WordBesideEntry,
    /// A torn slot of a dead writer is dropped without its shadow being read.
    WordDropsTorn,
    /// A moved entry has no staged copy.
    HopNotStaged,
    /// The image of a move is written before the staged copy has landed.
    HopStagedDetached,
    /// A move keeps the version of its leaf.
    HopSameVersion,
    /// A move is not announced in the tag of its lock.
    HopUnannounced,
    /// The new entry is written before the image that frees its slot.
    HopPairBeforeImage,
    /// A neighbourhood counts although its slots carry several versions.
    HopMixed,
    /// A neighbourhood counts although its replica has another fence.
    HopReplicaUnchecked,
    /// A neighbourhood of a tombstone, or of a leaf that is being replaced, counts.
    HopTombstoneUnchecked,
    /// An insert looks for its key up to the first free slot.
    HopFirstHole,
    /// A new pair of a split is put into any free slot.
    HopSplitAnywhere,
    /// A merge puts entries into any free slot.
    HopMergeAnywhere,
    /// An update overwrites the shadow of a dead writer.
    HopShadowUnread,
    /// Neighbourhoods of a leaf answer while a bulk load replaces it.
    HopLoadOpen,
    /// A repair drops staged copies that are the only ones of their entries.
    HopRepairDrops,
    /// A repair keeps both entries of a key.
    HopRepairDoubles,
    /// A directory is published before its pages have landed.
    LearnPublishEarly,
    /// A directory that another one has replaced is reused at once.
    LearnRetireEarly,
    /// A window lacks its last leaf.
    LearnWindowShort,
    /// A window begins at its likeliest leaf.
    LearnLeftBorder,
    /// A group of leaves begins at its second fence.
    LearnTieCut,
    /// A predicted leaf counts whatever its fences.
    LearnFencesUnchecked,
    /// A predicted leaf counts in any generation.
    LearnAnyGeneration,
    /// The claim of a dead trainer stays.
    LearnClaimKept,
    /// A refresh takes half of a directory.
    LearnHalfRefresh,
    /// A garbage collection does not wait for running operations.
    GcNoBarrier,
    /// A garbage collection ignores the gc log.
    GcNoLog,
    /// A garbage collection ignores the locks of the objects that it takes.
    GcNoLocks,
    /// The object that a lock covers is READ beside the compare-and-swap instead of behind it.
    LockBesideRead,
    /// A delete is acknowledged before the entry is blank.
    DeleteEarly,
    /// A replaced block is free at once.
    BlockFreedAtOnce,
    /// Running operations are not announced: objects that they hold are reused.
    NoEpoch,
    /// An entry counts regardless of its checksum.
    EntryUnchecked,
    /// An image of a leaf counts although its slots carry several versions.
    LeafMixed,
    /// A reader joins a read that was posted before.
    DelegateLate,
    /// A writer joins a write after its value was taken.
    CombineLate,
    /// A split publishes the new leaf before its table has landed.
    SplitBeforeTable,
    /// A split writes the new pair before the image that has a free slot there.
    PairBeforeImage,
    /// A split leaf is unlocked before its parent has the record.
    UnlockBeforePublish,
    /// An inner node is unlocked beside the WRITE of its record.
    RecordBesideUnlock,
    /// The commit word of an inner split is behind the image.
    InnerImageBeforeNext,
    /// An inner split commits before the new node has landed.
    InnerBeforeSibling,
    /// A new root is named before it has landed.
    RootBeside,
    /// A client that lost the race for a new root names its own all the same.
    RootOverwritten,
    /// A merge commits before the neighbour's entries have landed.
    MergeCommitEarly,
    /// A merge writes the successor's image before it commits.
    MergeImageEarly,
    /// A merge does not blank the neighbour.
    MergeNoBlank,
    /// The WRITE that bypasses a merged neighbour is not awaited.
    MergeNextDetached,
    /// A merge of inner nodes blanks the neighbour before the successor has its records.
    InnerMergeBlankEarly,
    /// A relocation commits before the new leaf has landed.
    RelocateBeforeSibling,
    /// A relocation blanks the old leaf before it commits.
    BlankBeforeInto,
    /// A bulk load commits before the old inner node names the new root.
    LoadCommitEarly,
    /// A repair unlocks before its image has landed.
    RecoverDetached,
    /// A repair takes staged entries of a merge that did not commit for live ones.
    RecoverStagedLive,
    /// A repair drops a torn slot without reading its shadow.
    RecoverDropsTorn,
    /// A repair does not add the record of the right sibling.
    RecoverNoPublish,
    /// A repair keeps the version of what it changes.
    RecoverNoRestamp,
    /// An operation lets tables move while it holds a lock.
    MoveWhileLocked,
    /// A lock is never taken over.
    NoTakeOver,
    /// An owner that does not answer fails the reader.
    OwnerIsNeeded,
    /// Operations wait while a death is handled.
    StopForDeath,
    /// Locks of a failed operation are forgotten.
    NoAbandonedLocks,
    /// A write of an imaged leaf is acknowledged before it is shown.
    ImagedAckEarly,
    /// A write is shown before the memory node has it.
    ImagedFirst,
    /// A reader takes a slot of an imaged leaf from the memory node.
    ImagedLeafRead,
    /// An image of a node that was revoked counts.
    ImagedNoLease,
    /// An image stays open while keys of its leaf move to another one.
    ImagedNotClosed,
    /// An insert behind the bound of an image leaves the bound as it was.
    ImagedBoundKept,
    /// A slot counts as the key's without a look at its key.
    ImagedSlotTrusted,
    /// A write is shown before its record is durable.
    LogAckEarly,
    /// A repair takes the leaf without its records.
    LogForgotten,
    /// A record counts although its leaf has it, or something newer.
    LogOldRecords,
    /// A place in a ring is used again before its leaves are written back.
    LogCutEarly,
    /// A change of a leaf leaves its count as it was.
    LogCountKept,
    /// A write goes past the log to a leaf that has records.
    LogBehindIgnored,
    /// A slot of an image does not say that it is logged.
    LogUnmarked,
}
