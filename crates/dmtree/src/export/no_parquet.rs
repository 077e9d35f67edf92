//! Stands for `parquet.rs` in a build without the feature `parquet`.

use std::io::Write;
use std::path::Path;

use dmtree_fabric::{Error, Result};

use super::{Head, PairReader, PairWriter};

pub(crate) fn writer(_: impl Write + Send + 'static, _: &Head) -> Result<Box<dyn PairWriter>> {
    Err(missing())
}

pub(super) fn open(_: &Path) -> Result<(Box<dyn PairReader>, Option<Head>)> {
    Err(missing())
}

fn missing() -> Error {
    Error::unsupported(
        "this program was built without the feature `parquet`: build it with, or export as .jsonl",
    )
}
