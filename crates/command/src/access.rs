//! Where a command has the key of a pool from.

use std::path::Path;

use dmtree_fabric::net::{Access, Key};

use crate::failure::{Failure, Result};

/// The environment variable with the key of a pool, where no file is named.
pub const KEY_VARIABLE: &str = "DMTREE_KEY";

/// The key of a file, or else of the environment, or none.
///
/// # Errors
/// Bad input: a key that is too short, a file that is not there or that others may read.
pub fn access(key_file: Option<&Path>, insecure: bool) -> Result<Access> {
    let key = match (key_file, std::env::var_os(KEY_VARIABLE)) {
        (Some(path), _) => Key::read(path).map_err(Failure::refused)?,
        (None, Some(text)) => {
            let text = text.into_string().unwrap_or_default();
            Key::of(&text).map_err(|e| Failure::refused(e.context(KEY_VARIABLE)))?
        }
        (None, None) => Key::NONE,
    };
    if insecure && key.is_some() {
        return Err(Failure::input(
            "--insecure says that there is no key, and there is one: leave one of them out",
        ));
    }
    Ok(Access { key, insecure })
}
