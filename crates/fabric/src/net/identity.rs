//! The identity of a peer: the pool that its certificate is of, and the roles that it has there.
//!
//! A certificate says so in one URI, `dmtree://POOL/ROLE,ROLE`: the pool as 32 hexadecimal digits,
//! and one to four different roles. Everything else is no identity. `roles.rs` has what follows
//! from it.

use std::fmt;

use crate::addr::Role;
use crate::error::{Error, Result};

/// The beginning of a name that states an identity.
const SCHEME: &str = "dmtree://";
/// Longest name that is read, bytes.
const MAX_NAME_BYTES: usize = 128;

/// A role that a certificate gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyRole {
    /// To be a compute node: reads and writes all memory.
    Compute,
    /// To be a memory node or a journal node.
    Memory,
    /// To read memory.
    Reader,
    /// To ask compute nodes to leave.
    Admin,
}

impl KeyRole {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Compute, Self::Memory, Self::Reader, Self::Admin];

    /// Its name in certificates and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Reader => "reader",
            Self::Admin => "admin",
        }
    }

    /// The role of a name.
    ///
    /// # Errors
    /// `InvalidArgument` when it is none.
    pub fn of(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|role| role.name() == name);
        found.ok_or_else(|| {
            Error::invalid(format!("{name:?} is no role: compute, memory, reader or admin"))
        })
    }

    /// The role that a node of this kind needs.
    pub(super) fn for_node(role: Role) -> Self {
        match role {
            Role::Compute => Self::Compute,
            Role::Memory | Role::Journal => Self::Memory,
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRoles(u8);

impl KeyRoles {
    /// Every role.
    pub const ALL: Self = Self(0b1111);

    /// Whether one of them is this.
    pub fn has(self, role: KeyRole) -> bool {
        self.0 & role.bit() != 0
    }

    /// The roles, in order.
    pub fn iter(self) -> impl Iterator<Item = KeyRole> {
        KeyRole::ALL.into_iter().filter(move |role| self.has(*role))
    }
}

impl From<KeyRole> for KeyRoles {
    fn from(role: KeyRole) -> Self {
        Self(role.bit())
    }
}

impl fmt::Display for KeyRoles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(KeyRole::name).collect();
        f.write_str(&names.join(","))
    }
}

/// The identity of a peer. Where there are no keys, every peer has every role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The pool, as its authority was named; 0 without keys.
    pub pool: u128,
    /// The roles in it.
    pub roles: KeyRoles,
}

impl Identity {
    /// Of a peer in a pool without keys.
    pub(super) const WITHOUT_KEYS: Self = Self { pool: 0, roles: KeyRoles::ALL };
    /// Of a peer that has shown no certificate yet.
    pub(super) const UNKNOWN: Self = Self { pool: 0, roles: KeyRoles(0) };

    /// Whether it may act as a node of a kind.
    pub(super) fn acts_as(&self, node: Role) -> bool {
        self.roles.has(KeyRole::for_node(node))
    }

    /// Whether it may have the number of a node of a kind: a reader has one of a compute node, and
    /// does not act as one.
    pub(super) fn can_be(&self, node: Role) -> bool {
        self.acts_as(node) || (node == Role::Compute && self.roles.has(KeyRole::Reader))
    }

    /// Fails where it may not act as a node of a kind.
    pub(super) fn check_acts_as(&self, node: Role, what: &str) -> Result<()> {
        match self.acts_as(node) {
            true => Ok(()),
            false => Err(self.lacks(KeyRole::for_node(node), what)),
        }
    }

    /// The refusal of something that needs another role.
    #[cold]
    pub(super) fn lacks(&self, role: KeyRole, what: &str) -> Error {
        Error::incompatible(format!(
            "{what} needs a certificate with the role {role}, and this one has {}: `dmtree keys issue --role {role}` makes one",
            self.roles
        ))
    }

    /// The identity that a name in a certificate says; `None` for a name of another kind.
    ///
    /// # Errors
    /// `Corrupt` for a name that begins like one, and is none.
    pub(super) fn of_name(name: &str) -> Result<Option<Self>> {
        let Some(rest) = name.strip_prefix(SCHEME) else { return Ok(None) };
        let bad = || Error::corrupt("a certificate with a name that says no pool and roles");
        if name.len() > MAX_NAME_BYTES {
            return Err(bad());
        }
        let (pool, names) = rest.split_once('/').ok_or_else(bad)?;
        let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if pool.len() != 32 || !pool.bytes().all(is_digit) {
            return Err(bad());
        }
        let pool = u128::from_str_radix(pool, 16).map_err(|_| bad())?;
        let mut roles = 0;
        for name in names.split(',') {
            let bit = KeyRole::of(name).map_err(|_| bad())?.bit();
            if roles & bit != 0 {
                return Err(bad());
            }
            roles |= bit;
        }
        Ok(Some(Self { pool, roles: KeyRoles(roles) }))
    }

    /// The identity of a certificate with these names.
    ///
    /// # Errors
    /// `Corrupt` when none of them says one, several do, or one is malformed.
    pub(super) fn of_names<'n>(names: impl Iterator<Item = &'n str>) -> Result<Self> {
        let mut found = None;
        for name in names {
            let Some(identity) = Self::of_name(name)? else { continue };
            if found.replace(identity).is_some() {
                return Err(Error::corrupt("a certificate that says two pools"));
            }
        }
        found.ok_or_else(|| Error::corrupt("a certificate that says no pool and roles"))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{:032x}/{}", self.pool, self.roles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity(bits: u8, pool: u128) -> Identity {
        Identity { pool, roles: KeyRoles(bits) }
    }

    #[test]
    fn a_name_says_a_pool_and_roles() {
        let pool = "0123456789abcdef0123456789abcdef";
        let named = |text: &str| Identity::of_name(text);
        let one = named(&format!("dmtree://{pool}/reader")).expect("one").expect("an identity");
        assert_eq!(one.roles, KeyRole::Reader.into());
        assert!(one.can_be(Role::Compute) && !one.acts_as(Role::Compute));
        assert!(!one.can_be(Role::Memory) && !one.can_be(Role::Journal));
        assert_eq!(named("https://example.org/").expect("another kind"), None);
        for bad in [
            "dmtree://",
            "dmtree:///compute",
            &format!("dmtree://{pool}"),
            &format!("dmtree://{pool}/"),
            &format!("dmtree://{pool}/compute,"),
            &format!("dmtree://{pool}/compute,compute"),
            &format!("dmtree://{pool}/Compute"),
            &format!("dmtree://{pool}/compute "),
            &format!("dmtree://{pool}/root"),
            &format!("dmtree://{}/compute", pool.to_uppercase()),
            &format!("dmtree://+{}/compute", &pool[1..]),
            &format!("dmtree://{pool}0/compute"),
            &format!("dmtree://{pool}/{}", "compute,".repeat(40)),
        ] {
            assert!(named(bad).is_err(), "{bad}");
        }
        let two = [format!("dmtree://{pool}/reader"), format!("dmtree://{pool}/memory")];
        assert!(Identity::of_names(two.iter().map(String::as_str)).is_err());
        assert!(Identity::of_names(["https://a/"].into_iter()).is_err());
    }

    proptest! {
        #[test]
        fn names_come_back(bits in 1u8..16, pool: u128) {
            let it = identity(bits, pool);
            prop_assert_eq!(Identity::of_name(&it.to_string()).expect("a name"), Some(it));
        }

        #[test]
        fn any_text_is_an_identity_or_none(text in "(dmtree://)?.{0,200}") {
            let _ = Identity::of_name(&text);
        }
    }
}
