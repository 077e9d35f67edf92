//! Where a command has the keys of a pool from.

use std::path::Path;

use dmtree_fabric::net::{Access, Keys};

use crate::failure::{Failure, Result};

/// The environment variable with the path of the key file, where none is named.
pub const KEY_FILE_VARIABLE: &str = "DMTREE_KEY_FILE";

/// The keys in a file, or else in that of the environment, or none.
///
/// # Errors
/// Bad input: a file that is not there, that others may read, or that has no valid keys.
pub fn access(key_file: Option<&Path>, insecure: bool) -> Result<Access> {
    let named = std::env::var_os(KEY_FILE_VARIABLE).filter(|path| !path.is_empty());
    let keys = match (key_file, named) {
        (Some(path), _) => Keys::read(path).map_err(Failure::refused)?,
        (None, Some(path)) => Keys::read(Path::new(&path))
            .map_err(|e| Failure::refused(e.context(KEY_FILE_VARIABLE)))?,
        (None, None) => Keys::NONE,
    };
    if insecure && keys.is_some() {
        return Err(Failure::input(
            "--insecure says that there are no keys, and there are some: leave one of them out",
        ));
    }
    Ok(Access { keys, insecure })
}
