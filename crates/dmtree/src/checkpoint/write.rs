//! Writes a checkpoint.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dmtree_fabric::{Error, Result};
use dmtree_journal::{Cut, KnownIndex};
use xxhash_rust::xxh3::Xxh3;

use super::manifest::{DataFile, FORMAT, IndexFiles, MANIFEST, Manifest, PoolSize, digits};
use crate::durable::options_of;
use crate::export::{Head, PairWriter, Shared, WholeFile, parquet};
use crate::pool::locked;

/// Bytes of pairs behind which another file begins.
const FILE_BYTES: u64 = 512 << 20;

/// Writes what a cut has.
pub(super) fn write(cut: &dyn Cut, memory_bytes: Option<u64>, to: &Path) -> Result<Manifest> {
    make_directory(to)?;
    let shard = Shard { to, number: 0, file_bytes: FILE_BYTES };
    let known = cut.indexes().iter().enumerate();
    let indexes = known.map(|(i, known)| shard.write_index(cut, i, known));
    let manifest = Manifest {
        format: FORMAT,
        created_by: concat!("dmtree ", env!("CARGO_PKG_VERSION")).to_owned(),
        cut: cut.number(),
        pool: memory_bytes.map(|memory_bytes| PoolSize { memory_bytes }),
        indexes: indexes.collect::<Result<_>>()?,
    };
    finish(&manifest, to)?;
    Ok(manifest)
}

fn make_directory(to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(|e| Error::file("make the directory", &e))?;
    let mut entries = fs::read_dir(to).map_err(|e| Error::file("read the directory", &e))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Error::exists("the directory has files: name an empty one, or a new one")),
    }
}

/// The manifest is written when everything that it names is on the device.
fn finish(manifest: &Manifest, to: &Path) -> Result<()> {
    let sync = || File::open(to)?.sync_all();
    sync().map_err(|e| Error::file("write the directory", &e))?;
    let file = WholeFile::create(&to.join(MANIFEST))?;
    let text = serde_json::to_string_pretty(manifest).expect("plain fields have a text");
    let mut writer = file.writer();
    let write = writer.write_all(text.as_bytes()).and_then(|()| writer.flush());
    write.map_err(|e| Error::file(&format!("write {MANIFEST}"), &e))?;
    drop(writer);
    file.publish()?;
    sync().map_err(|e| Error::file("write the directory", &e))
}

/// The files of one shard.
struct Shard<'a> {
    to: &'a Path,
    number: u32,
    file_bytes: u64,
}

impl Shard<'_> {
    fn write_index(&self, cut: &dyn Cut, i: usize, known: &KnownIndex) -> Result<IndexFiles> {
        let options = options_of(known).map_err(|e| e.context(format!("{:?}", known.name)))?;
        let head = Head { index: known.name.clone(), options };
        let (mut files, mut open) = (Vec::new(), None::<OpenFile>);
        for pair in cut.pairs(known.number)? {
            let (key, value) = pair?;
            if open.as_ref().is_some_and(|open| open.said.pair_bytes >= self.file_bytes) {
                files.extend(open.take().map(OpenFile::end).transpose()?);
            }
            let name = || format!("index-{i}-shard-{}-{}.parquet", self.number, files.len());
            let file = match &mut open {
                Some(file) => file,
                None => open.insert(OpenFile::begin(self, name(), &head)?),
            };
            file.pair(key, &value)?;
        }
        files.extend(open.map(OpenFile::end).transpose()?);
        Ok(IndexFiles { name: head.index, options: head.options, files })
    }
}

/// A file that is being written.
struct OpenFile {
    file: WholeFile,
    pairs: Box<dyn PairWriter>,
    written: Arc<Mutex<Written>>,
    first: Option<Vec<u8>>,
    last: Vec<u8>,
    said: DataFile,
}

/// What has gone into it.
#[derive(Default)]
struct Written {
    bytes: u64,
    hash: Xxh3,
}

struct Hashed {
    to: BufWriter<Shared>,
    written: Arc<Mutex<Written>>,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        let mut written = locked(&self.written);
        written.bytes += count as u64;
        written.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl OpenFile {
    fn begin(shard: &Shard<'_>, name: String, head: &Head) -> Result<Self> {
        let file = WholeFile::create(&shard.to.join(&name))?;
        let written = Arc::<Mutex<Written>>::default();
        let to = Hashed { to: file.writer(), written: written.clone() };
        let pairs = parquet::writer(to, head)?;
        let said = DataFile {
            file: name,
            shard: shard.number,
            rows: 0,
            pair_bytes: 0,
            smallest: String::new(),
            largest: String::new(),
            bytes: 0,
            xxh3: String::new(),
        };
        Ok(Self { file, pairs, written, first: None, last: Vec::new(), said })
    }

    fn pair(&mut self, key: Vec<u8>, value: &[u8]) -> Result<()> {
        self.pairs.pair(&key, value)?;
        self.said.rows += 1;
        self.said.pair_bytes += (key.len() + value.len()) as u64;
        self.first.get_or_insert_with(|| key.clone());
        self.last = key;
        Ok(())
    }

    fn end(self) -> Result<DataFile> {
        self.pairs.finish()?;
        self.file.publish()?;
        let written = locked(&self.written);
        Ok(DataFile {
            smallest: STANDARD.encode(self.first.unwrap_or_default()),
            largest: STANDARD.encode(self.last),
            bytes: written.bytes,
            xxh3: digits(&written.hash),
            ..self.said
        })
    }
}

#[cfg(all(test, feature = "parquet"))]
mod tests {
    use dmtree_journal::{IndexNumber, Pairs};

    use super::*;
    use crate::Options;
    use crate::export::Merged;

    #[derive(Debug)]
    struct Numbers(u32);

    impl Cut for Numbers {
        fn number(&self) -> u64 {
            7
        }

        fn indexes(&self) -> &[KnownIndex] {
            &[]
        }

        fn pairs(&self, _: IndexNumber) -> Result<Pairs> {
            Ok(Box::new((0..self.0).map(|i| Ok((i.to_be_bytes().to_vec(), vec![1; 96])))))
        }
    }

    #[test]
    fn many_pairs_are_several_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let shard = Shard { to: dir.path(), number: 3, file_bytes: 10_000 };
        let (name, options) = ("numbers".to_owned(), Options::default().creation().stored());
        let known = KnownIndex { number: IndexNumber(1), name, options };
        for pairs in [0, 1, 99, 100, 101, 1234] {
            let written = shard.write_index(&Numbers(pairs), pairs as usize, &known);
            let files = written.expect("written").files;
            assert_eq!(files.len() as u32, pairs.div_ceil(100));
            let paths: Vec<_> = files.iter().map(|file| dir.path().join(&file.file)).collect();
            let read = Merged::open(&paths).expect("opened").map(|pair| pair.expect("read").0);
            assert!(read.eq((0..pairs).map(|i| i.to_be_bytes().to_vec())));
            if let Some(last) = files.last() {
                assert_eq!(last.largest, STANDARD.encode((pairs - 1).to_be_bytes()));
                assert_eq!(last.smallest, STANDARD.encode(((pairs - 1) / 100 * 100).to_be_bytes()));
            }
        }
    }
}
