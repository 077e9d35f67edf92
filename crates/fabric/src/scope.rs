//! Classification of operations for counting: kind, outcome, steps.

/// The operations of an index, as counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// Point read.
    Get,
    /// Unconditional write.
    Put,
    /// Write of a key that must be absent.
    Insert,
    /// Write of a key that must be present.
    Update,
    /// Removal.
    Delete,
    /// Conditional write.
    CompareAndSet,
    /// Range read, counted per page.
    Scan,
    /// Several point reads together.
    GetMany,
    /// Several writes together.
    WriteMany,
    /// Bulk load.
    Load,
    /// Merging, reclaiming, refreshing: background work.
    Maintain,
    /// Opening, formatting, joining.
    Admin,
}

impl OpKind {
    /// All kinds in order.
    pub const ALL: [Self; 12] = [
        Self::Get,
        Self::Put,
        Self::Insert,
        Self::Update,
        Self::Delete,
        Self::CompareAndSet,
        Self::Scan,
        Self::GetMany,
        Self::WriteMany,
        Self::Load,
        Self::Maintain,
        Self::Admin,
    ];

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

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::CompareAndSet => "compare_and_set",
            Self::Scan => "scan",
            Self::GetMany => "get_many",
            Self::WriteMany => "write_many",
            Self::Load => "load",
            Self::Maintain => "maintain",
            Self::Admin => "admin",
        }
    }
}

/// How an operation went, for the tables that list costs by outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum OpOutcome {
    /// The key was there (a read found it, a write replaced or removed it), on the first attempt.
    Hit,
    /// The key was not there, on the first attempt.
    Absent,
    /// A new key without structure change.
    InsertPlain,
    /// A new key that split a leaf (or relocated it).
    InsertSplit,
    /// Another client's verb served it (delegated or combined).
    Shared,
    /// A stale cache, a held lock or a torn image forced at least one repetition.
    Retried,
    /// A page of a scan, a batch, maintenance.
    Other,
    /// It ended in an error, or its future was dropped.
    Failed,
}

impl OpOutcome {
    /// All outcomes in order.
    pub const ALL: [Self; 8] = [
        Self::Hit,
        Self::Absent,
        Self::InsertPlain,
        Self::InsertSplit,
        Self::Shared,
        Self::Retried,
        Self::Other,
        Self::Failed,
    ];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Absent => "absent",
            Self::InsertPlain => "insert_plain",
            Self::InsertSplit => "insert_split",
            Self::Shared => "shared",
            Self::Retried => "retried",
            Self::Other => "other",
            Self::Failed => "failed",
        }
    }
}

/// Steps of an operation on the compute node. In a simulator each costs CPU time, a constant of the
/// profile; a step that code forgets to charge is free there and looks fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
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
    /// Waiting for a word that other threads of the node poll, too; charged per thread: its line
    /// goes from one to the next.
    PolledLine,
    /// Inserting into or evicting from the cache.
    CacheFill,
    /// Sorting and copying scan results; charged per pair.
    ScanCollect,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 9] = [
        Self::Operation,
        Self::CacheLookup,
        Self::FingerprintScan,
        Self::EntryCheck,
        Self::NodeImage,
        Self::LocalQueue,
        Self::PolledLine,
        Self::CacheFill,
        Self::ScanCollect,
    ];
}

/// Where the time of an operation goes: the rows of a breakdown. An index sets the step before a
/// verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Step {
    /// CPU: looking up a cached inner node.
    CacheLookup,
    /// CPU: scanning fingerprints.
    FingerprintScan,
    /// CPU: everything else that is charged.
    Cpu,
    /// READs of inner nodes.
    Route,
    /// Locking, with the READs of the same round.
    Lock,
    /// Reading or writing a fingerprint table by itself.
    Table,
    /// Reading or writing entries.
    Entry,
    /// Splits, merges, relocations, whole leaves.
    Structure,
    /// Remote calls.
    Call,
    /// Waiting: local queues, remote holders.
    Wait,
    /// Verbs of no step.
    Other,
}

impl Step {
    /// All steps in order.
    pub const ALL: [Self; 11] = [
        Self::CacheLookup,
        Self::FingerprintScan,
        Self::Cpu,
        Self::Route,
        Self::Lock,
        Self::Table,
        Self::Entry,
        Self::Structure,
        Self::Call,
        Self::Wait,
        Self::Other,
    ];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::CacheLookup => "cache lookup",
            Self::FingerprintScan => "fingerprint scan",
            Self::Cpu => "other CPU",
            Self::Route => "inner nodes",
            Self::Lock => "lock",
            Self::Table => "table",
            Self::Entry => "entry",
            Self::Structure => "structure",
            Self::Call => "remote calls",
            Self::Wait => "wait",
            Self::Other => "other verbs",
        }
    }

    /// The row of a CPU stage.
    pub fn of(stage: Stage) -> Self {
        match stage {
            Stage::CacheLookup => Self::CacheLookup,
            Stage::FingerprintScan => Self::FingerprintScan,
            _ => Self::Cpu,
        }
    }
}
