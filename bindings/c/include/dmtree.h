#ifndef DMTREE_H
#define DMTREE_H

/* Generated from the Rust source: cargo test --test header says how. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What a call has done, or why it has failed. Errors are negative.
typedef enum {
  // It took effect, or the key is there.
  DMTREE_STATUS_OK = 0,
  // Nothing was changed: the key exists (insert).
  DMTREE_STATUS_EXISTS = 1,
  // The key is absent. Nothing was changed, but by `dmtree_replace`: it was absent before.
  DMTREE_STATUS_ABSENT = 2,
  // Nothing was changed: the value differs (compare-and-set).
  DMTREE_STATUS_MISMATCH = 3,
  // A scan has no further pair.
  DMTREE_STATUS_END = 4,
  // An argument cannot be right.
  DMTREE_STATUS_INVALID_ARGUMENT = -1,
  // No memory is left where it was needed; stored data stays usable.
  DMTREE_STATUS_FULL = -2,
  // Other clients held a needed lock or resource until the deadline passed.
  DMTREE_STATUS_CONTENDED = -3,
  // The deadline passed.
  DMTREE_STATUS_TIMED_OUT = -4,
  // A node cannot be reached.
  DMTREE_STATUS_UNREACHABLE = -5,
  // This node, or the target, has lost its membership.
  DMTREE_STATUS_REVOKED = -6,
  // Bytes that no correct execution leaves behind.
  DMTREE_STATUS_CORRUPT = -7,
  // Versions, formats or options that do not fit together.
  DMTREE_STATUS_INCOMPATIBLE = -8,
  // The pool or the index cannot do this.
  DMTREE_STATUS_UNSUPPORTED = -9,
  // An index of this name exists already.
  DMTREE_STATUS_NAME_EXISTS = -10,
  // No index of this name exists.
  DMTREE_STATUS_NAME_NOT_FOUND = -11,
  // Too much is in flight, or another process has it open; try again later.
  DMTREE_STATUS_BUSY = -12,
  // The handle was closed, or is none.
  DMTREE_STATUS_CLOSED = -13,
  // A defect of the library: it panicked. The handles of the call are best closed.
  DMTREE_STATUS_PANICKED = -14,
  // Another error: the message says which.
  DMTREE_STATUS_OTHER = -15,
} dmtree_status;

// Whether a write that failed may have happened.
typedef enum {
  // It did not and will not happen.
  DMTREE_EFFECT_NONE = 0,
  // It may have happened, or may still happen.
  DMTREE_EFFECT_UNKNOWN = 1,
} dmtree_effect;

// How an end of a range counts.
typedef enum {
  // There is no end.
  DMTREE_BOUND_UNBOUNDED = 0,
  // The key itself belongs to the range.
  DMTREE_BOUND_INCLUDED = 1,
  // The key itself does not.
  DMTREE_BOUND_EXCLUDED = 2,
} dmtree_bound;

// What a write of a batch does.
typedef enum {
  // As `dmtree_put`.
  DMTREE_WRITE_KIND_PUT = 0,
  // As `dmtree_insert`.
  DMTREE_WRITE_KIND_INSERT = 1,
  // As `dmtree_update`.
  DMTREE_WRITE_KIND_UPDATE = 2,
  // As `dmtree_delete`: without a value.
  DMTREE_WRITE_KIND_DELETE = 3,
  // As `dmtree_compare_and_set`.
  DMTREE_WRITE_KIND_COMPARE_AND_SET = 4,
  // As `dmtree_compare_and_delete`: without a value.
  DMTREE_WRITE_KIND_COMPARE_AND_DELETE = 5,
} dmtree_write_kind;

// Bytes of the caller, or of a scan: `len` of them at `data`, which may be null when there are
// none.
typedef struct {
  // Where they are.
  const uint8_t *data;
  // How many.
  size_t len;
} dmtree_slice;

// Bytes that the library has allocated, for the caller to give back with [`dmtree_bytes_free`].
// `data` is null when there are none.
typedef struct {
  // Where they are.
  uint8_t *data;
  // How many.
  size_t len;
} dmtree_bytes;

// A pool in this process. Sizes are texts such as `64MiB`; null is the default.
typedef struct {
  // Memory of all memory nodes together.
  const char *memory;
  // Cache of every index on every compute node.
  const char *cache;
  // Memory nodes; 0 is the default.
  uint16_t memory_nodes;
  // Compute nodes; 0 is the default.
  uint16_t compute_nodes;
  // Directory of a journal, with which the pool lasts; null for none.
  const char *durable;
  // With a journal: a write is acknowledged when the device has it.
  bool sync;
} dmtree_pool_options;

// How to join a pool of several processes. Null and 0 are the defaults.
typedef struct {
  // File with keys of the pool (`dmtree keys`); null for a pool without keys.
  const char *key_file;
  // Where this process listens for the others: `HOST:PORT`.
  const char *listen;
  // Cache of every index.
  const char *cache;
  // How long a pool that is not ready is waited for, ms.
  uint64_t wait_ms;
  // Joins a pool without keys on another machine.
  bool insecure;
} dmtree_connect_options;

// Layout of an index, and how long its operations wait: `dmtree_index_options_default` fills it.
typedef struct {
  // Bytes of a key kept inside its entry: a multiple of 8, 8 to 256.
  uint32_t key_inline_bytes;
  // Bytes of a value kept inside its entry: a multiple of 8, 0 to 1024.
  uint32_t value_inline_bytes;
  // Slots of a new leaf: 32, 64 or 128.
  uint32_t leaf_capacity;
  // Records of an inner node, 8 to 64.
  uint32_t fanout;
  // Share of the cache for images of leaves, 0 to 1.
  double images;
  // KiB of each compute node's log of writes to leaves with images; 0 for none.
  uint32_t log_kib;
  // Longest wait of one operation for others, ms.
  uint64_t timeout_ms;
} dmtree_index_options;

// What a scan covers. All zero: everything, in ascending order.
typedef struct {
  // Lower end.
  dmtree_slice low;
  // A `dmtree_bound`: how the lower end counts.
  int32_t low_bound;
  // Upper end.
  dmtree_slice high;
  // A `dmtree_bound`: how the upper end counts.
  int32_t high_bound;
  // Only keys that begin with this.
  dmtree_slice prefix;
  // From the upper end downwards.
  bool reverse;
  // Most pairs; 0 for no limit.
  uint64_t limit;
} dmtree_scan_options;

// A key with its value.
typedef struct {
  // The key.
  dmtree_slice key;
  // The value.
  dmtree_slice value;
} dmtree_pair;

// A write of a batch.
typedef struct {
  // A `dmtree_write_kind`.
  int32_t kind;
  // Its key.
  dmtree_slice key;
  // The new value.
  dmtree_slice value;
  // The value that must be there, for `DMTREE_WRITE_KIND_COMPARE_AND_SET` and
  // `DMTREE_WRITE_KIND_COMPARE_AND_DELETE`.
  dmtree_slice expected;
} dmtree_write;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Reads the value of a key into `value`; `DMTREE_STATUS_ABSENT` without one.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_get(uint64_t index, dmtree_slice key, dmtree_bytes *value);

// Whether a key is there: `DMTREE_STATUS_OK` or `DMTREE_STATUS_ABSENT`.
//
// # Safety
// The key is null or readable, for the time of the call.
dmtree_status dmtree_contains(uint64_t index, dmtree_slice key);

// Reads `count` keys at once, in any order: `values` and `found` have a place for each. A key that
// is absent has `DMTREE_STATUS_ABSENT` in `found`, and no bytes.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_get_many(uint64_t index,
                              const dmtree_slice *keys,
                              size_t count,
                              dmtree_bytes *values,
                              dmtree_status *found);

// Stores a value, whether or not the key is there.
//
// # Safety
// Key and value are null or readable, for the time of the call.
dmtree_status dmtree_put(uint64_t index, dmtree_slice key, dmtree_slice value);

// Stores a value of a key that is absent; `DMTREE_STATUS_EXISTS` otherwise.
//
// # Safety
// Key and value are null or readable, for the time of the call.
dmtree_status dmtree_insert(uint64_t index, dmtree_slice key, dmtree_slice value);

// Replaces the value of a key that is there; `DMTREE_STATUS_ABSENT` otherwise.
//
// # Safety
// Key and value are null or readable, for the time of the call.
dmtree_status dmtree_update(uint64_t index, dmtree_slice key, dmtree_slice value);

// Deletes a key; `DMTREE_STATUS_ABSENT` if it is not there.
//
// # Safety
// The key is null or readable, for the time of the call.
dmtree_status dmtree_delete(uint64_t index, dmtree_slice key);

// Replaces the value of a key if it is `expected`; `DMTREE_STATUS_MISMATCH` or
// `DMTREE_STATUS_ABSENT` otherwise.
//
// # Safety
// Key and values are null or readable, for the time of the call.
dmtree_status dmtree_compare_and_set(uint64_t index,
                                     dmtree_slice key,
                                     dmtree_slice expected,
                                     dmtree_slice value);

// Deletes a key if its value is `expected`; `DMTREE_STATUS_MISMATCH` or `DMTREE_STATUS_ABSENT`
// otherwise.
//
// # Safety
// Key and value are null or readable, for the time of the call.
dmtree_status dmtree_compare_and_delete(uint64_t index, dmtree_slice key, dmtree_slice expected);

// Stores a value, whether or not the key is there, and gives the former one, without another round
// trip. `DMTREE_STATUS_ABSENT`: there was none, and the value is stored. Atomic.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_replace(uint64_t index,
                             dmtree_slice key,
                             dmtree_slice value,
                             dmtree_bytes *before);

// Deletes a key and gives its value, without another round trip; `DMTREE_STATUS_ABSENT` if it is
// not there. Atomic.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_take(uint64_t index, dmtree_slice key, dmtree_bytes *before);

// As `dmtree_compare_and_set`, and gives the value that the key had, whether it was `expected` or
// not, without another round trip. Atomic.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_compare_and_swap(uint64_t index,
                                      dmtree_slice key,
                                      dmtree_slice expected,
                                      dmtree_slice value,
                                      dmtree_bytes *before);

// About how many keys there are, from samples: some hundred READs for any size.
//
// # Safety
// The pointer is null or to what its type says, for the time of the call.
dmtree_status dmtree_len_estimate(uint64_t index, uint64_t *keys);

// Adds to the number that a key has, 8 bytes little endian, 0 if it is absent; `before` is the
// number before.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_fetch_add(uint64_t index, dmtree_slice key, int64_t add, int64_t *before);

// Gives bytes back. Nothing happens for those without `data`.
//
// # Safety
// The library has allocated them, they are given back once, and nothing uses them any more.
void dmtree_bytes_free(dmtree_bytes bytes);

// Opens a pool in this process. `options` may be null. The pool ends when it, its indexes and
// their scans are closed.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_pool_open(const dmtree_pool_options *options, uint64_t *pool);

// Joins a pool: its first memory node listens at `address`. `options` may be null.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_pool_connect(const char *address,
                                  const dmtree_connect_options *options,
                                  uint64_t *pool);

// Closes a pool. Its indexes that are open stay usable until they are closed.
dmtree_status dmtree_pool_close(uint64_t pool);

// Fills `options` with the defaults.
//
// # Safety
// The pointer is null or to what its type says, for the time of the call.
dmtree_status dmtree_index_options_default(dmtree_index_options *options);

// Creates an index. `options` may be null.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_index_create(uint64_t pool,
                                  const char *name,
                                  const dmtree_index_options *options,
                                  uint64_t *index);

// Opens an index.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_index_open(uint64_t pool, const char *name, uint64_t *index);

// Opens an index, which is created if there is none. `options` may be null.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_index_open_or_create(uint64_t pool,
                                          const char *name,
                                          const dmtree_index_options *options,
                                          uint64_t *index);

// Removes an index and all that is in it. Its open handles are refused from then on.
//
// # Safety
// The pointer is null or to a text that ends with a zero byte, for the time of the call.
dmtree_status dmtree_index_drop(uint64_t pool, const char *name);

// Closes an index. Its scans that are open stay usable until they are closed.
dmtree_status dmtree_index_close(uint64_t index);

// Begins a scan. `options` may be null: it covers everything then. Each pair was current at some
// instant of the scan; it is no snapshot.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_scan(uint64_t index, const dmtree_scan_options *options, uint64_t *scan);

// The next pair of a scan, lent until the scan's next call; `DMTREE_STATUS_END` behind the last.
//
// # Safety
// The pointer is null or to what its type says, for the time of the call. One thread at a time
// uses the scan and what it has lent.
dmtree_status dmtree_scan_next(uint64_t scan, dmtree_pair *pair);

// Ends a scan. What it has lent is gone.
dmtree_status dmtree_scan_close(uint64_t scan);

// The message of the last call of this thread that failed: a text that ends with a zero byte, and
// stays until the next call of this thread that fails.
const char *dmtree_last_error(void);

// Whether the last write of this thread that failed may have happened.
dmtree_effect dmtree_last_effect(void);

// The version of the library: a text that ends with a zero byte, and stays.
const char *dmtree_version(void);

// Applies `count` writes with fewer round trips than one by one. Not atomic: `outcomes` has a
// place for what each has done. Writes of one key happen in their order. The status is
// `DMTREE_STATUS_OK` when none of them failed, and else that of the first that did.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_write_batch(uint64_t index,
                                 const dmtree_write *writes,
                                 size_t count,
                                 dmtree_status *outcomes);

// Stores `count` pairs: the fastest way to fill an index that is empty. With `sorted` their keys
// ascend strictly.
//
// # Safety
// Pointers are null or to what their types say, for the time of the call.
dmtree_status dmtree_load(uint64_t index, const dmtree_pair *pairs, size_t count, bool sorted);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DMTREE_H */
