//! `keys`: the authority of a pool, and certificates of its processes.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use dmtree_command::{Failure, Result};
use dmtree_fabric::net::{KeyRole, Keys};

use crate::args::{KeysIssueArgs, KeysNewArgs};
use crate::output;

/// Makes the keys of a new pool.
pub fn new(a: &KeysNewArgs) -> Result<()> {
    let text = Keys::draw(a.days).map_err(Failure::refused)?;
    write(&a.file, &text)?;
    output::line(&format!(
        "{}: the keys of a new pool, for {} days; whatever has the file can be any process of the pool",
        a.file.display(),
        a.days
    ));
    Ok(())
}

/// Makes a certificate with one role.
pub fn issue(a: &KeysIssueArgs) -> Result<()> {
    let role = KeyRole::of(&a.role).map_err(|e| Failure::refused(e.context("--role")))?;
    let keys = Keys::read(&a.keys).map_err(Failure::refused)?;
    let issued = keys.issue(role, a.days);
    let text = issued.map_err(|e| Failure::refused(e.context(a.keys.display().to_string())))?;
    write(&a.out, &text)?;
    output::line(&format!("{}: the role {role}, for {} days", a.out.display(), a.days));
    Ok(())
}

/// Writes private keys to a new file that its owner alone may read from the beginning.
fn write(path: &Path, text: &str) -> Result<()> {
    let failed = |e: std::io::Error| Failure::file("make", path, &e);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}
