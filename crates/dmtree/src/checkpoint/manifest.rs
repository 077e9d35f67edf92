//! What the files of a checkpoint are, in `MANIFEST.json`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use dmtree_fabric::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::CheckpointSize;
use crate::Options;
use crate::durable::load_bytes;

/// Its name.
pub(super) const MANIFEST: &str = "MANIFEST.json";
/// The version of manifests that this release writes and reads.
pub(super) const FORMAT: u32 = 1;
/// A manifest that is larger is none: a pool has a few hundred indexes.
const MOST_BYTES: u64 = 256 << 20;
const READ_BYTES: usize = 1 << 20;

/// A manifest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The program that wrote it.
    pub created_by: String,
    /// The number of the cut: a later cut of the same pool has a larger one.
    pub cut: u64,
    /// The pool that it was taken of; none when it was not open.
    pub pool: Option<PoolSize>,
    /// Its indexes.
    pub indexes: Vec<IndexFiles>,
}

/// What a manifest says of a pool.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PoolSize {
    /// Its memory.
    pub memory_bytes: u64,
}

/// An index.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IndexFiles {
    /// Its name.
    pub name: String,
    /// What it was created with.
    pub options: Options,
    /// Its pairs; those of one shard in key order.
    pub files: Vec<DataFile>,
}

/// A file with pairs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DataFile {
    /// Its name beside the manifest.
    pub file: String,
    /// The shard of the journal.
    pub shard: u32,
    /// Its pairs.
    pub rows: u64,
    /// Bytes of keys and values.
    pub pair_bytes: u64,
    /// Its smallest key, in base64.
    pub smallest: String,
    /// Its largest key, in base64.
    pub largest: String,
    /// Its size.
    pub bytes: u64,
    /// XXH3 of its bytes, 64 bits, as 16 hexadecimal digits.
    pub xxh3: String,
}

impl Manifest {
    /// Reads that of a directory, and checks that every file is there as it says.
    pub(super) fn read(from: &Path) -> Result<(Self, Fingerprint)> {
        let (manifest, fingerprint) = Self::parse(from)?;
        let files = manifest.indexes.iter().flat_map(|index| &index.files);
        files.into_iter().try_for_each(|file| file.check(from))?;
        Ok((manifest, fingerprint))
    }

    /// Reads that of a directory. It names files beside it, and nothing else.
    pub(super) fn parse(from: &Path) -> Result<(Self, Fingerprint)> {
        let text = read_text(&from.join(MANIFEST))?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|e| other_format(&text).unwrap_or_else(|| corrupt(MANIFEST, e)))?;
        if manifest.format != FORMAT {
            return Err(incompatible(manifest.format));
        }
        for name in manifest.files() {
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(corrupt(MANIFEST, format_args!("{name:?} is no name of a file")));
            }
        }
        Ok((manifest, Fingerprint::of(&text)))
    }

    /// The names of its files.
    pub(super) fn files(&self) -> Vec<&str> {
        let files = self.indexes.iter().flat_map(|index| &index.files);
        files.map(|file| file.file.as_str()).collect()
    }

    /// Bytes of pairs, as a load counts them.
    pub(super) fn load_bytes(&self) -> u64 {
        let files = self.indexes.iter().flat_map(|index| &index.files);
        files.map(|file| load_bytes(file.rows, file.pair_bytes)).sum()
    }

    pub(super) fn size(&self) -> CheckpointSize {
        let files = || self.indexes.iter().flat_map(|index| &index.files);
        CheckpointSize {
            indexes: self.indexes.len(),
            pairs: files().map(|file| file.rows).sum(),
            file_bytes: files().map(|file| file.bytes).sum(),
        }
    }
}

fn read_text(path: &Path) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut read = || File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut text);
    match read() {
        Ok(bytes) if bytes as u64 > MOST_BYTES => Err(corrupt(MANIFEST, "it is too large")),
        Ok(_) => Ok(text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::not_found(format!(
            "it has no {MANIFEST}: it is no checkpoint, or one that was not finished"
        ))),
        Err(e) => Err(Error::file(&format!("read {MANIFEST}"), &e)),
    }
}

/// Fields may differ in another format: it says so first.
fn other_format(text: &[u8]) -> Option<Error> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let Format { format } = serde_json::from_slice(text).ok()?;
    (format != FORMAT).then(|| incompatible(format))
}

fn incompatible(format: u32) -> Error {
    Error::incompatible(format!(
        "{MANIFEST} has format {format}, and this release reads format {FORMAT}: restore it with \
         the release that wrote it, and export"
    ))
}

pub(super) fn corrupt(file: &str, what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("{file}: {what}"))
}

impl DataFile {
    /// Whether the file is the one that was written.
    fn check(&self, from: &Path) -> Result<()> {
        let wrong = |what: String| Err(corrupt(&self.file, what));
        let path = from.join(&self.file);
        let bytes = match fs::metadata(&path) {
            Ok(data) if data.is_file() => data.len(),
            Ok(_) => return wrong("it is no file".to_owned()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return wrong("it is missing".to_owned());
            }
            Err(e) => return Err(Error::file(&format!("read {}", self.file), &e)),
        };
        if bytes != self.bytes {
            return wrong(format!("it has {bytes} bytes, and {MANIFEST} says {}", self.bytes));
        }
        let hash = hash_of(&path).map_err(|e| Error::file(&format!("read {}", self.file), &e))?;
        if hash != self.xxh3 {
            return wrong(format!("its XXH3 is {hash}, and {MANIFEST} says {}", self.xxh3));
        }
        Ok(())
    }
}

fn hash_of(path: &Path) -> io::Result<String> {
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Xxh3::new(), vec![0; READ_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digits(&hash)),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// A hash, as a manifest has it.
pub(super) fn digits(hash: &Xxh3) -> String {
    format!("{:016x}", hash.digest())
}

/// Tells one manifest from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(pub(super) String);

impl Fingerprint {
    fn of(text: &[u8]) -> Self {
        Self(format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text)))
    }
}

/// The kind of an error in a file that the manifest vouches for: the checkpoint is damaged.
pub(super) fn damaged(e: Error) -> Error {
    match e.kind() {
        ErrorKind::InvalidArgument => Error::corrupt(e.to_string()),
        _ => e,
    }
}
