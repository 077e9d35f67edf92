//! Writes files atomically. Errors are those of the system.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::results::Results;
use crate::{csv, report};

/// Writes a file under a temporary name beside it, then renames it. A failure leaves nothing
/// behind.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let name = path.file_name().map_or_else(|| "file".into(), |n| n.to_string_lossy());
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = File::create(&temporary).and_then(|mut f| {
        f.write_all(bytes)?;
        f.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&temporary, path));
    done.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        Failure::file("write", path, &e)
    })
}

/// Creates a directory, and checks that files can be written there: a failure is better now than
/// after the run.
pub fn prepare(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|e| Failure::file("make the directory", dir, &e))?;
    let probe = dir.join(format!(".probe.{}.tmp", std::process::id()));
    File::create(&probe).map_err(|e| Failure::file("write in", dir, &e))?;
    let _ = fs::remove_file(&probe);
    Ok(())
}

/// Writes tables, the report, and `results.json` last. Returns the paths of the files.
pub fn write_all(dir: &Path, r: &Results) -> Result<Vec<PathBuf>> {
    let mut written = render_all(dir, r)?;
    written.push(write_results(dir, r)?);
    Ok(written)
}

/// Writes `results.json` alone.
pub fn write_results(dir: &Path, r: &Results) -> Result<PathBuf> {
    let path = dir.join("results.json");
    write_atomically(&path, r.to_json().as_bytes())?;
    Ok(path)
}

/// Writes all files that are derived from the results: tables, the report.
pub fn render_all(dir: &Path, r: &Results) -> Result<Vec<PathBuf>> {
    let whole = [(csv::CELLS, csv::cells(r)), ("report.html", report::html(r))];
    let whole = whole.map(|(name, text)| (name.to_owned(), text));
    let files = report::tables(r).into_iter().chain(whole);
    let write = |(name, text): (String, String)| {
        let path = dir.join(name);
        write_atomically(&path, text.as_bytes()).map(|()| path)
    };
    files.map(write).collect()
}

/// Reads results from a `results.json`, or from the directory that contains one.
///
/// # Errors
/// A missing file, or another form.
pub fn read_results(path: &Path) -> Result<Results> {
    let file = if path.is_dir() { path.join("results.json") } else { path.to_path_buf() };
    let text = fs::read_to_string(&file).map_err(|e| Failure::file("read", &file, &e))?;
    Results::parse(&file.display().to_string(), &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert!(write_atomically(&dir.path().join("no/such/x"), b"").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        prepare(&dir.path().join("a/b")).unwrap();
        assert!(prepare(&path).is_err(), "a file is no directory");
        assert!(read_results(dir.path()).unwrap_err().to_string().contains("results.json"));
    }
}
