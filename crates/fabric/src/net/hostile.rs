//! Tests: peers that announce much, take nothing, stay silent or come in thousands; hosts that fall
//! silent. They measure this process's memory, threads and files, so one of these tests runs at a
//! time.
#![expect(clippy::disallowed_methods, reason = "real sockets in real time")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::access::{Access, Keys};
use super::admin::Admin;
use super::dial::{NotOpened, Opening, To};
use super::identity::KeyRole;
use super::io::{Net, Stream};
use super::roles::Issued;
use super::sockets::System;
use super::wire::{Ask, Credential, Hello};
use super::{DataPath, NetFabric, NicConfig, Place, PoolConfig, frames};
use crate::addr::{GlobalAddr, NodeId, Role};
use crate::endpoint::Endpoint;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::membership::{Change, LeaseParameters, Member};
use crate::rpc::{Service, ServiceId};
use crate::transport::Fabric;

const MIB: u64 = 1 << 20;

/// Excludes other tests that look at the memory, threads or descriptors of this process, or take
/// many.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn found(region_bytes: u64) -> NetFabric {
    found_with(region_bytes, &NicConfig::default())
}

fn found_with(region_bytes: u64, nic_config: &NicConfig) -> NetFabric {
    let (data_path, options) = (DataPath::Frames, Vec::new());
    let pool_config = PoolConfig {
        memory_nodes: 1,
        compute_nodes: 4,
        journal_nodes: 0,
        skips_journal: false,
        data_path,
        options,
    };
    let lease_parameters = LeaseParameters::default();
    let mn0 =
        NetFabric::found("127.0.0.1:0", region_bytes, pool_config, lease_parameters, nic_config);
    let mn0 = mn0.expect("a free port");
    mn0.ready().expect("itself");
    mn0
}

fn join(first: &str) -> NetFabric {
    join_with(first, &NicConfig::default())
}

fn join_with(first: &str, nic_config: &NicConfig) -> NetFabric {
    let (listen, within) = ("127.0.0.1:0", Duration::from_secs(2));
    let place = Place { first, listen, wanted: None, within, data_path: None, nic_config };
    NetFabric::join(&place, Role::Compute, |_| Ok(1 << 14)).expect("joins")
}

fn endpoint(f: &NetFabric) -> Endpoint {
    Endpoint::alone(f.attach(f.me().node).expect("this process's node"), 0)
}

fn faa(ep: &Endpoint) -> Result<u64> {
    ep.block_on(ep.faa(GlobalAddr::new(NodeId::memory(0), 64), 1))
}

/// A stream to a host that has granted what a process says, or why there is none.
fn opened(to: To<'_>) -> std::result::Result<Box<dyn Stream>, NotOpened> {
    opened_on(&System::default(), to)
}

fn opened_on(net: &dyn Net, to: To<'_>) -> std::result::Result<Box<dyn Stream>, NotOpened> {
    let mut opening = Opening::begin(net, to).expect("begins");
    loop {
        match opening.drive(net.now()) {
            Poll::Ready(ended) => return ended.map(|(stream, _)| stream),
            Poll::Pending => net.wait(opening.waits_for().as_slice(), 10_000_000),
        }
    }
}

/// An admitted link of a member, for hostile bytes.
fn raw_link(host: &NetFabric, member: &NetFabric, number: u64) -> Box<dyn Stream> {
    let (credential, to, replaces) = (member.0.shared.badges.credential(member.me()), host.me(), 0);
    let hello =
        Hello::Link { pool: host.pool(), credential, to, number: number + (1 << 40), replaces };
    let to = To { address: host.listens(), role: None, hello: &hello };
    opened(to).unwrap_or_else(|not| panic!("{}", not.why))
}

fn of_this_process(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with(field)).expect("there");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

fn resident() -> u64 {
    of_this_process("VmRSS:") << 10
}

fn threads() -> u64 {
    of_this_process("Threads:")
}

fn descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count() as u64
}

fn wait_until(condition: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{condition}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Regression: each of these peers got a buffer of the announced length.
#[test]
fn announced_lengths_take_no_memory() {
    let _alone = alone();
    let mn0 = found(MIB);
    let cn0 = join(mn0.listens());
    let ep = endpoint(&cn0);
    let before = resident();
    let mut peers: Vec<_> = (0..48).map(|n| raw_link(&mn0, &cn0, n)).collect();
    for peer in &mut peers {
        let mut frame = (64u32 << 20).to_le_bytes().to_vec();
        frame.extend([frames::POST, 0, 0, 0]);
        peer.write(&frame).expect("taken");
    }
    for _ in 0..50 {
        faa(&ep).expect("others go on");
        std::thread::sleep(Duration::from_millis(2));
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 32 * MIB, "{} MiB more for 192 bytes", grown / MIB);
    // Their frames cannot be executed any more.
    for peer in &mut peers {
        let until = Instant::now() + Duration::from_secs(10);
        while matches!(peer.read(&mut [0; 8]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
        {
            assert!(Instant::now() < until, "an unfinished frame keeps its connection");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    faa(&ep).expect("still");
}

/// A frame of READs.
fn reads(clock_free_use_by: u64, times: usize, bytes: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    let start = frames::begin(&mut frame, frames::POST);
    frame.extend(clock_free_use_by.to_le_bytes());
    for _ in 0..times {
        frame.push(0);
        frame.extend(bytes.to_le_bytes());
        frame.extend(GlobalAddr::new(NodeId::memory(0), 64).bits().to_le_bytes());
    }
    frames::end(&mut frame, start);
    frame
}

/// Regression: unread answers were kept without a limit, and operations of other peers failed
/// meanwhile.
#[test]
fn answers_that_are_not_taken_are_bounded() {
    let _alone = alone();
    let mn0 = found(32 * MIB);
    let cn0 = join(mn0.listens());
    let ep = endpoint(&cn0);
    faa(&ep).expect("works");
    let before = resident();
    let mut peers: Vec<_> = (0..24).map(|n| raw_link(&mn0, &cn0, n)).collect();
    let frame = reads(u64::MAX, 4, 4 << 20);
    let until = Instant::now() + Duration::from_secs(4);
    let (mut most, mut slowest, mut cut) = (0, Duration::ZERO, 0);
    while Instant::now() < until {
        peers.retain_mut(|peer| {
            let goes_on = match peer.write(&frame) {
                Ok(n) => n > 0,
                Err(e) => e.kind() == std::io::ErrorKind::WouldBlock,
            };
            cut += usize::from(!goes_on);
            goes_on
        });
        let began = Instant::now();
        faa(&ep).expect("others go on");
        slowest = slowest.max(began.elapsed());
        most = most.max(resident().saturating_sub(before));
        std::thread::sleep(Duration::from_millis(5));
    }
    // The region itself becomes resident by being read.
    assert!(most < 32 * MIB + 96 * MIB, "{} MiB for peers that take nothing", most / MIB);
    assert!(cut > 0, "a peer that takes nothing is cut off");
    assert!(slowest < Duration::from_secs(1), "another's verb took {slowest:?}");
    drop(peers);
    faa(&ep).expect("still");
}

/// Regression: each connection had a thread, and three descriptors.
#[test]
fn idle_links_take_a_descriptor_each_and_no_thread() {
    let _alone = alone();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = limit.unwrap_or(8192).saturating_sub(200) / 3;
    let links = most.min(1900);
    let mn0 = found(MIB);
    let cn0 = join(mn0.listens());
    let ep = endpoint(&cn0);
    faa(&ep).expect("works");
    let (before, open) = (threads(), descriptors());
    let peers: Vec<_> = (0..links).map(|n| raw_link(&mn0, &cn0, n)).collect();
    faa(&ep).expect("others go on");
    let (now, now_open) = (threads(), descriptors());
    // Other tests of this program have threads and files, too.
    assert!(now < before + 64, "{before} threads, then {now}");
    assert!(now_open < open + 2 * links + 64, "{open} descriptors, then {now_open}");
    drop(peers);
    wait_until("links that are gone keep their descriptors", || descriptors() < open + 64);
    faa(&ep).expect("still");
}

/// Regression: each silent peer kept a thread for 2 s; there was no limit to them.
#[test]
fn silent_peers_make_room_for_others() {
    let _alone = alone();
    let mn0 = found(MIB);
    let at = mn0.listens().to_string();
    let silent: Vec<_> = (0..400).map(|_| TcpStream::connect(&at).expect("taken")).collect();
    let cn0 = join(&at);
    faa(&endpoint(&cn0)).expect("works");
    drop(silent);
}

struct Slow(Arc<Mutex<u32>>);
impl Service for Slow {
    async fn answer(&self, _: &Endpoint, _: NodeId, _: &[u8]) -> Result<Vec<u8>> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        std::thread::sleep(Duration::from_millis(20));
        Ok(Vec::new())
    }
}

/// Regression: calls of a process that had ended were executed one after the other, and other calls
/// waited for them.
#[test]
fn calls_of_a_connection_that_is_gone_are_not_executed() {
    let mn0 = found(MIB);
    let ran = Arc::new(Mutex::new(0));
    mn0.serve(mn0.me().node, ServiceId(9), Arc::new(Slow(ran.clone()))).expect("its own node");
    let cn0 = join(mn0.listens());
    let mut peer = raw_link(&mn0, &cn0, 1);
    let mut bytes = Vec::new();
    for number in 0..60 {
        frames::call(&mut bytes, u64::MAX, number, ServiceId(9), b"");
    }
    peer.write(&bytes).expect("taken");
    wait_until("the first one runs", || *ran.lock().expect("no panic") > 0);
    drop(peer);
    let ep = endpoint(&cn0);
    let mut reply = Vec::new();
    let call = ep.rpc(NodeId::memory(0), ServiceId(9), b"", &mut reply);
    ep.block_on(call).expect("answered");
    let ran = *ran.lock().expect("no panic");
    assert!(ran < 30, "{ran} calls, 60 of a peer that is gone");
}

/// A proxy to a host that can reset its connections, and become a black hole.
struct CuttableProxy {
    at: String,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    is_hole: Arc<AtomicBool>,
}

impl CuttableProxy {
    fn to(host: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound").to_string();
        let (streams, is_hole) = (Arc::new(Mutex::new(Vec::new())), Arc::default());
        let proxy = Self { at, streams, is_hole };
        let (streams, is_hole, host) =
            (proxy.streams.clone(), proxy.is_hole.clone(), host.to_string());
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for near in listener.incoming().flatten() {
                if is_hole.load(Ordering::SeqCst) {
                    kept.push(near);
                    continue;
                }
                let far = TcpStream::connect(&host).expect("listens");
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let pair = (from.try_clone().expect("a clone"), to.try_clone().expect("one"));
                    std::thread::spawn(move || pump(pair.0, pair.1));
                }
                streams.lock().expect("no panic").extend([near, far]);
            }
        });
        proxy
    }

    /// Resets all connections; later ones get no answer.
    fn cut(&self) {
        self.is_hole.store(true, Ordering::SeqCst);
        for stream in self.streams.lock().expect("no panic").drain(..) {
            let _ = rustix::net::sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO));
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let mut chunk = [0; 4096];
    while let Ok(n) = from.read(&mut chunk) {
        if n == 0 || to.write_all(&chunk[..n]).is_err() {
            return;
        }
    }
}

fn within<T: Send + 'static>(seconds: u64, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(run()));
    ended.recv_timeout(Duration::from_secs(seconds)).expect("ends within the deadline")
}

/// Regression: a client thread reconnected without a limit, and waited as long as the system tries:
/// two minutes.
#[test]
fn a_reset_and_then_a_black_hole_cost_less_than_an_operations_deadline() {
    let mn0 = found(MIB);
    let proxy = CuttableProxy::to(mn0.listens());
    let cn0 = join(&proxy.at);
    within(9, move || {
        let ep = endpoint(&cn0);
        faa(&ep).expect("works");
        proxy.cut();
        let e: Error = faa(&ep).expect_err("the proxy is cut");
        assert_eq!((e.kind(), e.effect()), (ErrorKind::Unreachable, Effect::Unknown), "{e}");
        assert_eq!(faa(&ep).expect_err("it still is").kind(), ErrorKind::Unreachable);
        drop(ep);
    });
}

/// An address that takes no connection at all, not even into its queue.
#[test]
fn an_address_that_answers_nothing_costs_less_than_an_operations_deadline() {
    let full = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .expect("a socket");
    rustix::net::bind(&full, &std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0))
        .expect("a port");
    rustix::net::listen(&full, 0).expect("listens");
    let listener = TcpListener::from(full);
    let at = listener.local_addr().expect("bound").to_string();
    let fill: Vec<_> = (0..8).map(|_| System::default().dial(&at).expect("begins")).collect();
    let began = Instant::now();
    let mn0 = found(MIB);
    let (pool, to) = (mn0.pool(), mn0.me());
    let credential = mn0.0.shared.badges.credential(to);
    let hello = Hello::Link { pool, credential, to, number: 1, replaces: 0 };
    let to = To { address: &at, role: None, hello: &hello };
    let Err(not) = opened(to) else { panic!("it answers nothing") };
    assert!(!not.is_deserted && not.why.kind() == ErrorKind::Unreachable, "{}", not.why);
    assert!(began.elapsed() < Duration::from_secs(5));
    drop(fill);
}

/// A process with keys of the pool, which shows another member's number, or speaks for another, is
/// refused; nothing is executed for it.
#[test]
fn another_members_number_executes_nothing() {
    let keys = Keys::of(&Keys::draw(1).expect("drawn")).expect("its own text");
    let nic_config = NicConfig::with(Access::with(keys.clone()));
    let mn0 = found_with(MIB, &nic_config);
    let (cn0, cn1) = (join_with(mn0.listens(), &nic_config), join_with(mn0.listens(), &nic_config));
    for cn in [&cn0, &cn1] {
        let ep = endpoint(cn);
        let joined = async { cn.membership().join(cn.me(), 0).await };
        ep.block_on(joined).expect("a lease");
    }
    let net = System::of(&nic_config.access);
    let as_member = |credential| {
        let admin =
            Admin::new(&net, mn0.listens().to_owned(), Some(mn0.pool()), Some(Role::Memory));
        admin.speaking_for(credential)
    };
    let own = cn1.0.shared.badges.credential(cn1.me());
    let next = Member { incarnation: 2, ..cn0.me() };
    for member in [cn0.me(), next, mn0.me()] {
        let stolen = Credential { member, ..own };
        for ask in [Ask::Propose(member, Change::Leave), Ask::Revoke(cn0.me()), Ask::NodeDirectory]
        {
            let e = as_member(stolen).ask(&ask).expect_err("another's number");
            assert!(e.to_string().contains("has not registered"), "{ask:?}: {e}");
        }
        let e = as_member(own).ask(&Ask::Propose(member, Change::Leave)).expect_err("another");
        assert!(e.to_string().contains("does not speak for"), "{e}");
        let (pool, to) = (mn0.pool(), mn0.me());
        let hello = Hello::Link { pool, credential: stolen, to, number: 1 << 40, replaces: 0 };
        let to = To { address: mn0.listens(), role: None, hello: &hello };
        let Err(not) = opened_on(&*net, to) else { panic!("a link of another") };
        assert!(not.why.to_string().contains("has not registered"), "{}", not.why);
    }
    let reader = Keys::of(&keys.issue(KeyRole::Reader, 1).expect("issued")).expect("its text");
    let reader = NicConfig::with(Access::with(reader));
    let cn2 = join_with(mn0.listens(), &reader);
    let badges = &cn2.0.shared.badges;
    assert!(matches!(badges.issued, Issued::Badge(_)), "a reader gets no secret");
    let (pool, to, credential) = (mn0.pool(), mn0.me(), badges.credential(cn0.me()));
    let hello = Hello::Link { pool, credential, to, number: 1 << 40, replaces: 1 };
    let to = To { address: mn0.listens(), role: None, hello: &hello };
    let Err(not) = opened_on(&*System::of(&reader.access), to) else { panic!("a reader's link") };
    assert!(not.why.to_string().contains("has not registered"), "{}", not.why);
    let server = mn0.0.shared.rendezvous.server().expect("mn0");
    assert!(server.membership.latest().is_living(cn0.me()));
    assert_eq!(faa(&endpoint(&cn0)).expect("its access is there"), 0);
}

/// A process with a certificate that has expired, or begins later, is refused by hosts, and so is a
/// host by processes; nothing is executed for either.
#[test]
fn keys_that_are_not_valid_now_execute_nothing() {
    let keys = Keys::of(&Keys::draw(1).expect("drawn")).expect("its own text");
    let now = rustls::pki_types::UnixTime::now().as_secs();
    let good = NicConfig::with(Access::with(keys.clone()));
    let mn0 = found_with(MIB, &good);
    for (valid, words) in [
        (now - 9000..now - 60, "expired or not valid yet"),
        (now + 60..now + 9000, "expired or not valid yet"),
    ] {
        let bad = NicConfig::with(Access::with(keys.lasting(valid)));
        let e = NetFabric::status_of(mn0.listens(), &bad).expect_err("not valid now");
        assert!(e.kind() == ErrorKind::Incompatible && e.to_string().contains(words), "{e}");
        let place = Place {
            first: mn0.listens(),
            listen: "127.0.0.1:0",
            wanted: None,
            within: Duration::from_secs(2),
            data_path: None,
            nic_config: &bad,
        };
        let e = NetFabric::join(&place, Role::Compute, |_| Ok(1 << 14)).expect_err("not valid");
        assert!(e.to_string().contains(words), "{e}");
        let host = found_with(MIB, &bad);
        let e = NetFabric::status_of(host.listens(), &good).expect_err("not valid now");
        assert!(e.to_string().contains("its certificate"), "{e}");
    }
    join_with(mn0.listens(), &good);
}
