//! Entry points for fuzz targets and property tests: the decoders behind the sockets. Each entry
//! takes any bytes, returns, and allocates no more than a small multiple of them.

mod peer;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::boxes::Inbox;
use super::data_path::{Common, DataPath};
use super::frames::{self, Fields};
use super::handshake::{Client, Host, Side};
use super::identity::Identity;
use super::membership_server::{MembershipServer, PoolConfig};
use super::node_directory::NodeEntry;
use super::roles::{self, Badges, Issued, Speaker};
use super::wire::{self, Answer, Ask, Failure, Hello, PoolId, Welcome};
use crate::addr::NodeId;
use crate::host;
use crate::membership::{InProcess, LeaseParameters, Member};
use crate::region::Region;

pub use peer::{Peer, Registered};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A handshake. The first byte selects the side, whether the bytes come as they are or as a message
/// after the greetings, and whether there are keys (the bytes are what TLS brings, then); the
/// second selects how many come at a time.
pub fn handshake(data: &[u8]) {
    let [kind, chunk, rest @ ..] = data else { return };
    let hello = Hello::Ask { pool: Some(PoolId(7)), credential: None };
    let has_keys = kind & 4 != 0;
    let Ok(mut client) = Client::new(has_keys, &hello, "mn0".into()) else { return };
    let mut host = Host::new(has_keys, "a peer".into());
    let chunk = usize::from(*chunk).max(1);
    let client_says = client.out();
    match kind % 4 {
        0 => _ = feed(&mut host, rest, chunk),
        1 => _ = feed(&mut client, rest, chunk),
        2 => {
            feed(&mut host, &client_says, chunk);
            if let Some(hello) = feed(&mut host, &framed(rest), chunk) {
                let _ = (hello, host.welcome(&Welcome::Granted { clock: 1 }));
            }
        }
        _ => {
            feed(&mut host, &client_says, chunk);
            feed(&mut client, &host.out(), chunk);
            let _ = feed(&mut client, &framed(rest), chunk);
        }
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut out = (body.len() as u16).to_le_bytes().to_vec();
    out.extend(body);
    out
}

fn feed<S: Side>(side: &mut S, mut bytes: &[u8], chunk: usize) -> Option<S::Outcome> {
    while !bytes.is_empty() {
        let (head, tail) = bytes.split_at(side.wants().min(chunk).min(bytes.len()));
        match side.feed(head) {
            Ok(None) if !head.is_empty() => bytes = tail,
            Ok(said) => return said,
            Err(_) => return None,
        }
    }
    None
}

/// The frames of a link as they arrive, as the host executes them, and as the client reads their
/// outcomes.
pub fn frames(data: &[u8]) {
    let mut inbox = Inbox::default();
    for chunk in data.chunks(7) {
        inbox.extend(chunk);
        while let Ok(Some(frame)) = inbox.first(64, "a peer") {
            assert!(frame.len() <= 64);
            inbox.take_first();
        }
    }
    let node = host::Host::new(NodeId::memory(0), 1, Region::new(4096));
    let mut found = Vec::new();
    if frames::execute(&node, data, &mut found).is_ok() {
        assert_eq!(found.len(), frames::found_bytes(data), "the reserved length");
        // An answer is bounded by the request: 4 KiB of this region for each 13 bytes of it.
        assert!(found.len() <= data.len() * 4096 / 13 + 8, "{} bytes found", found.len());
    }
    let _ = frames::read_outcome(&mut Fields(data), "mn0");
    let _ = frames::deliver(&[], data);
}

/// Messages: each is decoded as every message type, and a sequence of questions is asked.
pub fn messages(data: &[u8]) {
    let _ = wire::decode::<Hello>(data, "a peer");
    let _ = wire::decode::<Welcome>(data, "a peer");
    let _ = wire::decode::<Answer>(data, "a peer");
    let _ = wire::decode::<Failure>(data, "a peer").map(crate::Error::from);
    let membership_server = membership_server();
    let mut rest = data;
    let mut now = 0;
    while let [n, tail @ ..] = rest {
        let (ask, tail) = tail.split_at(usize::from(*n).min(tail.len()));
        rest = tail;
        now += 100_000_000;
        if let Ok(ask) = wire::decode::<Ask>(ask, "a peer") {
            let member = Some(Member { node: NodeId::compute(0), incarnation: 1 });
            let _ = roles::check(&ask, &Speaker { member, identity: Identity::WITHOUT_KEYS });
            let answer = membership_server.answer(ask, HERE, now);
            let body = wire::encode(&answer).expect("an answer can be sent");
            wire::decode::<Answer>(&body, "mn0").expect("and read");
        }
    }
}

/// Valid questions as seeds for [`messages`].
pub fn questions() -> Vec<u8> {
    let me = Member { node: NodeId::compute(0), incarnation: 1 };
    let node = |role, wanted, nonce| {
        let listens = "0.0.0.0:9".into();
        Ask::Register(wire::Introduction {
            role,
            wanted,
            listens,
            region_bytes: 4096,
            nonce,
            journal: None,
        })
    };
    let asks = [
        Ask::PoolConfig,
        node(crate::Role::Memory, Some(1), 1),
        Ask::Ready { me: Member { node: NodeId::memory(1), incarnation: 1 }, on_chip_bytes: 9 },
        node(crate::Role::Compute, None, 2),
        Ask::Join(me),
        Ask::Renew(me),
        Ask::MembershipState { me, known: 0 },
        Ask::Propose(me, crate::Change::Leave),
        Ask::NodeDirectory,
        Ask::Members,
        Ask::Withdraw(me),
        Ask::Revoke(me),
        Ask::Status,
        Ask::Leave(me),
    ];
    let mut out = Vec::new();
    for body in asks.iter().filter_map(|ask| wire::encode(ask).ok()) {
        out.push(body.len() as u8);
        out.extend(body);
    }
    out
}

/// The names of a certificate, one a line; and the bytes as a certificate.
pub fn names(data: &[u8]) {
    let names = data.split(|b| *b == b'\n').filter_map(|name| std::str::from_utf8(name).ok());
    if let Ok(identity) = Identity::of_names(names) {
        assert_eq!(Identity::of_name(&identity.to_string()).ok().flatten(), Some(identity));
    }
    #[cfg(feature = "tls")]
    let _ = super::tls::identity_of(&data.into());
}

/// What etcd answers, and what it has stored. The first byte selects the status and the kind.
#[cfg(feature = "etcd")]
pub fn etcd(data: &[u8]) {
    if let Some((kind, bytes)) = data.split_first() {
        super::etcd::fuzz(*kind, bytes);
    }
}

fn membership_server() -> MembershipServer {
    let (data_path, options) = (DataPath::Frames, Vec::new());
    let pool_config = PoolConfig {
        memory_nodes: 2,
        compute_nodes: 3,
        journal_nodes: 0,
        skips_journal: false,
        data_path,
        options,
    };
    let common = Common { data_path, mtu: 0, cores: 1 };
    let membership = Arc::new(InProcess::new(LeaseParameters::default()));
    let r = MembershipServer::new(
        PoolId(7),
        pool_config,
        common,
        Badges::of(Issued::Secret([1; 32])),
        membership,
    );
    let member = Member { node: NodeId::memory(0), incarnation: 1 };
    r.enter(NodeEntry { member, address: String::new(), region_bytes: 1 << 20, on_chip_bytes: 0 });
    r.ready(member, 0);
    r
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    #[ignore = "writes the seeds of fuzz/corpus"]
    fn write_seeds() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
        let write = |target: &str, name: &str, bytes: &[u8]| {
            std::fs::create_dir_all(format!("{corpus}/{target}")).expect("a directory");
            std::fs::write(format!("{corpus}/{target}/{name}"), bytes).expect("written");
        };
        write("messages", "questions", &questions());
        let name = "dmtree://0123456789abcdef0123456789abcdef/compute,memory";
        write("names", "identity", format!("https://example.org/\n{name}").as_bytes());
        let hello = wire::encode(&Hello::Ask { pool: Some(PoolId(7)), credential: None });
        write("handshake", "hello", &[&[2, 9], &hello.expect("a hello")[..]].concat());
        let welcome = wire::encode(&Welcome::Granted { clock: 5 }).expect("a welcome");
        write("handshake", "welcome", &[&[3, 9], &welcome[..]].concat());
        let greeting = [&wire::MAGIC[..], &wire::VERSION.to_le_bytes(), &[1]].concat();
        write("handshake", "host", &[&[4, 50], &greeting[..]].concat());
        write("handshake", "client", &[&[5, 50], &greeting[..]].concat());
        let mut verbs = Vec::new();
        for (op, len, words) in [(0u8, 64u32, 0usize), (1, 8, 1), (2, 8, 2), (3, 8, 2), (4, 8, 2)] {
            verbs.push(op);
            verbs.extend(len.to_le_bytes());
            verbs.extend((u64::from(NodeId::memory(0).bits()) << 48 | 128).to_le_bytes());
            verbs.extend(vec![1; words * 8]);
        }
        write("frames", "verbs", &verbs);
        let answer = r#"{"header":{"revision":"5"},"kvs":[{"key":"L2EvYg==","mod_revision":"4","value":"AQID"}]}"#;
        write("etcd", "range", &[b"\0", answer.as_bytes()].concat());
        let granted = r#"{"header":{"revision":"5"},"ID":"7587862053474400000","TTL":"2"}"#;
        write("etcd", "lease", &[b"\0", granted.as_bytes()].concat());
        write("etcd", "refusal", &[&b"\x01"[..], br#"{"message":"no space","code":8}"#].concat());
    }

    #[test]
    fn the_beginning_is_understood() {
        let mut rest = &questions()[..];
        let mut n = 0;
        while let [len, tail @ ..] = rest {
            let (ask, tail) = tail.split_at(usize::from(*len));
            wire::decode::<Ask>(ask, "a test").expect("a question");
            (rest, n) = (tail, n + 1);
        }
        assert_eq!(n, 14);
        messages(&questions());
    }

    proptest! {
        #[test]
        fn any_bytes_are_handled(data in proptest::collection::vec(any::<u8>(), 0..600)) {
            handshake(&data);
            frames(&data);
            messages(&data);
            names(&data);
            #[cfg(feature = "etcd")]
            etcd(&data);
        }

        #[test]
        fn changed_questions_are_handled(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let mut data = questions();
            for (at, byte) in changes {
                let at = at.index(data.len());
                data[at] = byte;
            }
            messages(&data);
        }
    }
}
