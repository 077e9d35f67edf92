//! Byte layouts, read from memory: offsets and sizes at the published geometry (24-byte keys,
//! 8-byte values, 32 slots).

use std::sync::Arc;

use dmtree_check::conformance::Keys;
use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_fabric::{Endpoint, GlobalAddr, Role};
use dmtree_fptree::Options;
use dmtree_fptree::format::{Geometry, table};
use dmtree_parts::Write;
use dmtree_parts::hash::KeyHash;
use dmtree_pool::{PoolNode, PoolOptions};

fn test_cluster(o: &Options, compute_nodes: u16) -> TestCluster {
    let pool = PoolOptions { compute_nodes, ..PoolOptions::default() };
    TestCluster::new(&pool, 8 << 20, o).expect("a pool and an index")
}

struct Raw(Endpoint, Arc<PoolNode>);

impl Raw {
    fn of(test_cluster: &TestCluster) -> Self {
        let node = test_cluster.cluster.compute_node(0).expect("a node");
        Self(node.endpoint(0).expect("attach"), node)
    }

    fn read(&self, at: GlobalAddr, len: u32) -> Vec<u8> {
        let bytes = self.0.block_on(self.0.read(at, len)).expect("inside");
        bytes.extract(<[u8]>::to_vec)
    }

    /// The root node's address, from the catalog of the pool.
    fn root(&self) -> GlobalAddr {
        let found = self.0.block_on(self.1.catalog().find_index(&self.0, "test"));
        addr(&self.read(found.expect("the catalog").expect("the index").root_word, 8), 0)
    }
}

fn word(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("8 bytes"))
}

fn half(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("4 bytes"))
}

fn addr(b: &[u8], at: usize) -> GlobalAddr {
    GlobalAddr::from_bits(word(b, at))
}

fn key(n: u64) -> Vec<u8> {
    Keys::Hashed24.key(n)
}

fn put(c: &mut Client, range: std::ops::Range<u64>) {
    for n in range {
        c.write(&key(n), Write::Put(&n.to_le_bytes())).expect("put");
    }
}

#[test]
fn sizes() {
    let g = Geometry::new(&Options::default());
    assert_eq!((g.header(), g.entry(), g.record(), g.inner_bytes()), (80, 40, 52, 1752));
    assert_eq!([32, 64, 128].map(|c| g.leaf_bytes(c)), [1360, 2640, 5200]);
    assert_eq!([32, 64, 128].map(table::bytes), [56, 88, 152]);
    // An entry has 8 bytes and the pair, a header two keys and 32 bytes, a record a key and 28.
    let o = Options { key_bytes: 64, value_bytes: 64, ..Options::default() };
    let g = Geometry::new(&o);
    assert_eq!((g.header(), g.entry(), g.record()), (160, 136, 92));
}

#[test]
fn an_index_of_one_leaf() {
    for (o, owner) in
        [(Options::fptree(), Role::Memory), (Options::dmtree_published(), Role::Compute)]
    {
        let test_cluster = test_cluster(&o, 2);
        let mut c = test_cluster.client(0).expect("attach");
        put(&mut c, 0..3);
        let raw = Raw::of(&test_cluster);
        let inner = raw.read(raw.root(), 1752);
        assert_eq!(inner[0..24], [0xff; 24], "max key");
        assert_eq!(inner[24..48], [0; 24], "min key");
        assert_eq!(word(&inner, 48), 0, "right sibling");
        assert_eq!(inner[56..60], [1, 1, 0, 0], "is_root, next_is_leaf, pad");
        assert_eq!(word(&inner, 60), 1, "valid, version 0");
        assert_eq!(inner[68..92], [0; 24], "key of the record");
        let (leaf, table) = (addr(&inner, 92), addr(&inner, 100));
        assert_eq!((leaf.node().role(), table.node().role()), (Role::Memory, owner));
        assert_eq!(half(&inner, 108), 32, "capacity");
        assert!(inner[112..1736].iter().all(|b| *b == 0), "31 free records and the pad");
        assert!(word(&inner, 1736) != 0 && word(&inner, 1736) >> 32 == 0, "checksum");
        assert_eq!(word(&inner, 1744), 0, "lock");

        let image = raw.read(leaf, 1360);
        assert_eq!(image[0..24], [0xff; 24], "max key");
        assert_eq!(image[24..48], [0; 24], "min key");
        assert_eq!((half(&image, 48), half(&image, 52)), (32, 0), "capacity, version");
        assert!(image[56..80].iter().all(|b| *b == 0), "right sibling");
        for i in 0..3u64 {
            let at = 80 + 40 * i as usize;
            assert_eq!(word(&image, at), 1, "valid, version 0");
            assert_eq!(image[at + 8..at + 32], key(i));
            assert_eq!(word(&image, at + 32), i);
        }
        assert!(image[200..].iter().all(|b| *b == 0), "free entries");

        let image = raw.read(table, 56);
        assert_eq!(word(&image, 0), 0, "version");
        for i in 0..3 {
            assert_eq!(image[8 + i], KeyHash::of(&key(i as u64)).fingerprint());
        }
        assert!(image[11..40].iter().all(|b| *b == 0), "free slots");
        assert!(word(&image, 40) != 0 && word(&image, 40) >> 32 == 0, "checksum");
        assert_eq!(word(&image, 48), 0, "lock");
    }
}

#[test]
fn a_leaf_that_was_divided() {
    let test_cluster = test_cluster(&Options::dmtree_published(), 2);
    let mut c = test_cluster.client(0).expect("attach");
    put(&mut c, 0..33);
    let mut keys: Vec<_> = (0..33).map(key).collect();
    keys.sort();
    let raw = Raw::of(&test_cluster);
    let inner = raw.read(raw.root(), 1752);
    // The left record has its version raised by one; the right one begins at 0, with the first key
    // that moved.
    assert_eq!((word(&inner, 60), word(&inner, 112)), (1 | 1 << 8, 1));
    assert_eq!(inner[120..144], keys[16]);
    let left = raw.read(addr(&inner, 92), 1360);
    let right = raw.read(addr(&inner, 144), 1360);
    assert_eq!((&left[0..24], &right[24..48]), (&keys[16][..], &keys[16][..]), "fences");
    assert_eq!((half(&left, 52), half(&right, 52)), (1, 0), "versions");
    assert_eq!(addr(&left, 56), addr(&inner, 144), "right sibling");
    assert_eq!(addr(&left, 64), addr(&inner, 152), "its table");
    assert_eq!(word(&left, 72), 32, "its capacity");
    // 16 stay and 17 move, both in order from the first slot. Every entry has the leaf's version,
    // free ones too.
    for (i, at) in (0..32).map(|i| (i, 80 + 40 * i)) {
        assert_eq!(word(&left, at), u64::from(i < 16) | 1 << 8);
        assert_eq!(word(&right, at), u64::from(i < 17));
        assert!(i >= 16 || left[at + 8..at + 32] == keys[i], "{i}");
        assert!(i >= 17 || right[at + 8..at + 32] == keys[16 + i], "{i}");
    }
    let tables = [addr(&inner, 100), addr(&inner, 152)].map(|at| raw.read(at, 56));
    assert_eq!(tables.each_ref().map(|t| word(t, 0)), [1, 0]);
    assert_eq!(tables.each_ref().map(|t| t[8..40].iter().filter(|b| **b != 0).count()), [16, 17]);
}

/// Each client node fills its stretch on one compute node before it continues with the next.
#[test]
fn tables_rotate_over_compute_nodes() {
    let o = Options { table_chunk_bytes: 4 << 10, ..Options::dmtree_published() };
    let test_cluster = test_cluster(&o, 4);
    let mut c = test_cluster.client(0).expect("attach");
    let pairs = (0..20_000u64).map(|n| (key(n), n.to_le_bytes().to_vec())).collect();
    c.load(pairs, false, 0.7).expect("load");
    let raw = Raw::of(&test_cluster);
    let mut at = raw.root();
    let mut inner = raw.read(at, 1752);
    while inner[57] == 0 {
        at = addr(&inner, 92);
        inner = raw.read(at, 1752);
    }
    let (mut leaf, mut owners) = (addr(&inner, 92), vec![addr(&inner, 100).node().index()]);
    loop {
        let header = raw.read(leaf, 80);
        leaf = addr(&header, 56);
        if leaf.is_null() {
            break;
        }
        owners.push(addr(&header, 64).node().index());
    }
    // The first table was made with the index. 4 KiB hold 73 tables of 56 bytes.
    for (i, owner) in owners[1..].iter().enumerate() {
        assert_eq!(*owner, i / 73 % 4, "table {i}");
    }
}
