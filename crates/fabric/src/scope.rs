//! Classification of operations for counting: kind, outcome, steps.

/// Declares enums with a constant `ALL`: their values in order.
#[doc(hidden)]
#[macro_export]
macro_rules! listed {
    ($($(#[$doc:meta])* pub enum $enum:ident { $($(#[$about:meta])* $value:ident,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $enum { $($(#[$about])* $value,)* }

        impl $enum {
            /// All values, in order.
            pub const ALL: [Self; [$(stringify!($value)),*].len()] = [$(Self::$value),*];
        }
    )*};
}

/// The same, with a name for each value.
macro_rules! named {
    ($($(#[$doc:meta])* pub enum $enum:ident { $($(#[$about:meta])* $value:ident => $name:literal,)* })*) => {$(
        listed! { $(#[$doc])* pub enum $enum { $($(#[$about])* $value,)* } }

        impl $enum {
            /// Its name in results.
            pub fn name(self) -> &'static str {
                match self { $(Self::$value => $name,)* }
            }
        }
    )*};
}

named! {
    /// The operations of an index, as counted.
    pub enum OpKind {
        /// Point read.
        Get => "get",
        /// Unconditional write.
        Put => "put",
        /// Write of a key that must be absent.
        Insert => "insert",
        /// Write of a key that must be present.
        Update => "update",
        /// Removal.
        Delete => "delete",
        /// Conditional write.
        CompareAndSet => "compare_and_set",
        /// Range read, counted per page.
        Scan => "scan",
        /// Several point reads together.
        GetMany => "get_many",
        /// Several writes together.
        WriteMany => "write_many",
        /// Bulk load.
        Load => "load",
        /// Merging, reclaiming, refreshing: background work.
        Maintain => "maintain",
        /// Training of models: background work. `Other` has trained; `Shared` has found another
        /// client's training.
        Train => "train",
        /// Opening, formatting, joining.
        Admin => "admin",
    }

    /// How an operation went, for the tables that list costs by outcome.
    pub enum OpOutcome {
        /// The key was there (a read found it, a write replaced or removed it), on the first
        /// attempt.
        Hit => "hit",
        /// The key was not there, on the first attempt.
        Absent => "absent",
        /// A new key without structure change.
        InsertPlain => "insert_plain",
        /// A new key that split a leaf (or relocated it).
        InsertSplit => "insert_split",
        /// Another client's verb served it (delegated or combined).
        Shared => "shared",
        /// A stale cache, a held lock or a torn image forced at least one repetition.
        Retried => "retried",
        /// A page of a scan, a batch, maintenance.
        Other => "other",
        /// It ended in an error, or its future was dropped.
        Failed => "failed",
    }

    /// Where the time of an operation goes: the rows of a breakdown. An index sets the step before
    /// a verb.
    pub enum Step {
        /// CPU: looking up a cached inner node.
        CacheLookup => "cache lookup",
        /// CPU: scanning fingerprints.
        FingerprintScan => "fingerprint scan",
        /// CPU: everything else that is charged.
        Cpu => "other CPU",
        /// READs of inner nodes.
        Route => "inner nodes",
        /// Locking, with the READs of the same round.
        Lock => "lock",
        /// Reading or writing a fingerprint table by itself.
        Table => "table",
        /// Reading or writing entries.
        Entry => "entry",
        /// Splits, merges, relocations, whole leaves.
        Structure => "structure",
        /// Remote calls.
        Call => "remote calls",
        /// Waiting: local queues, remote holders.
        Wait => "wait",
        /// Verbs of no step.
        Other => "other verbs",
    }
}

impl OpKind {
    /// Kinds of operations that are the workload, in contrast to maintenance.
    pub const FOREGROUND: [Self; 9] = [
        Self::Get,
        Self::Put,
        Self::Insert,
        Self::Update,
        Self::Delete,
        Self::CompareAndSet,
        Self::Scan,
        Self::GetMany,
        Self::WriteMany,
    ];
}

listed! {
    /// Steps of an operation on the compute node. In a simulator each costs CPU time, a constant of
    /// the profile; a step that code forgets to charge is free there and looks fast.
    pub enum Stage {
        /// Fixed cost of an operation: argument checks, scope, hand-over to the caller.
        Operation,
        /// Looking up a cached inner node.
        CacheLookup,
        /// Scanning fingerprints.
        FingerprintScan,
        /// Checking an entry: checksum and key.
        EntryCheck,
        /// Checking or building a whole node image; charged per slot.
        NodeImage,
        /// Local queues: delegation, combining, turn for a lock.
        LocalQueue,
        /// Waiting for a word that other threads of the node poll, too; charged per thread: its
        /// line goes from one to the next.
        PolledLine,
        /// Inserting into or evicting from the cache.
        CacheFill,
        /// Sorting and copying scan results; charged per pair.
        ScanCollect,
        /// A data service: visiting a page of its tree; charged per page.
        ServerNode,
        /// A data service: looking at or changing an entry; charged per entry.
        ServerEntry,
        /// A data service: copying; charged per KiB.
        ServerCopy,
        /// Writing a line that other threads of the node write, too; charged per other thread.
        /// Unlike a polled line it delays a busy thread as well.
        SharedLine,
        /// Inserting into a MemTable; charged per entry.
        MemTablePut,
        /// Searching a MemTable; charged per MemTable.
        MemTableProbe,
        /// Looking into the filter of a table, or searching its index; charged per filter and per
        /// index.
        TableProbe,
        /// Building a table from a MemTable: the entry's copy, its index record, its bits of the
        /// filter; charged per entry.
        TableEntry,
        /// Merging tables, and building the new ones; charged per entry read. Memory nodes do it
        /// faster.
        MergeEntry,
        /// An iterator over tables: decoding and merging; charged per entry passed.
        IterEntry,
        /// Appending a record to a log of writes; charged per record.
        LogRecord,
    }
}

impl Step {
    /// The row of a CPU stage.
    pub fn of(stage: Stage) -> Self {
        match stage {
            Stage::CacheLookup => Self::CacheLookup,
            Stage::FingerprintScan => Self::FingerprintScan,
            _ => Self::Cpu,
        }
    }
}
