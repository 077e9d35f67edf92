//! Checkpoints in an object store: S3, or what speaks its protocol.
//!
//! A checkpoint is written to a directory of this machine first, and read from one: Parquet files
//! are read by place. The first object that is put is the claim of the writer, and is put only
//! when none is there: of two writers of one place one fails before it has changed anything. The
//! last one is the manifest: a checkpoint exists when its manifest does. A writer that fails
//! removes what it has put. What a process that is killed has left is no checkpoint, and stays
//! claimed: another place is to be taken.
//!
//! Credentials, region and endpoint come from the environment variables of the AWS tools
//! (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT`, ...).

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use dmtree_fabric::{Error, ErrorKind, Result};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as At;
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
    WriteMultipart,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::manifest::MANIFEST;

/// The object of a writer that has taken a place.
const CLAIM: &str = "CLAIM";
/// How a place in an object store begins.
const SCHEME: &str = "s3://";
/// Bytes of a part of an object.
const PART_BYTES: usize = 8 << 20;
/// Parts on their way at once.
const MOST_PARTS: usize = 2;
/// Longest time for which a request is repeated, and its longest answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether this names a place in an object store.
pub(super) fn is_place(text: &Path) -> bool {
    text.to_str().is_some_and(|text| text.starts_with(SCHEME))
}

/// A place in a store.
pub(super) struct Store {
    store: AmazonS3,
    at: At,
    runtime: Runtime,
}

impl Store {
    /// Opens `s3://BUCKET/PATH`.
    pub(super) fn open(text: &Path) -> Result<Self> {
        let text = text.to_str().unwrap_or_default();
        let (bucket, path) = text
            .strip_prefix(SCHEME)
            .and_then(|rest| rest.split_once('/'))
            .filter(|(bucket, path)| !bucket.is_empty() && !path.trim_matches('/').is_empty())
            .ok_or_else(|| Error::invalid("it is no place: name s3://BUCKET/PATH"))?;
        check_credentials()?;
        let retry = RetryConfig { max_retries: 3, retry_timeout: PATIENCE, ..Default::default() };
        let client = ClientOptions::new().with_timeout(PATIENCE).with_connect_timeout(PATIENCE);
        let client = client.with_allow_http(is_plain());
        let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
        let store = builder.with_client_options(client).build().map_err(|e| failed(&e))?;
        let at = At::parse(path).map_err(|e| Error::invalid(e.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::busy(format!("no runtime: {e}")))?;
        Ok(Self { store, at, runtime })
    }

    /// The names of folders below it.
    pub(super) fn folders(&self) -> Result<Vec<String>> {
        let listed = self.runtime.block_on(self.store.list_with_delimiter(Some(&self.at)));
        let folders = listed.map_err(|e| failed(&e))?.common_prefixes;
        Ok(folders.iter().filter_map(|at| at.filename().map(str::to_owned)).collect())
    }

    /// Whether an object is there.
    pub(super) fn has(&self, object: &At) -> Result<bool> {
        match self.runtime.block_on(self.store.head(object)) {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) => Err(failed(&e)),
        }
    }

    /// The object of the manifest of a folder.
    pub(super) fn manifest(&self, folder: &str) -> At {
        self.at.clone().join(folder).join(MANIFEST)
    }

    /// Takes a folder below it for one writer.
    pub(super) fn claim(&self, folder: &str) -> Result<()> {
        self.put_new(&self.at.clone().join(folder).join(CLAIM), PutPayload::new())
    }

    /// Puts an object that is not there. `Exists` when it is.
    fn put_new(&self, object: &At, bytes: PutPayload) -> Result<()> {
        let only_new = PutOptions::from(PutMode::Create);
        let put = self.runtime.block_on(self.store.put_opts(object, bytes, only_new));
        put.map(drop).map_err(|e| failed(&e))
    }

    /// Removes all of a folder below it.
    pub(super) fn remove(&self, folder: &str) -> Result<()> {
        self.remove_all(&self.at.clone().join(folder))
    }

    /// Removes the objects of a place: the manifest first, and the claim last, so that no other
    /// writer takes the place while others of its objects are there.
    fn remove_all(&self, within: &At) -> Result<()> {
        let claim = within.clone().join(CLAIM);
        self.delete(&within.clone().join(MANIFEST))?;
        let listed = self.runtime.block_on(self.store.list_with_delimiter(Some(within)));
        for object in listed.map_err(|e| failed(&e))?.objects {
            if object.location != claim {
                self.delete(&object.location)?;
            }
        }
        self.delete(&claim)
    }

    fn delete(&self, object: &At) -> Result<()> {
        match self.runtime.block_on(self.store.delete(object)) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(failed(&e)),
        }
    }
}

/// A checkpoint in a store, and the directory that has its files meanwhile.
pub(super) struct Place {
    store: Store,
    spool: TempDir,
}

impl Place {
    /// Opens `s3://BUCKET/PATH`.
    pub(super) fn open(text: &Path) -> Result<Self> {
        let store = Store::open(text)?;
        let spool = TempDir::new().map_err(|e| Error::file("make a directory", &e))?;
        Ok(Self { store, spool })
    }

    /// The directory.
    pub(super) fn spool(&self) -> &Path {
        self.spool.path()
    }

    /// Takes the place for this writer.
    pub(super) fn claim(&self) -> Result<()> {
        if self.store.has(&self.object(MANIFEST))? {
            return Err(Error::exists("there is a checkpoint already: name another place"));
        }
        let claimed = self.store.put_new(&self.object(CLAIM), PutPayload::new());
        claimed.map_err(|e| match e.kind() {
            ErrorKind::Exists => Error::exists(format!(
                "another writer has begun a checkpoint there (it has left {CLAIM}): name another \
                 place"
            )),
            _ => e,
        })
    }

    /// Leaves the place to other writers, after an error of this one, which has it. What cannot be
    /// removed stays claimed.
    pub(super) fn give_up(&self) {
        let _ = self.store.remove_all(&self.store.at);
    }

    /// Puts files of the directory, the manifest last.
    pub(super) fn put(&self, files: &[&str]) -> Result<()> {
        for file in files {
            let put = self.store.runtime.block_on(self.put_file(file));
            put.map_err(|e| e.context(*file))?;
        }
        let path = self.spool.path().join(MANIFEST);
        let text = std::fs::read(path).map_err(|e| Error::file("read it", &e))?;
        let put = self.store.put_new(&self.object(MANIFEST), text.into());
        put.map_err(|e| e.context(MANIFEST))
    }

    async fn put_file(&self, name: &str) -> Result<()> {
        let unread = |e: io::Error| Error::file("read it", &e);
        let mut file = File::open(self.spool.path().join(name)).map_err(unread)?;
        let upload =
            self.store.store.put_multipart(&self.object(name)).await.map_err(|e| failed(&e))?;
        let mut parts = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut buffer = vec![0; PART_BYTES];
        loop {
            match file.read(&mut buffer).map_err(unread)? {
                0 => break,
                read => parts.write(&buffer[..read]),
            }
            parts.wait_for_capacity(MOST_PARTS).await.map_err(|e| failed(&e))?;
        }
        parts.finish().await.map(drop).map_err(|e| failed(&e))
    }

    /// Gets an object into the directory.
    pub(super) fn get(&self, name: &str) -> Result<()> {
        let store = &self.store.store;
        let got = self.store.runtime.block_on(async {
            let object = self.object(name);
            let bytes = store.head(&object).await.map_err(|e| failed(&e))?.size;
            let unwritten = |e: io::Error| Error::file("write it", &e);
            let mut file = File::create(self.spool.path().join(name)).map_err(unwritten)?;
            // By pieces, so that a large object takes no more memory than a small one.
            for at in (0..bytes).step_by(PART_BYTES) {
                let end = (at + PART_BYTES as u64).min(bytes);
                let piece = store.get_range(&object, at..end).await;
                file.write_all(&piece.map_err(|e| failed(&e))?).map_err(unwritten)?;
            }
            Ok(())
        });
        got.map_err(|e: Error| e.context(name.to_owned()))
    }

    fn object(&self, name: &str) -> At {
        self.store.at.clone().join(name)
    }
}

/// Without them a client would ask the services of a cloud for some, one after the other.
fn check_credentials() -> Result<()> {
    let ways = [
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_SKIP_SIGNATURE",
    ];
    if ways.iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(());
    }
    Err(Error::invalid(
        "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
         AWS_SKIP_SIGNATURE=true for a store that needs none",
    ))
}

/// Whether the endpoint that the environment names is without TLS.
fn is_plain() -> bool {
    let names = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let endpoint = names.iter().find_map(|name| std::env::var(name).ok());
    endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
}

fn failed(e: &object_store::Error) -> Error {
    use object_store::Error as E;
    let kind = match e {
        E::NotFound { .. } => ErrorKind::NotFound,
        E::AlreadyExists { .. } | E::Precondition { .. } => ErrorKind::Exists,
        E::Unauthenticated { .. } | E::PermissionDenied { .. } | E::InvalidPath { .. } => {
            ErrorKind::InvalidArgument
        }
        E::NotSupported { .. } | E::NotImplemented { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::Unreachable,
    };
    // One line.
    let text = e.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    Error::new(kind, format!("the object store: {text}"))
}
