//! Hostile inputs and hostile connections against a memory node, from peers that have keys of the
//! pool and from peers that do not, while a compute process works. The test measures their cost:
//! the node's memory, and the time of the process's operations.
//!
//! `DMTREE_HOSTILE=INPUTS,CONNECTIONS` makes it long (`cargo xtask hostile`): times are judged
//! then, too.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dmtree_fabric::net::Keys;
use dmtree_fabric::net::fuzzing::{Peer, Registered};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use rustix::net::{AddressFamily, SocketType};

use crate::harness::{PATIENCE, Process, alone, found, status, within};
use crate::keys::key_file;

/// KiB that hostile peers may cost a memory node.
const MOST_KIB: u64 = 64 << 10;
/// Keys of the process that works.
const KEYS: u64 = 500;

/// The numbers of inputs and connections, and whether times are judged.
fn extent() -> (u64, usize, bool) {
    let Ok(long) = std::env::var("DMTREE_HOSTILE") else { return (1_000, 120, false) };
    let (inputs, connections) = long.split_once(',').expect("INPUTS,CONNECTIONS");
    (inputs.parse().expect("a number"), connections.parse().expect("a number"), true)
}

/// The random numbers of hostile peers.
struct Draws(SplitMix64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n.max(1)
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.below(256) as u8).collect()
    }
}

/// Connects from an address of its own, so that the limit for one peer is not the only one that
/// holds.
fn connect(at: &SocketAddrV4, from: u8) -> Option<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, from.max(2)), 0);
    rustix::net::bind(&socket, &from).ok()?;
    rustix::net::connect(&socket, at).ok()?;
    // Closed at once, and without the wait that keeps a port busy.
    let _ = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.set_write_timeout(Some(Duration::from_secs(5))).ok()?;
    Some(stream)
}

/// The hostile side.
struct Attack<'a> {
    at: SocketAddrV4,
    /// The keys of another pool.
    wrong: &'a Keys,
    keys: &'a Keys,
    draws: Draws,
    /// A member that never joins.
    member: Option<Registered>,
    asking: Option<Peer>,
    link: Option<Peer>,
    links: u64,
}

const GREETING: &[u8] = b"dmtwire\n\x09\0\0\0\x01";

impl Attack<'_> {
    fn connect(&mut self) -> Option<Peer> {
        connect(&self.at, self.draws.below(200) as u8 + 2).map(Peer::over)
    }

    /// One input.
    fn input(&mut self) {
        match self.draws.below(10) {
            0..=3 => self.unauthenticated(),
            4..=6 => self.question(),
            _ => self.frame(),
        }
    }

    /// Bytes of a peer that fails authentication.
    fn unauthenticated(&mut self) {
        let Some(mut stream) = self.connect() else { return };
        if self.draws.below(8) == 0 {
            let refused = stream.begin_to_ask(self.wrong);
            assert!(refused.is_err(), "another pool is let in");
            return;
        }
        // A greeting, and the beginning of TLS.
        let whole = [GREETING, &[0x16, 3, 1, 0, 64], &[7; 32]].concat();
        let mut bytes = match self.draws.below(5) {
            0 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            1 => b"dmtwire\n\x02\0\0\0".to_vec(),
            2 => whole[..self.draws.below(50) as usize].to_vec(),
            3 => [&whole[..], &[0xff, 0xff]].concat(),
            _ => whole,
        };
        bytes.extend(self.draws.bytes(300));
        let _ = stream.write_all(&bytes);
    }

    /// A question of a process that has keys: of any bytes, announced as it is or as something
    /// else.
    fn question(&mut self) {
        let Some(mut stream) = self.asking.take().or_else(|| {
            let mut stream = self.connect()?;
            stream.begin_to_ask(self.keys).ok()?;
            Some(stream)
        }) else {
            return;
        };
        let mut body = self.draws.bytes(60);
        if let Some(first) = body.first_mut() {
            // All kinds but registering, which would take the numbers of others.
            *first = [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11][self.draws.below(11) as usize];
        }
        if self.send(&mut stream, &body) {
            // The answer, or the end.
            let mut answer = [0; 512];
            if matches!(stream.read(&mut answer), Ok(n) if n > 0) {
                self.asking = Some(stream);
            }
        }
    }

    /// A frame of a link of a process that has registered. (A member may write memory, so no frame
    /// here addresses memory.)
    fn frame(&mut self) {
        let Some(mut stream) = self.link.take().or_else(|| self.open_link()) else { return };
        let kind = self.draws.below(6) as u8;
        let mut body = vec![kind];
        body.extend(u64::MAX.to_le_bytes());
        if kind == 1 {
            let node = if self.draws.below(2) == 0 { 0 } else { self.draws.below(1 << 16) };
            body.push(self.draws.below(7) as u8);
            body.extend((self.draws.below(1 << 32) as u32).to_le_bytes());
            // Outside of every region.
            body.extend(((node << 48) | ((1 << 40) + self.draws.below(1 << 30))).to_le_bytes());
        } else if kind == 2 {
            // A call of a service that there is not.
            body.extend(self.draws.below(u64::MAX).to_le_bytes());
            body.extend((0xf000 + self.draws.below(99) as u16).to_le_bytes());
        }
        body.extend(self.draws.bytes(60));
        if self.send(&mut stream, &body) {
            let mut answer = [0; 512];
            if matches!(stream.read(&mut answer), Ok(n) if n > 0) {
                self.link = Some(stream);
            }
        }
    }

    fn open_link(&mut self) -> Option<Peer> {
        let mut stream = self.connect()?;
        self.links += 1;
        stream.begin_a_link(self.keys, self.member.as_ref()?, self.links).ok()?;
        Some(stream)
    }

    /// Whether a frame was sent as it was announced.
    fn send(&mut self, stream: &mut Peer, body: &[u8]) -> bool {
        let honest = self.draws.below(20) > 0;
        let length = if honest { body.len() as u32 } else { self.draws.below(1 << 32) as u32 };
        let sent = stream.write_all(&[&length.to_le_bytes()[..], body].concat());
        sent.is_ok() && honest
    }

    /// A connection that stays.
    fn standing(&mut self, i: usize) -> Option<Peer> {
        let mut stream = self.connect()?;
        match i % 6 {
            0 => {}
            1 => stream.write_all(&GREETING[..5]).ok()?,
            2 => stream.write_all(&[GREETING, &[0x16, 3, 1, 0xff, 0]].concat()).ok()?,
            3 => stream.begin_to_ask(self.keys).ok()?,
            4 => {
                stream = self.open_link()?;
                // The longest frame there is, and four bytes of it.
                stream.write_all(&[&(64u32 << 20).to_le_bytes()[..], b"\x01abc"].concat()).ok()?;
            }
            _ => {
                stream = self.open_link()?;
                // Without optimization it takes long to read much memory, and leases are short.
                let bytes = if cfg!(debug_assertions) { 64 << 10 } else { 1 << 20 };
                stream.write_all(&sixteen_reads(bytes)).ok()?;
            }
        }
        Some(stream)
    }
}

/// A frame that asks for much of the node's memory.
fn sixteen_reads(bytes: u32) -> Vec<u8> {
    let mut body = vec![1];
    body.extend(u64::MAX.to_le_bytes());
    for _ in 0..16 {
        body.push(0);
        body.extend(bytes.to_le_bytes());
        body.extend((1u64 << 20).to_le_bytes());
    }
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// Operations, one after the other, and how long each took.
fn work(p: &mut Process, times: &mut Vec<Duration>, until: impl Fn(usize) -> bool) {
    while !until(times.len()) {
        let i = times.len() as u64 % KEYS;
        let (answer, took) = match times.len() % 4 {
            0 => p.timed(&format!("put key{i:04} {i}")),
            _ => p.timed(&format!("get key{i:04}")),
        };
        assert!(answer == "done" || answer == i.to_string(), "{i}: {answer}");
        times.push(took);
    }
}

fn p99(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() * 99 / 100]
}

#[test]
#[expect(clippy::disallowed_macros, reason = "prints the measurements")]
fn hostile_peers_cost_little_and_stop_no_client() {
    let _machine = alone();
    let (inputs, connections, is_long) = extent();
    let folder = tempfile::tempdir().expect("a directory");
    let text = Keys::draw(1).expect("random bytes");
    let keyed = ["--key-file", &key_file(folder.path(), "key", &text, 0o600)];
    let (mn, at) = found(&[&["--memory-bytes", "64MiB"][..], &keyed].concat());
    let shell = [&["shell", "--connect", &at][..], &keyed].concat();
    let mut worker = Process::start(&shell);
    for i in 0..KEYS {
        assert_eq!(worker.ask(&format!("put key{i:04} {i}")), "done");
    }
    let mut quiet = Vec::new();
    work(&mut worker, &mut quiet, |n| n >= if is_long { 4_000 } else { 400 });

    let keys = Keys::of(&text).expect("keys");
    let wrong = Keys::of(&Keys::draw(1).expect("random bytes")).expect("keys");
    let at: SocketAddrV4 = at.parse().expect("an address");
    let mut attack = Attack {
        at,
        keys: &keys,
        wrong: &wrong,
        draws: Draws(SplitMix64::seed_from_u64(7)),
        member: None,
        asking: None,
        link: None,
        links: 0,
    };
    let mut first = attack.connect().expect("it listens");
    first.begin_to_ask(&keys).expect("the keys");
    attack.member = Some(first.register().expect("a number"));
    let (idle, mut most) = (mn.status("VmRSS"), 0);
    let id = mn.child.id();
    let (over, mut busy) = (AtomicBool::new(false), Vec::new());
    let began = Instant::now();
    std::thread::scope(|scope| {
        let hostile = scope.spawn(|| {
            let mut standing = Vec::new();
            for i in 0..connections {
                standing.extend(attack.standing(i));
                most = most.max(status(id, "VmRSS"));
            }
            for i in 0..inputs {
                attack.input();
                if i % 64 == 0 {
                    most = most.max(status(id, "VmRSS"));
                }
            }
            over.store(true, Ordering::SeqCst);
            standing.len()
        });
        work(&mut worker, &mut busy, |_| over.load(Ordering::SeqCst) || hostile.is_finished());
        let standing = hostile.join().expect("it ends");
        println!("{standing} of {connections} hostile connections were let in at first");
    });
    let grown = most.saturating_sub(idle);
    let (q, b) = (p99(&mut quiet), p99(&mut busy));
    println!(
        "{inputs} inputs in {:?}: {idle} KiB idle, {grown} KiB more at most, {} KiB more in the end; p99 {q:?} of {} operations, {b:?} of {} meanwhile; {} threads, {} descriptors",
        began.elapsed(),
        mn.status("VmRSS").saturating_sub(idle),
        quiet.len(),
        busy.len(),
        mn.status("Threads"),
        mn.descriptors(),
    );
    assert!(grown < MOST_KIB, "{grown} KiB");
    for i in 0..KEYS {
        assert_eq!(worker.ask(&format!("get key{i:04}")), i.to_string());
    }
    within(PATIENCE, || {
        let mut newcomer = Process::start(&shell);
        let found = newcomer.ask("get key0007");
        (found == "7").then_some(()).ok_or(found)
    });
    assert!(!is_long || b <= q * 2, "p99 {q:?}, {b:?} meanwhile");
}
