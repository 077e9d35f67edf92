//! The messages of the two ends of a connection: self-describing text, with a version, compared
//! field by field.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::nic::{Address, Mtu, Nic, PortLink};
use crate::addr::NodeId;
use crate::error::{Error, Result};
use crate::membership::Member;

/// Version of the format and meaning of offers and answers.
const VERSION: u32 = 1;

/// More is not even parsed.
const MAX_BYTES: usize = 256 << 10;

/// One end of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    version: u32,
    /// Raw bits of the node, and its incarnation.
    node: u16,
    pub incarnation: u32,
    pub link: PortLink,
    pub lid: u16,
    pub gid: [u8; 16],
    /// Bytes.
    pub mtu: Mtu,
    pub qpn: u32,
    pub psn: u32,
    /// READs and atomics that it may have outstanding as the client.
    pub initiator_depth: u8,
    /// READs and atomics that it serves at a time.
    pub responder_depth: u8,
}

/// A client thread's offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    /// The member that shall answer.
    to: u16,
    pub client: End,
}

/// The host's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub host: End,
    /// The queue pair that it belongs to.
    pub client_qpn: u32,
    pub memory: Exposed,
}

/// Memory that the client may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Exposed {
    pub bytes: u64,
    /// Address of the first byte, in hexadecimal: the format's integers have 63 bits.
    base: String,
    /// Each key opens a chunk of this many bytes; the last one the rest.
    pub chunk_bytes: u64,
    pub rkeys: Vec<u32>,
    /// On-chip memory: bytes, and its key.
    pub on_chip: Option<(u32, u32)>,
}

impl Exposed {
    pub(super) fn new(region: (u64, u64), chunk_bytes: u64, rkeys: Vec<u32>) -> Self {
        let (base, bytes) = region;
        Self { bytes, base: format!("{base:x}"), chunk_bytes, rkeys, on_chip: None }
    }

    /// Address of the first byte.
    pub(super) fn base(&self) -> Option<u64> {
        u64::from_str_radix(&self.base, 16).ok()
    }

    fn is_sound(&self) -> bool {
        let chunks = self
            .bytes
            .checked_div(self.chunk_bytes)
            .map(|whole| whole + u64::from(!self.bytes.is_multiple_of(self.chunk_bytes)));
        let end = self.base().and_then(|base| base.checked_add(self.bytes));
        self.chunk_bytes.is_power_of_two()
            && chunks == Some(self.rkeys.len() as u64)
            && end.is_some()
    }
}

impl End {
    pub(super) fn new(member: Member, nic: &Nic, qpn: u32, psn: u32) -> Self {
        let Address { link, lid, gid, .. } = nic.address;
        let limits = &nic.limits;
        Self {
            version: VERSION,
            node: member.node.bits(),
            incarnation: member.incarnation,
            link,
            lid,
            gid,
            mtu: nic.mtu,
            qpn,
            psn,
            initiator_depth: limits.initiator_depth,
            responder_depth: limits.responder_depth,
        }
    }

    pub(super) fn member(&self) -> Member {
        Member { node: NodeId::from_bits(self.node), incarnation: self.incarnation }
    }

    /// The agreed attributes of a queue pair between the two ends.
    pub(super) fn agree(&self, other: &Self) -> Result<Agreed> {
        let (us, them) = (self.member(), other.member());
        let differ = |what: &str, way_out: &str| {
            Error::incompatible(format!("{them} and {us} cannot be connected: {what}; {way_out}"))
        };
        if self.link != other.link {
            let what = format!("link layer {:?} there, {:?} here", other.link, self.link);
            return Err(differ(&what, "choose ports of one network (--device)"));
        }
        if self.qpn >> 24 != 0 || other.qpn >> 24 != 0 || other.psn >> 24 != 0 {
            return Err(differ("a queue pair number has 24 bits", "run the same version on both"));
        }
        if self.link == PortLink::Ethernet && is_v4(&self.gid) != is_v4(&other.gid) {
            let what = format!("address {} there, {} here", ip(&other.gid), ip(&self.gid));
            return Err(differ(&what, "choose addresses of one kind (--gid-index)"));
        }
        let depth = |client: &Self, host: &Self| client.initiator_depth.min(host.responder_depth);
        let agreed = Agreed {
            mtu: self.mtu.min(other.mtu),
            initiator_depth: depth(self, other),
            responder_depth: depth(other, self),
        };
        if agreed.initiator_depth.max(agreed.responder_depth) == 0 {
            return Err(differ(
                "one of them serves no READs (max_rd_atomic 0)",
                "use another device",
            ));
        }
        Ok(agreed)
    }
}

/// The limits that both ends support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub mtu: Mtu,
    /// Of the end that agreed.
    pub initiator_depth: u8,
    pub responder_depth: u8,
}

/// IPv4 mapped to IPv6.
pub(super) fn is_v4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

/// An address in its usual notation.
pub(super) fn ip(gid: &[u8; 16]) -> String {
    let v6 = std::net::Ipv6Addr::from(*gid);
    v6.to_ipv4_mapped().map_or_else(|| v6.to_string(), |v4| v4.to_string())
}

fn parse<T: DeserializeOwned>(what: &str, from: NodeId, bytes: &[u8]) -> Result<T> {
    let bad = |why: &str| {
        Error::incompatible(format!(
            "{what} of {from}: {why}; run the same version of dmtree on both nodes"
        ))
    };
    if bytes.len() > MAX_BYTES {
        return Err(bad(&format!("{} bytes are too many", bytes.len())));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| bad("not a text"))?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| bad(e.message()))?;
    let version = ["client", "host"].iter().find_map(|end| table.get(*end)?.get("version"));
    if version.and_then(toml::Value::as_integer) != Some(i64::from(VERSION)) {
        let found = version.map_or("no version".to_owned(), |v| format!("version {v}"));
        return Err(bad(&format!("{found}, this node speaks version {VERSION}")));
    }
    T::deserialize(toml::Value::Table(table)).map_err(|e| bad(e.message()))
}

fn write(value: &impl Serialize) -> Result<Vec<u8>> {
    let text = toml::to_string(value);
    Ok(text.map_err(|e| Error::invalid(format!("an offer cannot be written: {e}")))?.into_bytes())
}

impl Offer {
    pub(super) fn new(to: NodeId, client: End) -> Self {
        Self { to: to.bits(), client }
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        write(self)
    }

    /// Reads the offer of `from` to `me`.
    ///
    /// # Errors
    /// `Incompatible`, naming the mismatch.
    pub(super) fn parse(from: Member, me: Member, bytes: &[u8]) -> Result<Self> {
        let offer: Self = parse("the offer", from.node, bytes)?;
        let (to, by) = (NodeId::from_bits(offer.to), offer.client.member());
        if to != me.node || by != from {
            return Err(Error::incompatible(format!(
                "{from} sent {me} the offer of {by} to {to}: check the addresses of the nodes"
            )));
        }
        Ok(offer)
    }
}

impl Answer {
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        write(self)
    }

    /// Reads the answer of `from` to the offer with queue pair `qpn`.
    ///
    /// # Errors
    /// `Incompatible`, naming the mismatch.
    pub(super) fn parse(from: NodeId, qpn: u32, bytes: &[u8]) -> Result<Self> {
        let answer: Self = parse("the answer", from, bytes)?;
        let by = answer.host.member();
        let unfit = |what: &str| Err(Error::incompatible(format!("the answer of {from}: {what}")));
        if by.node != from {
            return unfit(&format!("it is of {by}: check the addresses of the nodes"));
        }
        if answer.client_qpn != qpn {
            return unfit("it is to another offer: connect again");
        }
        if !answer.memory.is_sound() {
            return unfit("its list of keys does not fit its region: run the same version on both");
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Member = Member { node: NodeId::memory(3), incarnation: 2 };
    const YOU: Member = Member { node: NodeId::compute(1), incarnation: 7 };

    fn end(member: Member) -> End {
        End {
            version: VERSION,
            node: member.node.bits(),
            incarnation: member.incarnation,
            link: PortLink::Ethernet,
            lid: 0,
            gid: std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets(),
            mtu: Mtu(4096),
            qpn: 17,
            psn: 99,
            initiator_depth: 16,
            responder_depth: 8,
        }
    }

    fn answer() -> Answer {
        let mut memory = Exposed::new((u64::MAX - (1 << 40), 5000), 4096, vec![7, u32::MAX]);
        memory.on_chip = Some((4096, 9));
        Answer { host: end(ME), client_qpn: 17, memory }
    }

    #[test]
    fn offers_and_answers_come_back() {
        let offer = Offer::new(ME.node, end(YOU));
        let bytes = offer.to_bytes().expect("plain data");
        assert_eq!(Offer::parse(YOU, ME, &bytes).expect("fits"), offer);
        let bytes = answer().to_bytes().expect("plain data");
        let back = Answer::parse(ME.node, 17, &bytes).expect("fits");
        assert_eq!((back.memory.base(), back), (Some(u64::MAX - (1 << 40)), answer()));
    }

    #[test]
    fn a_mismatch_is_named() {
        let bytes = Offer::new(ME.node, end(YOU)).to_bytes().expect("plain data");
        let text = String::from_utf8(bytes.clone()).expect("a text");
        let bad = |from: &str, to: &str| {
            assert!(text.contains(from), "{text}");
            Offer::parse(YOU, ME, text.replacen(from, to, 1).as_bytes())
                .expect_err("bad")
                .to_string()
        };
        assert!(
            bad("version = 1", "version = 2").contains("version 2, this node speaks version 1")
        );
        assert!(bad("psn", "spn").contains("psn"));
        assert!(bad("mtu = 4096", "mtu = 4000").contains("mtu"));
        let other = Member { incarnation: 8, ..YOU };
        assert!(Offer::parse(other, ME, &bytes).expect_err("another").to_string().contains("cn1"));
        assert!(Offer::parse(YOU, ME, &[0xff; 9]).is_err());
        assert!(Offer::parse(YOU, ME, &vec![b' '; MAX_BYTES + 1]).is_err());
        let mut short = answer();
        short.memory.rkeys.pop();
        let short = short.to_bytes().expect("plain data");
        let e = Answer::parse(ME.node, 17, &short).expect_err("a key is missing");
        assert!(e.to_string().contains("keys"), "{e}");
        let e =
            Answer::parse(ME.node, 18, &answer().to_bytes().expect("plain")).expect_err("other");
        assert!(e.to_string().contains("another offer"), "{e}");
    }

    #[test]
    fn both_ends_agree_on_the_lesser() {
        let (a, b) = (end(YOU), End { mtu: Mtu(1024), initiator_depth: 4, ..end(ME) });
        let (ours, theirs) = (a.agree(&b).expect("fit"), b.agree(&a).expect("fit"));
        assert_eq!((ours.mtu, ours.initiator_depth, ours.responder_depth), (Mtu(1024), 8, 4));
        assert_eq!((theirs.mtu, theirs.initiator_depth, theirs.responder_depth), (Mtu(1024), 4, 8));
        let ib = End { link: PortLink::InfiniBand, ..end(ME) };
        let e = a.agree(&ib).expect_err("two networks").to_string();
        assert!(
            e.contains("mn3") && e.contains("link layer InfiniBand") && e.contains("--device"),
            "{e}"
        );
        let v6 = End { gid: [0xfe; 16], ..end(ME) };
        assert!(a.agree(&v6).expect_err("kinds").to_string().contains("--gid-index"));
    }
}
