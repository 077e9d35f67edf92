//! Capabilities: guarantees of a fabric beyond the contract.

use serde::{Deserialize, Serialize};

/// Properties that some platforms have and the contract does not promise. An index names those it
/// needs; opening it on a fabric without them is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Capabilities {
    /// An aligned 64-byte line inside one READ or WRITE is not torn.
    pub line_atomic: bool,
    /// The bytes of one WRITE land in ascending order.
    pub write_ascending: bool,
    /// A READ sees another queue pair's WRITE that executed but did not complete.
    pub raw_cross_qp: bool,
    /// A compare-and-swap that fails writes nothing back.
    pub cas_fail_is_readonly: bool,
    /// A WRITE of at most this many bytes executes wholly or not at all when its issuer dies.
    pub whole_write_bytes: u32,
    /// Bytes of on-chip memory for locks; 0 when there is none.
    pub on_chip_bytes: u32,
    /// Cores of every memory node that run data services; 0 when there are none.
    #[serde(skip_serializing_if = "is_none")]
    pub mn_cores: u32,
}

/// A saved case without cores is what it was before there were any.
fn is_none(cores: &u32) -> bool {
    *cores == 0
}

impl Capabilities {
    /// Nothing beyond the contract.
    pub const NONE: Self = Self {
        line_atomic: false,
        write_ascending: false,
        raw_cross_qp: false,
        cas_fail_is_readonly: false,
        whole_write_bytes: 0,
        on_chip_bytes: 0,
        mn_cores: 0,
    };

    /// The capabilities in `needed` that this fabric does not grant, in words; empty when it grants
    /// all.
    pub fn missing(&self, needed: &Self) -> Vec<&'static str> {
        let mut out = Vec::new();
        let mut want = |need: bool, have: bool, name| {
            if need && !have {
                out.push(name);
            }
        };
        want(needed.line_atomic, self.line_atomic, "line_atomic");
        want(needed.write_ascending, self.write_ascending, "write_ascending");
        want(needed.raw_cross_qp, self.raw_cross_qp, "raw_cross_qp");
        want(needed.cas_fail_is_readonly, self.cas_fail_is_readonly, "cas_fail_is_readonly");
        want(needed.whole_write_bytes > self.whole_write_bytes, false, "whole_write");
        want(needed.on_chip_bytes > self.on_chip_bytes, false, "on_chip");
        want(needed.mn_cores > self.mn_cores, false, "mn_cores");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_missing_capabilities() {
        let need = Capabilities { line_atomic: true, whole_write_bytes: 40, ..Capabilities::NONE };
        assert_eq!(Capabilities::NONE.missing(&need), ["line_atomic", "whole_write"]);
        let have = Capabilities { line_atomic: true, whole_write_bytes: 64, ..Capabilities::NONE };
        assert!(have.missing(&need).is_empty());
    }
}
