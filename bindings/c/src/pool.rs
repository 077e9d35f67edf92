//! Pools, and the indexes in them.

use std::ffi::c_char;
use std::time::Duration;

use dmtree::{Options, Pool};

use crate::handles::Handles;
use crate::index::INDEXES;
use crate::memory::{given, needed, result, text};
use crate::status::{Status, call};

static POOLS: Handles<Pool> = Handles::new("pool");

/// A pool in this process. Sizes are texts such as `64MiB`; null is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Memory of all memory nodes together.
    pub memory: *const c_char,
    /// Cache of every index on every compute node.
    pub cache: *const c_char,
    /// Memory nodes; 0 is the default.
    pub memory_nodes: u16,
    /// Compute nodes; 0 is the default.
    pub compute_nodes: u16,
    /// Directory of a journal, with which the pool lasts; null for none.
    pub durable: *const c_char,
    /// With a journal: a write is acknowledged when the device has it.
    pub sync: bool,
}

/// How to join a pool of several processes. Null and 0 are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// File with keys of the pool (`dmtree keys`); null for a pool without keys.
    pub key_file: *const c_char,
    /// Where this process listens for the others: `HOST:PORT`.
    pub listen: *const c_char,
    /// Cache of every index.
    pub cache: *const c_char,
    /// How long a pool that is not ready is waited for, ms.
    pub wait_ms: u64,
    /// Joins a pool without keys on another machine.
    pub insecure: bool,
}

/// Layout of an index, and how long its operations wait: `dmtree_index_options_default` fills it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IndexOptions {
    /// Bytes of a key kept inside its entry: a multiple of 8, 8 to 256.
    pub key_inline_bytes: u32,
    /// Bytes of a value kept inside its entry: a multiple of 8, 0 to 1024.
    pub value_inline_bytes: u32,
    /// Slots of a new leaf: 32, 64 or 128.
    pub leaf_capacity: u32,
    /// Records of an inner node, 8 to 64.
    pub fanout: u32,
    /// Share of the cache for images of leaves, 0 to 1.
    pub images: f64,
    /// KiB of each compute node's log of writes to leaves with images; 0 for none.
    pub log_kib: u32,
    /// Longest wait of one operation for others, ms.
    pub timeout_ms: u64,
}

impl IndexOptions {
    fn of(o: &Options) -> Self {
        Self {
            key_inline_bytes: o.key_inline_bytes,
            value_inline_bytes: o.value_inline_bytes,
            leaf_capacity: o.leaf_capacity,
            fanout: o.fanout,
            images: o.images,
            log_kib: o.log_kib,
            timeout_ms: o.timeout_ms,
        }
    }

    fn options(self) -> Options {
        Options::default()
            .key_inline_bytes(self.key_inline_bytes)
            .value_inline_bytes(self.value_inline_bytes)
            .leaf_capacity(self.leaf_capacity)
            .fanout(self.fanout)
            .images(self.images)
            .log_kib(self.log_kib)
            .timeout_ms(self.timeout_ms)
    }
}

/// Opens a pool in this process. `options` may be null. The pool ends when it, its indexes and
/// their scans are closed.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_pool_open(options: *const PoolOptions, pool: *mut u64) -> Status {
    call(|| {
        // SAFETY: by the contract of the call, here and below.
        let to = unsafe { result(pool, "pool")? };
        let null = std::ptr::null();
        let default = PoolOptions {
            memory: null,
            cache: null,
            memory_nodes: 0,
            compute_nodes: 0,
            durable: null,
            sync: false,
        };
        // SAFETY: as above.
        let o = unsafe { given(options, default)? };
        let mut builder = Pool::embedded();
        // SAFETY: as above.
        if let Some(size) = unsafe { text(o.memory, "memory")? } {
            builder = builder.memory(size);
        }
        // SAFETY: as above.
        if let Some(size) = unsafe { text(o.cache, "cache")? } {
            builder = builder.cache(size);
        }
        if o.memory_nodes > 0 {
            builder = builder.memory_nodes(o.memory_nodes);
        }
        if o.compute_nodes > 0 {
            builder = builder.compute_nodes(o.compute_nodes);
        }
        // SAFETY: as above.
        if let Some(directory) = unsafe { text(o.durable, "durable")? } {
            builder = builder.durable(directory);
        }
        if o.sync {
            builder = builder.sync();
        }
        *to = POOLS.put(builder.open()?);
        Ok(Status::Ok)
    })
}

/// Joins a pool: its first memory node listens at `address`. `options` may be null.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_pool_connect(
    address: *const c_char,
    options: *const ConnectOptions,
    pool: *mut u64,
) -> Status {
    call(|| {
        // SAFETY: by the contract of the call, here and below.
        let to = unsafe { result(pool, "pool")? };
        let null = std::ptr::null();
        let default = ConnectOptions {
            key_file: null,
            listen: null,
            cache: null,
            wait_ms: 0,
            insecure: false,
        };
        // SAFETY: as above.
        let (o, address) = unsafe { (given(options, default)?, needed(address, "address")?) };
        let mut connector = Pool::connect(address);
        // SAFETY: as above.
        if let Some(path) = unsafe { text(o.key_file, "key_file")? } {
            connector = connector.key_file(path);
        }
        // SAFETY: as above.
        if let Some(at) = unsafe { text(o.listen, "listen")? } {
            connector = connector.listen(at);
        }
        // SAFETY: as above.
        if let Some(size) = unsafe { text(o.cache, "cache")? } {
            connector = connector.cache(size);
        }
        if o.wait_ms > 0 {
            connector = connector.wait(Duration::from_millis(o.wait_ms));
        }
        if o.insecure {
            connector = connector.insecure();
        }
        *to = POOLS.put(connector.open()?);
        Ok(Status::Ok)
    })
}

/// Closes a pool. Its indexes that are open stay usable until they are closed.
#[unsafe(no_mangle)]
pub extern "C" fn dmtree_pool_close(pool: u64) -> Status {
    call(|| POOLS.take(pool).map(|_| Status::Ok))
}

/// Fills `options` with the defaults.
///
/// # Safety
/// The pointer is null or to what its type says, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_index_options_default(options: *mut IndexOptions) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        *unsafe { result(options, "options")? } = IndexOptions::of(&Options::default());
        Ok(Status::Ok)
    })
}

/// How an index is opened.
type Opening = fn(&Pool, &str, Options) -> dmtree::Result<dmtree::Index>;

/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
unsafe fn open_index(
    pool: u64,
    name: *const c_char,
    options: *const IndexOptions,
    index: *mut u64,
    opening: Opening,
) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let (to, name) = unsafe { (result(index, "index")?, needed(name, "name")?) };
        // SAFETY: as above.
        let o = unsafe { given(options, IndexOptions::of(&Options::default()))? };
        *to = INDEXES.put(opening(&POOLS.get(pool)?, name, o.options())?);
        Ok(Status::Ok)
    })
}

/// Creates an index. `options` may be null.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_index_create(
    pool: u64,
    name: *const c_char,
    options: *const IndexOptions,
    index: *mut u64,
) -> Status {
    // SAFETY: by the contract of the call.
    unsafe { open_index(pool, name, options, index, Pool::create) }
}

/// Opens an index.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_index_open(
    pool: u64,
    name: *const c_char,
    index: *mut u64,
) -> Status {
    let opening: Opening = |pool, name, _| pool.open(name);
    // SAFETY: by the contract of the call.
    unsafe { open_index(pool, name, std::ptr::null(), index, opening) }
}

/// Opens an index, which is created if there is none. `options` may be null.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_index_open_or_create(
    pool: u64,
    name: *const c_char,
    options: *const IndexOptions,
    index: *mut u64,
) -> Status {
    // SAFETY: by the contract of the call.
    unsafe { open_index(pool, name, options, index, Pool::open_or_create) }
}

/// Removes an index and all that is in it. Its open handles are refused from then on.
///
/// # Safety
/// The pointer is null or to a text that ends with a zero byte, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_index_drop(pool: u64, name: *const c_char) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let name = unsafe { needed(name, "name")? };
        POOLS.get(pool)?.drop_index(name)?;
        Ok(Status::Ok)
    })
}

/// Closes an index. Its scans that are open stay usable until they are closed.
#[unsafe(no_mangle)]
pub extern "C" fn dmtree_index_close(index: u64) -> Status {
    call(|| INDEXES.take(index).map(|_| Status::Ok))
}
