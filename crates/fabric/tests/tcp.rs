//! The contract over TCP: several nodes, each as a process would have it, with a connection per
//! client thread and host. With `DMTREE_TEST_FABRIC=verbs` the verbs go over this machine's RDMA
//! device.
#![expect(clippy::disallowed_methods, reason = "real nodes in real time")]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use common::{MN, at, fails, on};
use dmtree_fabric::net::{
    Access, DataPath, JournalDirectory, KeyRole, Keys, NetFabric, NicConfig, Place, PoolConfig,
    ShardMark,
};
use dmtree_fabric::verb::{chain, faa, read};
use dmtree_fabric::{
    Change, Effect, Endpoint, ErrorKind, Fabric, GlobalAddr, LeaseParameters, Member, MemberPhase,
    NodeId, Presence, Result, Role, RpcFuture, RpcHandler, Service, ServiceId,
};

const SOON: Duration = Duration::from_millis(300);

/// The data path of verbs.
fn data_path() -> DataPath {
    let over_rdma = std::env::var("DMTREE_TEST_FABRIC").is_ok_and(|f| f == "verbs");
    if over_rdma { DataPath::Rdma } else { DataPath::Frames }
}

fn found_with(nic_config: &NicConfig, listen: &str, memory_nodes: u16) -> Result<NetFabric> {
    let (data_path, options) = (data_path(), b"options".to_vec());
    let pool_config = PoolConfig {
        memory_nodes,
        compute_nodes: 4,
        journal_nodes: 0,
        skips_journal: false,
        data_path,
        options,
    };
    NetFabric::found(listen, 1 << 16, pool_config, LeaseParameters::default(), nic_config)
}

fn found_at(listen: &str, memory_nodes: u16) -> NetFabric {
    found_with(&NicConfig::default(), listen, memory_nodes).expect("a free port")
}

fn found(memory_nodes: u16) -> NetFabric {
    let mn0 = found_at("127.0.0.1:0", memory_nodes);
    mn0.ready().expect("itself");
    mn0
}

/// The keys of a new pool.
fn drawn() -> Keys {
    Keys::of(&Keys::draw(30).expect("drawn")).expect("its own text")
}

/// The configuration of a process with these keys.
fn keyed(keys: &Keys) -> NicConfig {
    NicConfig::with(Access::with(keys.clone()))
}

/// The same with keys of one role.
fn of_role(keys: &Keys, role: KeyRole) -> NicConfig {
    keyed(&Keys::of(&keys.issue(role, 30).expect("issued")).expect("its own text"))
}

fn join_as(first: &str, role: Role) -> Result<NetFabric> {
    join_with(first, role, None, &NicConfig::default())
}

fn join_with(
    first: &str,
    role: Role,
    data_path: Option<DataPath>,
    nic_config: &NicConfig,
) -> Result<NetFabric> {
    let (listen, wanted) = ("127.0.0.1:0", None);
    let place = Place { first, listen, wanted, within: SOON, data_path, nic_config };
    NetFabric::join(&place, role, |pool_config| {
        assert_eq!(pool_config, b"options");
        Ok(1 << 14)
    })
}

fn compute(first: &NetFabric) -> NetFabric {
    join_as(first.listens(), Role::Compute).expect("joins")
}

fn endpoint(f: &NetFabric) -> Endpoint {
    common::endpoint(f, f.me().node)
}

#[test]
fn verbs_chains_and_batches() {
    let mn0 = found(2);
    let mn1 = join_as(mn0.listens(), Role::Memory).expect("the second");
    mn1.ready().expect("mn0 answers");
    let (cn0, cn1) = (compute(&mn0), compute(&mn0));
    assert_eq!((mn1.me().node, cn0.me().node), (NodeId::memory(1), NodeId::compute(0)));
    let ep = &endpoint(&cn0);
    on(ep, async {
        common::verbs_chains_and_batches(ep).await?;
        let others = (
            read(GlobalAddr::new(NodeId::memory(1), 64), 8),
            faa(GlobalAddr::new(cn1.me().node, 64), 3),
            faa(GlobalAddr::new(cn0.me().node, 64), 4),
        );
        let batch = (chain((faa(at(64), 1), read(at(128), 16))), others);
        let ((was, near), (far, peer, own)) = ep.batch(batch).await?;
        assert_eq!((was, near.word(0), near.word(1), far.word(0), peer, own), (2, 1, 2, 0, 0, 0));
        Ok(())
    })
    .expect("all verbs work");
    let own = endpoint(&cn1);
    let seen = on(&own, own.faa(GlobalAddr::new(cn1.me().node, 64), 0)).expect("its own memory");
    assert_eq!(seen, 3, "the words that others wrote there");
}

#[test]
fn long_lists_and_long_buffers() {
    let mn0 = found(1);
    let cn0 = compute(&mn0);
    let ep = &endpoint(&cn0);
    on(ep, async {
        let words = Vec::from_iter((0..200).map(|i| at(64 + i * 64)));
        common::long_batches(ep, &words, 3).await?;
        let long: Vec<u8> = (0..40_000u32).map(|i| i as u8).collect();
        ep.write_bytes(at(20_001), &long).await?;
        let back = ep.read(at(20_001), 40_000).await?;
        assert!(back.check(|b| Ok::<_, ()>(b == long)).expect("read").0);
        Ok(())
    })
    .expect("all of it");
}

#[test]
fn errors_are_values() {
    let mn0 = found(1);
    let cn0 = compute(&mn0);
    let ep = &endpoint(&cn0);
    common::bad_addresses(&cn0, ep, 1 << 20);
    assert_eq!(on(ep, ep.faa(at(64), 1)).expect("the link survives"), 0);
}

#[test]
fn revocation_ends_a_members_access_at_once() {
    let mn0 = found(1);
    let (cn0, cn1) = (compute(&mn0), compute(&mn0));
    let (a, b) = (&endpoint(&cn0), &endpoint(&cn1));
    assert_eq!(on(a, a.faa(at(64), 1)).expect("works"), 0);
    let early = cn1.revoke(MN, cn0.me().node, cn0.me().incarnation);
    fails(early, ErrorKind::Revoked, "does not live");
    on(b, async { cn1.membership().join(cn1.me(), 0).await }).expect("joins");
    cn1.revoke(MN, cn0.me().node, cn0.me().incarnation).expect("the host answers");
    let e = on(a, a.faa(at(64), 1)).expect_err("revoked");
    // The first verb may find the link broken; the next ones get the reason.
    let e = if e.kind() == ErrorKind::Revoked {
        e
    } else {
        on(a, a.faa(at(64), 1)).expect_err("revoked")
    };
    assert_eq!(e.kind(), ErrorKind::Revoked, "{e}");
    assert_eq!(on(b, b.faa(at(64), 0)).expect("others go on"), 1);
}

/// A compute node that is started again under its number has new memory: a client that knows of it
/// does not reach the old memory any more, although that still exists.
#[test]
fn verbs_go_to_the_incarnation_of_a_node_that_is_known() {
    let mn0 = found(1);
    let (cn0, cn1) = (compute(&mn0), compute(&mn0));
    let (ep, Member { node, incarnation }) = (&endpoint(&cn0), cn1.me());
    let word = GlobalAddr::new(node, 64);
    assert_eq!(on(ep, ep.faa(word, 7)).expect("there"), 0);
    cn0.connect(cn0.me().node, node, incarnation + 1);
    for _ in 0..3 {
        on(ep, ep.faa(word, 1)).expect_err("the former incarnation's memory");
    }
    let own = &endpoint(&cn1);
    assert_eq!(on(own, own.faa(word, 0)).expect("its own"), 7, "nothing came there");
    cn0.connect(cn0.me().node, node, incarnation);
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(on(ep, ep.faa(word, 0)).expect("connects again"), 7);
}

struct Echo;
impl Service for Echo {
    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        ep.faa(GlobalAddr::new(ep.node(), 512), 1).await?;
        ep.faa(at(512), 1).await?;
        if request.is_empty() {
            return Err(dmtree_fabric::Error::invalid("nothing to repeat"));
        }
        Ok([&from.bits().to_le_bytes()[..], request].concat())
    }
}

#[test]
fn calls_go_to_any_node_and_their_handlers_reach_any_memory() {
    let mn0 = found(1);
    let (cn0, cn1) = (compute(&mn0), compute(&mn0));
    for f in [&mn0, &cn0, &cn1] {
        f.serve(f.me().node, ServiceId(9), Arc::new(Echo)).expect("its own node");
    }
    let ep = &endpoint(&cn0);
    for to in [&mn0, &cn0, &cn1] {
        let mut reply = Vec::new();
        on(ep, ep.rpc(to.me().node, ServiceId(9), b"abc", &mut reply)).expect("answered");
        assert_eq!(reply[2..], *b"abc");
        let refused = on(ep, ep.rpc(to.me().node, ServiceId(9), b"", &mut reply));
        fails(refused, ErrorKind::InvalidArgument, "nothing to repeat");
        let unknown = on(ep, ep.rpc(to.me().node, ServiceId(8), b"", &mut reply));
        fails(unknown, ErrorKind::Unsupported, "");
    }
    let counted = on(ep, ep.faa(at(512), 0)).expect("counted");
    assert_eq!(counted, 8, "6 calls, two of mn0's count twice");
}

#[test]
fn a_memory_node_that_is_gone_is_an_error_and_one_that_is_back_is_another_pool() {
    let mn0 = found(1);
    let address = mn0.listens().to_string();
    let cn0 = compute(&mn0);
    let ep = &endpoint(&cn0);
    on(ep, ep.faa(at(64), 1)).expect("works");
    drop(mn0);
    let e = on(ep, ep.faa(at(64), 1)).expect_err("gone");
    assert_eq!((e.kind(), e.effect()), (ErrorKind::Unreachable, Effect::Unknown), "{e}");
    let again = found_at(&address, 1);
    std::thread::sleep(Duration::from_millis(150));
    fails(on(ep, ep.faa(at(64), 1)), ErrorKind::Incompatible, "another pool");
    let join = on(ep, async { cn0.membership().join(cn0.me(), 0).await });
    fails(join, ErrorKind::Incompatible, "another pool");
    drop(again);
}

#[test]
fn an_early_joiner_waits_and_reports_the_reason() {
    let mn0 = found(2);
    let join = |first: &str| join_as(first, Role::Compute);
    fails(join(mn0.listens()), ErrorKind::Busy, "1 of 2");
    fails(join("127.0.0.1:1"), ErrorKind::Unreachable, "no process listens");
    fails(join("nowhere"), ErrorKind::InvalidArgument, "");
}

/// Joins at a server that sends `bytes` to every peer and closes.
fn join_foreign(bytes: Vec<u8>) -> Result<NetFabric> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut [0; 64]);
        }
    });
    join_as(&address, Role::Compute)
}

#[test]
fn other_programs_and_versions_are_distinguished() {
    let web_server = join_foreign(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    fails(web_server, ErrorKind::Incompatible, "no node of dmtree");
    let other = join_foreign([&b"dmtwire\n"[..], &99u32.to_le_bytes()].concat());
    fails(other, ErrorKind::Incompatible, "version 99");
}

#[test]
fn a_pool_on_another_fabric_is_recognized() {
    let mn0 = found(1);
    let (here, other) = match data_path() {
        DataPath::Frames => (DataPath::Frames, DataPath::Rdma),
        DataPath::Rdma => (DataPath::Rdma, DataPath::Frames),
    };
    let join = |path| join_with(mn0.listens(), Role::Compute, Some(path), &NicConfig::default());
    assert_eq!(join(here).expect("fits").data_path(), here);
    let words = format!("is on fabric {here}, not on {other}: give --fabric {here}");
    fails(join(other), ErrorKind::Incompatible, &words);
}

/// Regression: each node had a clock of its own, and an executor's timers went by the clock of the
/// first: a pause of a client of a node that had started later was over before it had begun by the
/// client's clock, and nothing woke the client again. The bench hung in this way, with clients of
/// several nodes on one thread.
#[test]
fn clients_of_several_nodes_share_an_executor_and_its_clock() {
    let mn0 = found(1);
    let cn0 = compute(&mn0);
    std::thread::sleep(Duration::from_millis(50));
    let cn1 = compute(&mn0);
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let first = endpoint(&cn0);
        let transport = cn1.attach(cn1.me().node).expect("this process's node");
        let slot = first.core().add_slot();
        let ep = &Endpoint::new(first.core().clone(), transport, slot);
        let slept = on(ep, async {
            ep.sleep(1_000_000).await;
            ep.faa(at(64), 1).await
        });
        done.send(slept).expect("waited for");
    });
    let slept = ended.recv_timeout(Duration::from_secs(10)).expect("the pause ends");
    assert_eq!(slept.expect("works"), 0);
}

/// A pool with keys answers nothing to a process without, or with those of another pool, and goes
/// on; so does the process that asked.
#[test]
fn only_processes_with_keys_of_the_pool_belong_to_it() {
    let of_a = keyed(&drawn());
    let mn0 = found_with(&of_a, "127.0.0.1:0", 1).expect("a free port");
    mn0.ready().expect("itself");
    let join_at = |f: &NetFabric, e: &NicConfig| join_with(f.listens(), Role::Compute, None, e);
    let join = |e: &NicConfig| join_at(&mn0, e);
    let (cn0, cn1) = (join(&of_a).expect("the same keys"), join(&of_a).expect("the same keys"));
    let (ep, word) = (&endpoint(&cn0), GlobalAddr::new(cn1.me().node, 64));
    let both = async { Ok((ep.faa(at(64), 1).await?, ep.faa(word, 1).await?)) };
    assert_eq!(on(ep, both).expect("links show them, too"), (0, 0));
    on(ep, async { cn0.membership().join(cn0.me(), 0).await }).expect("so do questions");
    cn0.revoke(MN, cn1.me().node, 0).expect("and those to other hosts");
    for (wrong, words) in
        [(keyed(&drawn()), "not of this pool"), (NicConfig::default(), "asks for keys")]
    {
        fails(join(&wrong), ErrorKind::Incompatible, words);
        let asked = NetFabric::pool_config(mn0.listens(), &wrong, SOON);
        fails(asked, ErrorKind::Incompatible, words);
        let asked = NetFabric::status_of(mn0.listens(), &wrong);
        fails(asked, ErrorKind::Incompatible, words);
        let asked = NetFabric::ask_to_leave(cn0.listens(), &wrong, cn0.me());
        fails(asked, ErrorKind::Incompatible, words);
    }
    fails(join_at(&found(1), &of_a), ErrorKind::Incompatible, "has no keys");
    assert_eq!(on(ep, ep.faa(at(64), 1)).expect("goes on"), 1);
    assert!(!cn0.is_asked_to_leave());
}

/// What a certificate allows is what its roles say, whatever its process asks for.
#[test]
fn a_role_that_is_too_small_executes_nothing() {
    let keys = drawn();
    let with = |role| of_role(&keys, role);
    let mn0 = found_with(&with(KeyRole::Memory), "127.0.0.1:0", 1).expect("a free port");
    mn0.ready().expect("itself");
    let join = |node, role| join_with(mn0.listens(), node, None, &with(role));
    let cn0 = join(Role::Compute, KeyRole::Compute).expect("the role");
    let ep = &endpoint(&cn0);
    on(ep, ep.faa(at(64), 5)).expect("a compute node writes");
    on(ep, async { cn0.membership().join(cn0.me(), 0).await }).expect("and joins");
    for (node, role) in [
        (Role::Compute, KeyRole::Memory),
        (Role::Compute, KeyRole::Admin),
        (Role::Memory, KeyRole::Compute),
        (Role::Memory, KeyRole::Reader),
        (Role::Memory, KeyRole::Admin),
    ] {
        fails(join(node, role), ErrorKind::Incompatible, "needs a certificate with the role");
    }
    for role in KeyRole::ALL {
        NetFabric::status_of(mn0.listens(), &with(role)).expect("every role asks for the status");
        let asked = NetFabric::ask_to_leave(cn0.listens(), &with(role), cn0.me());
        match role {
            KeyRole::Admin => asked.expect("an administrator asks a node to leave"),
            _ => fails(asked, ErrorKind::Incompatible, "role admin"),
        }
        assert_eq!(cn0.is_asked_to_leave(), role == KeyRole::Admin, "{role}");
    }
    for role in [KeyRole::Compute, KeyRole::Reader, KeyRole::Admin] {
        let founded = found_with(&with(role), "127.0.0.1:0", 1);
        fails(founded, ErrorKind::Incompatible, "founding a pool needs");
    }
    assert_eq!(on(ep, ep.faa(at(64), 0)).expect("nothing has changed"), 5);
}

/// A service that counts its calls.
struct Counts(Arc<std::sync::atomic::AtomicU64>);
impl Service for Counts {
    async fn answer(&self, _: &Endpoint, _: NodeId, _: &[u8]) -> Result<Vec<u8>> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok(Vec::new())
    }
}

/// A reader reads memory. What it writes, changes or calls is refused, by the host.
#[test]
fn a_reader_reads_and_changes_nothing() {
    let keys = drawn();
    let mn0 = found_with(&keyed(&keys), "127.0.0.1:0", 1).expect("a free port");
    mn0.ready().expect("itself");
    let (service, calls) = (ServiceId(9), Arc::default());
    mn0.serve(MN, service, Arc::new(Counts(Arc::clone(&calls)))).expect("its own");
    let join = |e: &NicConfig| join_with(mn0.listens(), Role::Compute, None, e).expect("joins");
    let (cn0, reader) = (join(&keyed(&keys)), join(&of_role(&keys, KeyRole::Reader)));
    let (ep, its) = (&endpoint(&cn0), &endpoint(&reader));
    on(ep, ep.faa(at(64), 7)).expect("a compute node writes");
    let word = || {
        let found = on(its, async { Ok(its.read(at(64), 8).await?.word(0)) });
        found.expect("a reader reads")
    };
    assert_eq!(word(), 7);
    let words = "role reader reads memory";
    fails(on(its, its.faa(at(64), 1)), ErrorKind::Incompatible, words);
    fails(on(its, its.cas(at(64), 7, 8)), ErrorKind::Incompatible, words);
    fails(on(its, its.write_word(at(64), 8)), ErrorKind::Incompatible, words);
    fails(on(its, its.write_bytes(at(64), &[8; 32])), ErrorKind::Incompatible, words);
    let call = on(its, its.rpc(MN, service, b"", &mut Vec::new()));
    fails(call, ErrorKind::Incompatible, words);
    assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 0);
    let part = "a part in the membership";
    let (me, membership) = (reader.me(), reader.membership());
    let asked = on(its, async { membership.join(me, 0).await });
    fails(asked, ErrorKind::Incompatible, part);
    let asked = on(its, async { membership.propose(me, Change::Leave, 0).await });
    fails(asked, ErrorKind::Incompatible, part);
    fails(reader.revoke(MN, cn0.me().node, cn0.me().incarnation), ErrorKind::Incompatible, part);
    assert_eq!(word(), 7);
    assert_eq!(on(ep, ep.faa(at(64), 0)).expect("its access is there"), 7);
}

#[test]
fn without_keys_no_node_listens_to_other_machines() {
    let listen = |e: &NicConfig| found_with(e, "0.0.0.0:0", 1);
    let e = listen(&NicConfig::default()).expect_err("open to every machine");
    let words = ["--key-file", "--insecure", "127.0.0.1"];
    assert!(words.iter().all(|w| e.to_string().contains(w)), "{e}");
    listen(&keyed(&drawn())).expect("with keys");
    let access = Access { insecure: true, ..Access::default() };
    listen(&NicConfig::with(access)).expect("on purpose");
}

#[test]
fn garbage_from_peers_is_harmless() {
    let mn0 = found(1);
    for len in [0, 5, 12, 20, 45, 60, 200] {
        let mut peer = TcpStream::connect(mn0.listens()).expect("listens");
        let mut bytes = b"dmtwire\n\x03\0\0\0".to_vec();
        bytes.resize(len, 0xff);
        let _ = peer.write_all(&bytes);
        drop(peer);
    }
    let cn0 = compute(&mn0);
    let ep = &endpoint(&cn0);
    assert_eq!(on(ep, ep.faa(at(64), 1)).expect("still serves"), 0);
}

#[test]
fn the_membership_is_kept_by_the_first_memory_node() {
    let mn0 = found(1);
    let (cn0, cn1) = (compute(&mn0), compute(&mn0));
    let (m0, m1) = (cn0.membership(), cn1.membership());
    let ep = &endpoint(&cn0);
    on(ep, async {
        m0.join(cn0.me(), 0).await?;
        m1.join(cn1.me(), 0).await?;
        m1.propose(cn1.me(), Change::Leave, 0).await?;
        let state = m0.state(cn0.me(), 0).await?;
        assert_eq!(state.phase(cn1.me()), Some(MemberPhase::Revoking));
        assert_eq!(m1.renew(cn1.me(), 0).await.expect_err("has left").kind(), ErrorKind::Revoked);
        m0.renew(cn0.me(), 0).await?;
        Ok(())
    })
    .expect("all answered");
}

/// Hangs until it is released.
struct Hung(Arc<std::sync::atomic::AtomicBool>);
impl RpcHandler for Hung {
    fn call<'a>(&'a self, _: &'a Endpoint, _: NodeId, _: &'a [u8]) -> RpcFuture<'a> {
        while !self.0.load(std::sync::atomic::Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// Regression: verbs in flight to a process that stood still were waited for, for two seconds,
/// however short the lease was.
#[test]
fn links_to_dead_nodes_end_at_once() {
    let mn0 = found(1);
    let (cn0, cn1) = (compute(&mn0), compute(&mn0));
    let goes_on = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let service = ServiceId(0x77);
    cn1.serve(cn1.me().node, service, Arc::new(Hung(goes_on.clone()))).expect("its own");
    let (ep, dead) = (endpoint(&cn0), cn1.me());
    let agent = cn0.clone();
    let teller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        agent.abandon(agent.me().node, dead);
    });
    let call = on(&ep, ep.rpc(dead.node, service, b"", &mut Vec::new()));
    let e = call.expect_err("no answer");
    assert_eq!((e.kind(), e.effect()), (ErrorKind::Unreachable, Effect::Unknown), "{e}");
    assert!(e.to_string().contains("has lost its membership"), "{e}");
    let later = on(&ep, ep.faa(GlobalAddr::new(dead.node, 64), 1));
    fails(later, ErrorKind::Unreachable, "has lost its membership");
    goes_on.store(true, std::sync::atomic::Ordering::SeqCst);
    teller.join().expect("no panic");
}

#[test]
fn a_memory_node_that_is_away_gets_no_verbs() {
    let mn0 = found(2);
    let mn1 = join_as(mn0.listens(), Role::Memory).expect("the second");
    mn1.ready().expect("mn0 answers");
    let cn0 = compute(&mn0);
    let (ep, there) = (endpoint(&cn0), GlobalAddr::new(mn1.me().node, 64));
    on(&ep, ep.faa(there, 1)).expect("it is present");
    cn0.set_presence(cn0.me().node, mn1.me().node, Presence::Missing);
    fails(on(&ep, ep.faa(there, 1)), ErrorKind::Unreachable, "mn1 is missing");
    on(&ep, ep.faa(at(64), 1)).expect("others are not");
    cn0.set_presence(cn0.me().node, mn1.me().node, Presence::Present);
    assert_eq!(on(&ep, ep.faa(there, 0)).expect("it is back"), 1);
}

/// A pool with a journal node, and the part of the journal that a node is.
fn found_with_journal() -> NetFabric {
    let pool_config = PoolConfig {
        memory_nodes: 1,
        compute_nodes: 4,
        journal_nodes: 1,
        skips_journal: false,
        data_path: data_path(),
        options: b"options".to_vec(),
    };
    let lease_parameters = LeaseParameters { lease_ns: 300_000_000, ..LeaseParameters::default() };
    let nic_config = NicConfig::default();
    let mn0 = NetFabric::found("127.0.0.1:0", 1 << 16, pool_config, lease_parameters, &nic_config);
    let mn0 = mn0.expect("a free port");
    mn0.ready().expect("itself");
    mn0
}

fn join_journal(first: &NetFabric, mark: Option<ShardMark>) -> Result<(NetFabric, ShardMark)> {
    join_journal_within(Duration::from_secs(5), first, mark)
}

fn join_journal_within(
    within: Duration,
    first: &NetFabric,
    mark: Option<ShardMark>,
) -> Result<(NetFabric, ShardMark)> {
    let (first, listen, nic_config) = (first.listens(), "127.0.0.1:0", &NicConfig::default());
    let place = Place { first, listen, wanted: None, within, data_path: None, nic_config };
    NetFabric::join_journal(
        &place,
        JournalDirectory { mark, has_indexes: mark.is_some(), replaces: false },
        |_| Ok(()),
    )
}

/// A compute node is dead when its journal nodes have revoked its access, and not before: what it
/// appends from then on is refused, whichever node takes its locks over.
#[test]
fn a_journal_node_refuses_dead_nodes_before_others_take_over() {
    let mn0 = found_with_journal();
    let early = join_as(mn0.listens(), Role::Compute).expect_err("no journal node");
    assert!(early.to_string().contains("waits for its journal nodes: 0 of 1"), "{early}");
    let (jn0, _) = join_journal(&mn0, None).expect("the first");
    jn0.serve(jn0.me().node, ServiceId(9), Arc::new(Answers)).expect("its own");
    jn0.ready().expect("mn0 answers");
    let (cn0, cn1) = (compute(&mn0), compute(&mn0));
    let (a, b) = (&endpoint(&cn0), &endpoint(&cn1));
    let call =
        |ep: &Endpoint| on(ep, ep.rpc(NodeId::journal(0), ServiceId(9), b"", &mut Vec::new()));
    on(a, async { cn0.membership().join(cn0.me(), 0).await }).expect("joins");
    on(b, async { cn1.membership().join(cn1.me(), 0).await }).expect("joins");
    call(a).expect("it is living");
    on(b, async { cn0.membership().propose(cn0.me(), Change::Leave, 0).await }).expect("leaves");
    let revoked = Change::Acknowledge(cn0.me(), MemberPhase::Revoking);
    let until = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let state = on(b, async {
            let membership = cn1.membership();
            membership.renew(cn1.me(), 0).await?;
            membership.propose(cn1.me(), revoked.clone(), 0).await?;
            membership.state(cn1.me(), 0).await
        })
        .expect("answered");
        let acknowledged = &state.of(cn0.me()).expect("known").acknowledged;
        let phase = state.phase(cn0.me());
        if phase > Some(MemberPhase::Revoking) {
            break;
        }
        if acknowledged.contains(&jn0.me()) {
            call(a).expect_err("its link has ended");
        }
        assert!(std::time::Instant::now() < until, "{state:?}");
    }
    call(a).expect_err("its link has ended");
    fails(call(a), ErrorKind::Revoked, "jn0 refuses");
    call(b).expect("others are not refused");
}

/// A journal node comes back in another incarnation, with the same part of the journal, when the
/// former one is away; until then its place is taken.
#[test]
fn a_journal_node_comes_back_with_its_directory() {
    let mn0 = found_with_journal();
    let (jn0, mark) = join_journal(&mn0, None).expect("the first");
    jn0.serve(jn0.me().node, ServiceId(9), Arc::new(Answers)).expect("its own");
    jn0.ready().expect("mn0 answers");
    let cn0 = compute(&mn0);
    let ep = &endpoint(&cn0);
    let call = || on(ep, ep.rpc(NodeId::journal(0), ServiceId(9), b"", &mut Vec::new()));
    on(ep, async { cn0.membership().join(cn0.me(), 0).await }).expect("joins");
    call().expect("it is there");
    let goes_on = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let (its, of) = (goes_on.clone(), cn0.clone());
    let renewals = std::thread::spawn(move || {
        let ep = &endpoint(&of);
        while its.load(std::sync::atomic::Ordering::SeqCst) {
            on(ep, async { of.membership().renew(of.me(), 0).await }).expect("a lease");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let taken = join_journal_within(Duration::from_millis(500), &mn0, Some(mark));
    let taken = taken.expect_err("it is there");
    assert!(taken.to_string().contains("jn0 is served by"), "{taken}");
    let former = jn0.me();
    jn0.close();
    drop(jn0);
    let (jn0, again) = join_journal(&mn0, Some(mark)).expect("the former one is away");
    jn0.serve(jn0.me().node, ServiceId(9), Arc::new(Answers)).expect("its own");
    jn0.ready().expect("mn0 answers");
    assert_eq!((again, jn0.me().incarnation), (mark, former.incarnation + 1));
    let state = on(ep, async { cn0.membership().state(cn0.me(), 0).await }).expect("answered");
    assert_eq!(state.memory_node(jn0.me().node).map(|m| m.member), Some(jn0.me()));
    cn0.connect(cn0.me().node, jn0.me().node, jn0.me().incarnation);
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while let Err(e) = call() {
        assert!(std::time::Instant::now() < until, "{e}");
        std::thread::sleep(Duration::from_millis(10));
    }
    goes_on.store(false, std::sync::atomic::Ordering::SeqCst);
    renewals.join().expect("no panic");
    let e = join_journal(&mn0, Some(ShardMark { journal: 1, ..mark })).expect_err("another's");
    assert!(e.to_string().contains("another pool"), "{e}");
}

/// Answers every call.
struct Answers;
impl RpcHandler for Answers {
    fn call<'a>(&'a self, _: &'a Endpoint, _: NodeId, _: &'a [u8]) -> RpcFuture<'a> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
