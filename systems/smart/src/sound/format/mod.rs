//! Byte layouts of the sound SMART, little endian; each module has its table. Bytes from memory
//! nodes are garbage until a check here has accepted them.

pub mod head;
pub mod leaf;
pub mod slot;
