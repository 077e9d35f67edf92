//! Settings of the user. Properties of a device or port (depths, sizes, addresses) are probed.

use crate::error::{Error, Result};
use crate::transport::Nanos;

/// How to use the NIC. Every limit is lowered to what the device has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the device; the first one with an active port when not given.
    pub device: Option<String>,
    /// Its port, from 1; the first active one when not given.
    pub port: Option<u8>,
    /// Index into the port's table of addresses; chosen by kind when not given.
    pub gid_index: Option<u8>,
    /// Send queue entries of a queue pair.
    pub depth: u32,
    /// Verbs outstanding per NIC and process; its client threads share them evenly.
    pub outstanding: u32,
    /// WRITEs of at most this many bytes travel in the request.
    pub inline_bytes: u32,
    /// A region is registered in chunks of this many bytes: a power of two, more than a verb's
    /// bytes.
    pub chunk_bytes: u64,
    /// Huge pages for regions where the system has any.
    pub huge_pages: bool,
    /// On-chip memory to expose, bytes; none where the device has none.
    pub on_chip_bytes: u32,
    /// A packet that is not acknowledged for this long is sent again, ...
    pub ack_timeout_ns: Nanos,
    /// ... this often (7 at most), before the peer counts as unreachable.
    pub retries: u8,
    /// A connection that has completed nothing for this long, with verbs in flight, is nudged with
    /// an empty WRITE: a driver that has lost a wake-up goes on then.
    pub nudge_ns: Nanos,
    /// Without a confirmation that the other end of a broken connection is gone, its verbs are
    /// given up after this time: longer than the lifetime of a packet in the network.
    pub linger_ns: Nanos,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: None,
            port: None,
            gid_index: None,
            depth: 256,
            outstanding: 768,
            inline_bytes: 192,
            chunk_bytes: 1 << 30,
            huge_pages: true,
            on_chip_bytes: 0,
            ack_timeout_ns: 67_000_000,
            retries: 7,
            nudge_ns: 20_000_000,
            linger_ns: 2_000_000_000,
        }
    }
}

impl Config {
    /// # Errors
    /// `InvalidArgument`, naming the setting and its allowed values.
    pub fn check(&self) -> Result<()> {
        let sound = [
            (self.depth >= 2, "depth", "2 or more"),
            (self.outstanding >= 2, "outstanding", "2 or more"),
            (
                self.chunk_bytes.is_power_of_two() && self.chunk_bytes >= 4 << 20,
                "chunk_bytes",
                "a power of two from 4 MiB",
            ),
            (self.retries <= 7, "retries", "0 to 7"),
            (self.ack_timeout_ns > 0, "ack_timeout_ns", "more than 0"),
        ];
        match sound.iter().find(|(sound, _, _)| !sound) {
            Some((_, name, may)) => Err(Error::invalid(format!("setting {name}: give {may}"))),
            None => Ok(()),
        }
    }

    /// A connection that has completed nothing for this long is given up: well beyond what its own
    /// timeouts take.
    pub(super) fn give_up_ns(&self) -> Nanos {
        let retries = Nanos::from(self.retries) + 1;
        let own = (4_096 << self.timeout_code()) * retries;
        own.saturating_mul(4).saturating_add(1_000_000_000)
    }

    /// The acknowledgement timeout as queue pairs take it: 4.096 us times a power of two, 31 at
    /// most.
    pub(super) fn timeout_code(&self) -> u8 {
        (1..31).find(|code| 4_096u64 << code >= self.ack_timeout_ns).unwrap_or(31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_round_up() {
        let code = |ack_timeout_ns| Config { ack_timeout_ns, ..Config::default() }.timeout_code();
        assert_eq!([code(1), code(8_192), code(8_193), code(67_000_000)], [1, 1, 2, 14]);
        assert_eq!(code(u64::MAX), 31);
    }

    #[test]
    fn unsound_settings_are_named() {
        let bad = Config { chunk_bytes: 5000, ..Config::default() }.check().expect_err("no power");
        assert!(bad.to_string().contains("chunk_bytes"), "{bad}");
        Config::default().check().expect("the defaults are sound");
    }
}
