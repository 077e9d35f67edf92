//! What a process has to show to belong to a pool, and where it may listen without that.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use super::identity::{Identity, KeyRole};
use super::tls::Bundle;
use crate::error::{Error, Result};

/// Most bytes of a key file that are read: more is none.
const MAX_FILE_BYTES: usize = 16 << 10;

/// The keys of a process: a certificate of its pool, with the private key; or none. Private keys
/// are not shown.
#[derive(Clone, Default)]
pub struct Keys(Option<Arc<Bundle>>);

impl Keys {
    /// No keys: every process that can connect belongs to the pool.
    pub const NONE: Self = Self(None);

    /// The keys of a text, as [`Keys::draw`] and [`Keys::issue`] make it.
    ///
    /// # Errors
    /// `InvalidArgument` when it is none, or its certificate is not valid now; `Unsupported` in a
    /// program without TLS.
    pub fn of(text: &str) -> Result<Self> {
        Ok(Self(Some(Arc::new(Bundle::of(text)?))))
    }

    /// The keys in a file that its owner alone may read.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no such file, when group or others may read or change it,
    /// and as [`Keys::of`].
    pub fn read(path: &Path) -> Result<Self> {
        let keys = read_file(path).and_then(|text| Self::of(&text));
        keys.map_err(|e| e.context(format!("key file {}", path.display())))
    }

    /// The keys of a new pool as a text: its authority with the private key, and a certificate with
    /// every role that is valid for so many days.
    ///
    /// # Errors
    /// `InvalidArgument` for days that are none; `Unsupported` when the system gives no random
    /// bytes, and in a program without TLS.
    pub fn draw(days: u32) -> Result<String> {
        Bundle::draw(days)
    }

    /// Keys of the same pool as a text: a certificate with this role that is valid for so many
    /// days, without the authority's private key.
    ///
    /// # Errors
    /// `InvalidArgument` when these keys are not those that the pool began with; as
    /// [`Keys::draw`].
    pub fn issue(&self, role: KeyRole, days: u32) -> Result<String> {
        match &self.0 {
            Some(bundle) => bundle.issue(role, days),
            None => Err(Error::invalid("no keys to issue others with")),
        }
    }

    /// Whether there are any.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// What the certificate says.
    pub fn identity(&self) -> Option<Identity> {
        self.0.as_ref().map(|bundle| bundle.identity())
    }

    /// Fails for keys without a role. Without keys everything is allowed.
    ///
    /// # Errors
    /// `Incompatible`, with the role and `what` needs it.
    pub fn check_role(&self, role: KeyRole, what: &str) -> Result<()> {
        match self.identity() {
            Some(identity) if !identity.roles.has(role) => Err(identity.lacks(role, what)),
            _ => Ok(()),
        }
    }

    /// Keys of the same pool that were valid when their process started, in seconds from 1970 on.
    #[cfg(test)]
    pub(super) fn lasting(&self, valid: std::ops::Range<u64>) -> Self {
        let bundle = self.0.as_ref().expect("keys").lasting(valid);
        Self(Some(Arc::new(bundle)))
    }

    pub(super) fn bundle(&self) -> Option<&Arc<Bundle>> {
        self.0.as_ref()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.identity() {
            Some(identity) => write!(f, "Keys({identity})"),
            None => f.write_str("Keys(none)"),
        }
    }
}

fn read_file(path: &Path) -> Result<String> {
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
            "others may use it (mode {:03o}): chmod 600 it, and make new keys if it may have been read",
            mode & 0o777
        )));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_string(&mut text).map_err(cannot)?;
    match text.len() > MAX_FILE_BYTES {
        true => Err(Error::invalid(format!("it has more than {MAX_FILE_BYTES} bytes"))),
        false => Ok(text),
    }
}

/// How a process shows that it belongs to a pool, and where it may listen without that.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The keys of the process.
    pub keys: Keys,
    /// Without keys, the process may listen on other addresses than the loopback, too: every
    /// process that can connect can read and change everything.
    pub insecure: bool,
}

impl Access {
    /// With keys.
    pub fn with(keys: Keys) -> Self {
        Self { keys, insecure: false }
    }

    /// Any port of the default address: other machines reach it only if there are keys to show.
    pub fn any_port(&self) -> &'static str {
        if self.keys.is_some() || self.insecure { "0.0.0.0:0" } else { "127.0.0.1:0" }
    }

    /// Refuses to join a pool on another machine as a node that only this one reaches.
    pub(super) fn check_reach(&self, first: &str, listens: &str) -> Result<()> {
        let is_here = |at: SocketAddr| at.ip().to_canonical().is_loopback();
        let Ok(listens) = listens.parse::<SocketAddr>() else { return Ok(()) };
        let mut all = first.to_socket_addrs().into_iter().flatten();
        if self.keys.is_some() || self.insecure || !is_here(listens) || all.all(is_here) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the pool of {first} could not reach this process, which listens on {} alone, for it has no keys: give all processes of the pool theirs (--key-file FILE or DMTREE_KEY_FILE), or give --insecure",
            listens.ip()
        )))
    }

    /// Whether other machines can connect to an address and need no keys.
    pub fn is_open(&self, at: &SocketAddr) -> bool {
        !self.keys.is_some() && !at.ip().to_canonical().is_loopback()
    }

    /// Refuses to listen where other machines can connect and need no keys.
    ///
    /// # Errors
    /// `InvalidArgument`, with the ways out.
    pub(super) fn check(&self, at: &SocketAddr) -> Result<()> {
        if self.insecure || !self.is_open(at) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{at} can be reached from other machines, and this process has no keys: give it some (--key-file FILE or DMTREE_KEY_FILE; `dmtree keys new FILE` makes them), listen on 127.0.0.1, or give --insecure"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("dmtree-keys-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("pool.keys");
        let set = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("written");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode).expect("set");
        };
        let words = |path: &Path| Keys::read(path).expect_err("refused").to_string();
        for mode in [0o640, 0o604, 0o660, 0o601] {
            set("no keys", mode);
            assert!(words(&path).contains("chmod 600"), "{mode:o}");
        }
        set(&"k".repeat(MAX_FILE_BYTES + 1), 0o600);
        assert!(words(&path).contains("more than 16384 bytes"));
        set("no keys", 0o400);
        assert!(words(&path).contains("pool.keys"));
        assert!(words(&dir).contains("no regular file"));
        assert!(words(&dir.join("none")).contains("No such file"));
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn without_keys_only_the_loopback_is_listened_on() {
        let at = |a: &str| a.parse::<SocketAddr>().expect("an address");
        let none = Access::default();
        let insecure = Access { insecure: true, ..Access::default() };
        for a in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(none.check(&at(a)).is_ok(), "{a}");
        }
        for a in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[::ffff:10.0.0.1]:1"] {
            assert!(none.check(&at(a)).is_err() && insecure.check(&at(a)).is_ok(), "{a}");
            assert!(insecure.is_open(&at(a)), "{a}");
        }
    }
}
