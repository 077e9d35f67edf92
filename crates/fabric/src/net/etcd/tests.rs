//! With a real server, which is started here; without `etcd` (Debian's `etcd-server`) these tests
//! say that they skip.
#![expect(clippy::disallowed_macros, reason = "a skip is loud")]

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use super::super::access::Access;
use super::super::data_path::{Common, DataPath};
use super::super::membership_server::PoolConfig;
use super::super::sockets::System;
use super::super::wire::{Introduction, PoolId};
use super::*;
use crate::addr::{NodeId, Role};
use crate::membership::{Change, Lease, MemberPhase};

mod faults;

/// A server of etcd that ends with its test.
struct Etcd {
    child: Child,
    at: String,
    _data: tempfile::TempDir,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

/// A running server; `None`, said loudly, where there is none. A port that was free may be taken
/// before the server listens there: others are tried.
fn etcd() -> Option<Etcd> {
    for _ in 0..5 {
        let mut server = launched()?;
        let gateway = Gateway::new(vec![server.at.clone()], REQUEST_WITHIN);
        let begun = eventually(30, &|| "etcd answers".into(), || match gateway.range("/x/") {
            Ok(_) => Some(true),
            Err(_) => server.child.try_wait().expect("a child").map(|_| false),
        });
        if begun {
            return Some(server);
        }
    }
    panic!("no ports for etcd");
}

fn launched() -> Option<Etcd> {
    let data = tempfile::tempdir().expect("a folder");
    let (client, peer) = (free_port(), free_port());
    let url = |port| format!("http://127.0.0.1:{port}");
    let started = Command::new("etcd")
        .args(["--data-dir", data.path().to_str().expect("text"), "--log-level", "error"])
        .args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)])
        .args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)])
        .args(["--initial-cluster", &format!("default={}", url(peer))])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = started else {
        eprintln!("SKIPPED: there is no etcd here (Debian: apt-get install etcd-server)");
        return None;
    };
    Some(Etcd { child, at: format!("127.0.0.1:{client}"), _data: data })
}

#[expect(clippy::disallowed_methods, reason = "real servers in real time")]
fn eventually<T>(seconds: u64, what: &dyn Fn() -> String, mut f: impl FnMut() -> Option<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        if let Some(out) = f() {
            return out;
        }
        assert!(
            began.elapsed() < Duration::from_secs(seconds),
            "{}: not within {seconds} s",
            what()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn net() -> Arc<dyn Net> {
    System::of(&Access::default())
}

fn address(server: &str, pool: &str) -> Address {
    Address::parse(&format!("etcd://{server}/{pool}")).expect("of etcd").expect("well formed")
}

fn foundation(pool: u64, memory_nodes: u16) -> Foundation {
    let data_path = DataPath::Frames;
    Foundation {
        pool: PoolId(pool),
        config: PoolConfig {
            memory_nodes,
            compute_nodes: 4,
            journal_nodes: 0,
            skips_journal: false,
            data_path,
            options: vec![1, 2, 3],
        },
        common: Common { data_path, mtu: 0, cores: 1 },
        secret: [7; 32],
        lease_ns: 1_000_000_000,
        acknowledge_ns: 3_000_000_000,
        drift_one_in: 16,
    }
}

fn mn0() -> NodeEntry {
    NodeEntry {
        member: Member { node: NodeId::memory(0), incarnation: 1 },
        address: "127.0.0.1:1".to_owned(),
        region_bytes: 1 << 20,
        on_chip_bytes: 0,
    }
}

/// A pool that is open: its first memory node has joined and is ready.
fn founded(at: &Address) -> EtcdMembership {
    let first = EtcdMembership::found(&net(), at, foundation(1, 1), mn0(), false).expect("new");
    let me = mn0().member;
    again(|| first.ask(&Ask::Join(me)));
    again(|| first.ask(&Ask::Ready { me, on_chip_bytes: 0 }));
    first
}

/// As a process does: a question without an answer is asked again.
fn again(ask: impl Fn() -> Result<Answer>) -> Answer {
    let last = std::cell::RefCell::new(String::new());
    let asked = || match ask() {
        Err(e) if e.is_retryable() => {
            *last.borrow_mut() = e.to_string();
            None
        }
        done => Some(done.expect("allowed")),
    };
    eventually(20, &|| format!("an answer ({})", last.borrow()), asked)
}

fn introduction(nonce: u64, wanted: Option<u16>) -> Ask {
    Ask::Register(Introduction {
        role: Role::Compute,
        wanted,
        listens: format!("127.0.0.1:{nonce}"),
        region_bytes: 4096,
        nonce,
        journal: None,
    })
}

fn register(of: &EtcdMembership, nonce: u64) -> Member {
    register_as(of, nonce, None)
}

fn register_as(of: &EtcdMembership, nonce: u64, wanted: Option<u16>) -> Member {
    match again(|| of.ask(&introduction(nonce, wanted))) {
        Answer::Registered { me, issued, .. } => {
            assert!(matches!(issued, Issued::Secret(secret) if secret == [7; 32]));
            me
        }
        other => panic!("{other:?}"),
    }
}

fn state(of: &EtcdMembership, me: Member) -> MembershipState {
    match again(|| of.ask(&Ask::MembershipState { me, known: 0 })) {
        Answer::MembershipState(Some(state)) => state,
        other => panic!("{other:?}"),
    }
}

fn lease(answer: Answer) -> Lease {
    match answer {
        Answer::Lease(lease) => lease,
        other => panic!("{other:?}"),
    }
}

#[test]
fn addresses_are_read_or_refused() {
    let parse = |text: &str| Address::parse(text);
    assert!(parse("10.0.0.1:7000").is_none());
    let ok = parse("etcd://a:1,[::1]:2/pool-1.x").expect("of etcd").expect("well formed");
    assert_eq!((ok.servers.len(), ok.prefix().as_str()), (2, "/dmtree/pool-1.x/"));
    for bad in [
        "etcd://",
        "etcd://a:1",
        "etcd://a:1/",
        "etcd:///p",
        "etcd://a/p",
        "etcd://a:x/p",
        "etcd://a:1,/p",
        "etcd://a:1/p/q",
        "etcd://a:1/p q",
        "etcd://a b:1/p",
    ] {
        assert!(parse(bad).expect("of etcd").is_err(), "{bad}");
    }
}

#[test]
fn a_pool_is_founded_once() {
    let Some(server) = etcd() else { return };
    let at = address(&server.at, "p");
    let none = EtcdMembership::open(&net(), &at).err().expect("no pool");
    assert!(none.is_retryable() && none.to_string().contains("no pool \"p\""), "{none}");
    let first = founded(&at);
    let second = EtcdMembership::found(&net(), &at, foundation(2, 1), mn0(), false).err();
    assert_eq!(second.expect("there is one").kind(), ErrorKind::Exists);
    let living = EtcdMembership::found(&net(), &at, foundation(2, 1), mn0(), true).err();
    assert!(living.expect("mn0 holds a lease").to_string().contains("hold leases"));
    assert_eq!(EtcdMembership::open(&net(), &at).expect("there").foundation, first.foundation);
    // Another pool of the same server.
    founded(&address(&server.at, "q"));
    // All processes of the first pool have ended.
    let leases = std::mem::take(&mut locked(&first.local).leases);
    leases.into_values().for_each(|lease| first.gateway.revoke(lease).expect("held"));
    EtcdMembership::found(&net(), &at, foundation(2, 1), mn0(), true).expect("nothing lives");
    let e = first.ask(&Ask::NodeDirectory).expect_err("another pool");
    assert_eq!(e.kind(), ErrorKind::Incompatible, "{e}");
}

#[test]
fn processes_share_one_membership() {
    let Some(server) = etcd() else { return };
    let at = address(&server.at, "p");
    let first = founded(&at);
    let open = || EtcdMembership::open(&net(), &at).expect("founded");
    let (a, b) = (open(), open());
    let (cn0, cn1) = (register(&a, 10), register(&b, 11));
    assert_eq!((cn0.node, cn1.node), (NodeId::compute(0), NodeId::compute(1)));
    assert_eq!(register(&a, 10), cn0, "the same question has the same answer");
    let granted = lease(again(|| a.ask(&Ask::Join(cn0))));
    assert!(granted.for_ns < 1_000_000_000, "less the drift: {granted:?}");
    again(|| b.ask(&Ask::Join(cn1)));
    lease(again(|| a.ask(&Ask::Renew(cn0))));
    assert!(state(&b, cn1).is_living(cn0) && state(&first, mn0().member).is_living(cn1));
    // A process that has ended is dead as soon as a node says so.
    first.lose(cn1);
    assert_eq!(state(&a, cn0).phase(cn1), Some(MemberPhase::Revoking));
    let e = b.ask(&Ask::Renew(cn1)).expect_err("dead");
    assert_eq!(e.kind(), ErrorKind::Revoked, "{e}");
    assert!(first.take_news().iter().any(|news| news.to_string().contains("has ended")));
    // An acknowledgement is seen by all.
    for (of, me) in [(&a, cn0), (&first, mn0().member)] {
        let done = Change::Acknowledge(cn1, MemberPhase::Revoking);
        again(|| of.ask(&Ask::Propose(me, done.clone())));
    }
    assert_eq!(state(&a, cn0).phase(cn1), Some(MemberPhase::Draining));
    let report = a.look().expect("etcd answers");
    assert_eq!((report.ready, report.node_directory.entries().len()), (1, 3));
}

/// A member without its key for a moment stands; one without it for longer is dead, and only then.
#[test]
fn a_lease_that_ends_is_a_death_unless_it_is_taken_again() {
    let Some(server) = etcd() else { return };
    let at = address(&server.at, "p");
    let first = founded(&at);
    let a = EtcdMembership::open(&net(), &at).expect("founded");
    let cn0 = register(&a, 10);
    again(|| a.ask(&Ask::Join(cn0)));
    let end = || {
        let lease = locked(&a.local).leases[&cn0];
        a.gateway.revoke(lease).expect("held");
    };
    end();
    assert!(state(&first, mn0().member).is_living(cn0), "it may come back");
    lease(again(|| a.ask(&Ask::Renew(cn0))));
    assert!(state(&first, mn0().member).is_living(cn0));
    end();
    eventually(10, &|| "it is dead".into(), || {
        (!state(&first, mn0().member).is_living(cn0)).then_some(())
    });
    assert_eq!(a.ask(&Ask::Renew(cn0)).expect_err("dead").kind(), ErrorKind::Revoked);
    let keys = first.gateway.range(&first.key("live/")).expect("etcd answers");
    assert_eq!(keys.len(), 1, "{keys:?}");
    // Its number goes on in the next incarnation.
    let next = register_as(&a, 12, Some(0));
    assert_eq!((next.node, next.incarnation), (cn0.node, 2));
}

#[test]
fn what_is_stored_is_not_trusted() {
    let Some(server) = etcd() else { return };
    let at = address(&server.at, "p");
    let first = founded(&at);
    let key = first.key("state");
    let good = first.gateway.range(&key).expect("there").remove(0).value;
    let put = |value: Vec<u8>| {
        first.gateway.transact(&[], &[Then::Put(&key, value)]).expect("etcd answers");
    };
    let mut other = good.clone();
    other[0] ^= 1;
    let mut torn = good.clone();
    *torn.last_mut().expect("long") ^= 1;
    for (bad, kind) in [
        (Vec::new(), ErrorKind::Corrupt),
        (vec![1, 0, 0], ErrorKind::Corrupt),
        (other, ErrorKind::Incompatible),
        (torn, ErrorKind::Corrupt),
    ] {
        put(bad);
        assert_eq!(first.ask(&Ask::NodeDirectory).expect_err("no state").kind(), kind);
    }
    put(good);
    assert!(first.ask(&Ask::NodeDirectory).is_ok());
}
