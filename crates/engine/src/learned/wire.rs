//! Images of directories and pages, as their blocks hold them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// "learn", and the version of the format.
const MAGIC: u32 = 0x6c65_6172;
const VERSION: u16 = 1;

/// What every image begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    magic: u32,
    version: u16,
    index: u32,
    /// The tag of the claim under which it was written.
    pub stamp: u64,
}

impl Head {
    /// Of an image of an index.
    pub fn of(index: u32, stamp: u64) -> Self {
        Self { magic: MAGIC, version: VERSION, index, stamp }
    }

    /// The same in another version of the format.
    #[cfg(test)]
    pub fn of_version(index: u32, stamp: u64, version: u16) -> Self {
        Self { version, ..Self::of(index, stamp) }
    }

    /// Whether this is the beginning of an image of an index, whatever its stamp.
    pub fn is_of(self, index: u32) -> bool {
        self == Self::of(index, self.stamp)
    }
}

/// The bytes of an image.
pub(crate) fn encoded(image: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(image).expect("memory takes any image")
}

/// The image that some bytes are.
pub(crate) fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}
