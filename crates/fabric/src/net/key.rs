//! The key of a pool: the secret that its processes share.
//!
//! A key is a text of 32 bytes or more, without the white space around it. The text is the key:
//! hexadecimal digits and base64 are not interpreted, so that a file and the environment variable
//! give the same key however it was made.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::{Error, Result};

/// Fewest bytes of a key.
pub const MIN_KEY_BYTES: usize = 32;
/// Most bytes of a key file that are read: more is no key.
const MAX_KEY_BYTES: usize = 4096;
/// Bytes of a proof.
pub(super) const PROOF_BYTES: usize = 32;

/// The key of a pool, or none. Its text is not kept and not shown.
#[derive(Clone, Default)]
pub struct Key(Option<Hmac<Sha256>>);

impl Key {
    /// No key: every process that can connect belongs to the pool.
    pub const NONE: Self = Self(None);

    /// The key of a text.
    ///
    /// # Errors
    /// `InvalidArgument` when it is too short or too long.
    pub fn of(text: &str) -> Result<Self> {
        let text = text.trim();
        if !(MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&text.len()) {
            return Err(Error::invalid(format!(
                "a key of {} bytes: it must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES}; make one with `dmtree key`",
                text.len()
            )));
        }
        let mac = Hmac::new_from_slice(text.as_bytes());
        Ok(Self(Some(mac.map_err(|e| Error::invalid(e.to_string()))?)))
    }

    /// A key of random bytes.
    pub(super) fn of_bytes(bytes: &[u8; 32]) -> Self {
        Self(Some(Hmac::new_from_slice(bytes).expect("HMAC takes keys of any length")))
    }

    /// The key in a file that its owner alone may read.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no such file, when group or others may read or change it,
    /// and as [`Key::of`].
    pub fn read(path: &Path) -> Result<Self> {
        read_file(path).map_err(|e| e.context(format!("key file {}", path.display())))
    }

    /// A new key as a text: 64 hexadecimal digits from the system's source of randomness.
    ///
    /// # Errors
    /// `Unsupported` when the system gives no random bytes.
    pub fn draw() -> Result<String> {
        let bytes: [u8; 32] = random()?;
        Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
    }

    /// Whether there is one.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // Without a key the proof shows only that both sides saw the same bytes.
        let empty = || Hmac::new_from_slice(&[]).expect("HMAC takes keys of any length");
        let mut mac = self.0.clone().unwrap_or_else(empty);
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    /// The proof of knowing the key, over bytes that both sides know.
    pub(super) fn prove(&self, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether a proof is one, in constant time.
    pub(super) fn is_proof(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(parts).verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_some() { "Key(..)" } else { "Key(none)" })
    }
}

fn read_file(path: &Path) -> Result<Key> {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    let cannot = |e: std::io::Error| Error::invalid(e.to_string());
    // The file is opened once, so that its permissions and its bytes are those of the same file. A
    // pipe without a writer must not block the start.
    let meta = std::fs::metadata(path).map_err(cannot)?;
    if !meta.is_file() {
        return Err(Error::invalid("it is no regular file"));
    }
    let file = std::fs::File::open(path).map_err(cannot)?;
    let mode = file.metadata().map_err(cannot)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Error::invalid(format!(
            "others may use it (mode {:03o}): chmod 600 it, and make a new key if it may have been read",
            mode & 0o777
        )));
    }
    let mut text = String::new();
    file.take(MAX_KEY_BYTES as u64 + 64).read_to_string(&mut text).map_err(cannot)?;
    Key::of(&text)
}

/// Bytes from the system's source of randomness.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::unsupported(format!("the system gives no random bytes: {e}")))?;
    Ok(bytes)
}

/// How a process proves that it belongs to a pool, and where it may listen without a proof.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The key of the pool.
    pub key: Key,
    /// Without a key, the process may listen on other addresses than the loopback, too: every
    /// process that can connect can read and change everything.
    pub insecure: bool,
}

impl Access {
    /// With a key.
    pub fn with(key: Key) -> Self {
        Self { key, insecure: false }
    }

    /// Any port of the default address: other machines reach it only if there is a key to prove.
    pub fn any_port(&self) -> &'static str {
        if self.key.is_some() || self.insecure { "0.0.0.0:0" } else { "127.0.0.1:0" }
    }

    /// Refuses to join a pool on another machine as a node that only this one reaches.
    pub(super) fn check_reach(&self, first: &str, listens: &str) -> Result<()> {
        let is_here = |at: SocketAddr| at.ip().to_canonical().is_loopback();
        let Ok(listens) = listens.parse::<SocketAddr>() else { return Ok(()) };
        let mut all = first.to_socket_addrs().into_iter().flatten();
        if self.key.is_some() || self.insecure || !is_here(listens) || all.all(is_here) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the pool of {first} could not reach this process, which listens on {} alone, for it has no key: give one to all processes of the pool (--key-file FILE or DMTREE_KEY), or give --insecure",
            listens.ip()
        )))
    }

    /// Whether other machines can connect to an address and need no key.
    pub fn is_open(&self, at: &SocketAddr) -> bool {
        !self.key.is_some() && !at.ip().to_canonical().is_loopback()
    }

    /// Refuses to listen where other machines can connect and need no key.
    ///
    /// # Errors
    /// `InvalidArgument`, with the ways out.
    pub(super) fn check(&self, at: &SocketAddr) -> Result<()> {
        if self.insecure || !self.is_open(at) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{at} can be reached from other machines, and this pool has no key: give one (--key-file FILE or DMTREE_KEY; `dmtree key` makes one), listen on 127.0.0.1, or give --insecure"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_key_is_a_text_of_32_bytes_or_more() {
        let text = "k".repeat(MIN_KEY_BYTES);
        let key = Key::of(&format!("  {text}\n")).expect("long enough");
        let same = Key::of(&text).expect("long enough");
        assert!(same.is_proof(&[b"a", b"b"], &key.prove(&[b"ab"])), "white space is no part of it");
        assert!(!same.is_proof(&[b"ba"], &key.prove(&[b"ab"])));
        assert!(!same.is_proof(&[b"ab"], &key.prove(&[b"ab"])[..31]));
        for bad in ["", "short", &text[1..], &format!("{}    ", &text[1..]), &"k".repeat(5000)] {
            assert_eq!(Key::of(bad).expect_err("no key").kind(), ErrorKind::InvalidArgument);
        }
        let drawn = Key::draw().expect("random bytes");
        assert!(drawn.len() == 64 && drawn != Key::draw().expect("random bytes"));
        assert!(!format!("{key:?}").contains('k'), "a key is not shown");
    }

    #[test]
    fn a_key_file_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("dmtree-key-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("key");
        let set = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("written");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode).expect("set");
        };
        let words = |path: &Path| Key::read(path).expect_err("refused").to_string();
        set(&"k".repeat(40), 0o600);
        assert!(Key::read(&path).is_ok());
        for mode in [0o640, 0o604, 0o660, 0o601] {
            set(&"k".repeat(40), mode);
            assert!(words(&path).contains("chmod 600"), "{mode:o}");
        }
        set("short", 0o400);
        assert!(words(&path).contains("a key of 5 bytes"));
        assert!(words(&dir).contains("no regular file"));
        assert!(words(&dir.join("none")).contains("No such file"));
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn without_a_key_only_the_loopback_is_listened_on() {
        let at = |a: &str| a.parse::<SocketAddr>().expect("an address");
        let (none, keyed) =
            (Access::default(), Access::with(Key::of(&"k".repeat(32)).expect("ok")));
        let insecure = Access { insecure: true, ..Access::default() };
        for a in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(none.check(&at(a)).is_ok(), "{a}");
        }
        for a in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[::ffff:10.0.0.1]:1"] {
            assert!(none.check(&at(a)).is_err(), "{a}");
            assert!(keyed.check(&at(a)).is_ok() && insecure.check(&at(a)).is_ok(), "{a}");
            assert!(insecure.is_open(&at(a)) && !keyed.is_open(&at(a)), "{a}");
        }
    }
}
