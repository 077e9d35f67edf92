//! Dumps of an index as files.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::ops::Bound;
use std::path::Path;

use dmtree_command::dump::{Dumper, Pair, read};
use dmtree_command::{Failure, Result};
use dmtree_fabric::Result as FabricResult;
use dmtree_parts::ScanRequest;

use crate::output;

/// Everything, in order.
pub const ALL: ScanRequest<'static> = ScanRequest {
    low: Bound::Unbounded,
    high: Bound::Unbounded,
    reverse: false,
    limit: usize::MAX,
};

/// What stores a pair, and says whether to go on.
type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> bool;

/// Writes all pairs of an index, which is scanned once, as a dump: to a file whole or not at all,
/// or to standard output for `-`.
pub fn write_dump(
    scan: impl FnOnce(ScanRequest<'_>, Each<'_>) -> FabricResult<()>,
    to: &Path,
) -> Result<u64> {
    if to == Path::new("-") {
        let mut text = Vec::new();
        let pairs = dump_into(scan, &mut text).map_err(|e| e.context("standard output"))?;
        output::out_bytes(&text);
        return Ok(pairs);
    }
    let name = to.file_name().ok_or_else(|| Failure::input("name a file for the dump"))?;
    let temporary =
        to.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let file = File::create(&temporary).map_err(|e| Failure::file("write", to, &e))?;
    let done = dump_into(scan, BufWriter::new(file)).and_then(|pairs| {
        std::fs::rename(&temporary, to).map_err(|e| Failure::file("write", to, &e))?;
        Ok(pairs)
    });
    if done.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    done
}

fn dump_into(
    scan: impl FnOnce(ScanRequest<'_>, Each<'_>) -> FabricResult<()>,
    to: impl Write,
) -> Result<u64> {
    let failed = |e: std::io::Error| Failure::input(format!("cannot write the dump: {e}"));
    let mut dumper = Dumper::new(to).map_err(failed)?;
    let mut written = Ok(());
    scan(ALL, &mut |k, v| {
        written = dumper.pair(k, v);
        written.is_ok()
    })?;
    written.map_err(failed)?;
    Ok(dumper.finish().map_err(failed)?.0)
}

/// Reads a whole dump; nothing is done before its end was seen to be right.
pub fn read_dump(from: &Path) -> Result<Vec<Pair>> {
    let file = File::open(from).map_err(|e| Failure::file("open", from, &e))?;
    let mut pairs = Vec::new();
    read(&from.display().to_string(), BufReader::new(file), |pair| {
        pairs.push(pair);
        Ok(())
    })?;
    Ok(pairs)
}
