//! Published defects, one state each: the tests build the state that an unlucky schedule leaves,
//! and check the results of other clients. With the repair the results are correct.

use std::sync::Arc;

use dmtree_check::test_cluster::{Client, TestCluster};
use dmtree_fabric::{Endpoint, ErrorKind, GlobalAddr};
use dmtree_parts::{Outcome, Write};
use dmtree_pool::{Cluster, PoolNode, PoolOptions};
use dmtree_smart::format::node::{HEADER_OFFSET, Node, slot_at};
use dmtree_smart::format::slot::{NodeType, Slot};
use dmtree_smart::format::{Geometry, leaf};
use dmtree_smart::{Options, Smart};

const NAME: &str = "radix";

/// An index with clients on two compute nodes, and direct access to its memory.
struct Fixture {
    clients: [Client<Smart>; 2],
    ep: Endpoint,
    pool: Arc<PoolNode>,
    g: Geometry,
    _test_cluster: TestCluster<Smart>,
}

/// Digits, filled with zeros to the length of a key.
fn text(digits: &str) -> Vec<u8> {
    format!("{digits:0<24}").into_bytes()
}

impl Fixture {
    fn new(o: &Options, keys: &[&str]) -> Self {
        let o = Options { timeout_ms: 100, ..o.clone() };
        let pool = PoolOptions { compute_nodes: 2, ..PoolOptions::default() };
        let cluster = Cluster::embedded(&pool).expect("a pool");
        let pool = cluster.compute_node(0).expect("a node").clone();
        let ep = pool.endpoint(4 << 20).expect("an endpoint");
        let test_cluster: TestCluster<Smart> =
            TestCluster::named(cluster, 8 << 20, &o, (NAME, "smart")).expect("an index");
        let mut clients = [0, 1].map(|cn| test_cluster.client(cn).expect("attach"));
        for k in keys {
            clients[0].write(&text(k), Write::Insert(&[1; 8])).expect("insert");
        }
        for c in &mut clients {
            keys.iter().for_each(|k| assert!(c.get(&text(k)).expect("get").is_some()));
        }
        Self { clients, ep, pool, g: Geometry::new(&o), _test_cluster: test_cluster }
    }

    fn word(&self, at: GlobalAddr) -> u64 {
        let ep = &self.ep;
        ep.core().block_on(ep.slot(), async { ep.read(at, 8).await }).expect("a word").word(0)
    }

    fn set(&self, at: GlobalAddr, word: u64) {
        let ep = &self.ep;
        ep.core().block_on(ep.slot(), async { ep.write_word(at, word).await }).expect("room");
    }

    fn node(&self, at: GlobalAddr) -> Node {
        let ep = &self.ep;
        let bytes = ep.core().block_on(ep.slot(), async { ep.read(at, 2064).await });
        let bytes = bytes.expect("a node");
        bytes.extract(|b| Node::parse(at, b)).expect("a node")
    }

    /// The address of the slot at the end of these bytes; each byte leads one node down.
    fn slot(&self, bytes: &[u8]) -> GlobalAddr {
        let ep = &self.ep;
        let find = self.pool.find_index(ep, NAME);
        let entry = ep.core().block_on(ep.slot(), find).expect("a catalog").expect("an index");
        let mut at = entry.root_word;
        for byte in bytes {
            let n = self.node(Slot::from_bits(self.word(at)).child());
            at = slot_at(n.at, n.find(*byte).expect("a slot").0);
        }
        at
    }

    fn child(&self, bytes: &[u8]) -> GlobalAddr {
        Slot::from_bits(self.word(self.slot(bytes))).child()
    }
}

/// An update that began before a split has written the old reverse pointer back. A client with the
/// old slot in its cache accepts it.
#[test]
fn an_old_reverse_pointer_hides_a_key() {
    for (recheck_absent, wanted) in [(false, None), (true, Some(vec![2; 8]))] {
        let o = Options { recheck_absent, ..Options::published() };
        let mut s = Fixture::new(&o, &["011", "012", "021", "022", "1"]);
        let old = s.slot(b"011");
        let split = s.clients[0].write(&text("01105"), Write::Insert(&[2; 8]));
        assert_eq!(split.expect("insert"), Outcome::Done);
        let leaf = s.child(b"0110");
        assert_ne!(s.word(leaf), old.bits(), "the splitter has set the reverse pointer");
        s.set(leaf, old.bits());
        assert_eq!(s.clients[1].get(&text("01105")).expect("get"), wanted);
    }
}

/// A client has taken a slot beyond a node's type, and has not raised the type yet. A write that
/// finds the slot is acknowledged, but no client can read it.
#[test]
fn a_slot_beyond_the_type_hides_a_write() {
    for (help_types, wanted) in [(false, None), (true, Some(vec![3; 8]))] {
        let o = Options { help_types, ..Options::published() };
        let mut s = Fixture::new(&o, &["011", "012", "013", "014", "021", "1"]);
        let node = s.child(b"01");
        assert_eq!(s.node(node).header.kind, NodeType::N4);
        let (slot, at) = (slot_at(node, 4), s.child(b"02").plus(4096));
        let mut image = vec![0; s.g.leaf_footprint()];
        leaf::put(&s.g, &mut image[..s.g.leaf_bytes()], slot, &text("015"), &[2; 8]);
        for (i, word) in image.chunks_exact(8).enumerate() {
            s.set(at.plus(8 * i as u64), u64::from_le_bytes(word.try_into().expect("8 bytes")));
        }
        s.set(slot, Slot::leaf(b'5', s.g.leaf_bytes(), at).expect("an address").bits());
        let put = s.clients[0].write(&text("015"), Write::Put(&[3; 8]));
        assert_eq!(put.expect("put"), Outcome::Done, "acknowledged");
        assert_eq!(s.clients[1].get(&text("015")).expect("get"), wanted);
    }
}

/// A client has raised a node's type in its header, and crashed before it raised the type in the
/// slot above. As published no later split of the node's shared bytes succeeds.
#[test]
fn a_half_raised_type_stops_header_splits() {
    for keep_words in [false, true] {
        let o = Options { keep_words, ..Options::published() };
        let mut s = Fixture::new(&o, &["01123", "01124", "021", "022", "1"]);
        let n = s.node(s.child(b"01"));
        assert_eq!(n.header.shared(), b"12");
        let larger = n.header.with_kind(NodeType::of_code(2).expect("N8"));
        s.set(n.at.plus(HEADER_OFFSET), larger.bits());
        match (keep_words, s.clients[0].write(&text("0115"), Write::Insert(&[2; 8]))) {
            (true, outcome) => assert_eq!(outcome.expect("insert"), Outcome::Done),
            (false, Ok(outcome)) => panic!("{outcome:?}: it does not hang any more"),
            (false, Err(e)) => assert_eq!(e.kind(), ErrorKind::TimedOut),
        }
    }
}
