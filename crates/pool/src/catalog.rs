//! The catalog of named indexes, on memory node 0. A service creates and drops entries, so that
//! names stay unique; clients read all of them with one READ.
//!
//! A slot has a line of words (state with id, root word, aux word, deaths counted by garbage
//! collection, directory word, claim of it) and a body with a checksum: id, name, system, options,
//! creator. **Create** finds a free slot, draws the next id (an addition on memory node 0), writes
//! the body, zeroes the words, and writes the state *last*. **Drop** changes the state to
//! `Dropped`: the name is free, and the index is as it was to all that serve memory. **Purge**
//! (`purge.rs`) frees the slot with a compare-and-swap, when no operation of the index can run any
//! more.
//! **Publish**, in `creation.rs`, is a compare-and-swap of the state word by the creator itself.
//!
//! Invariants. Ids are never given again. A name is in at most one slot: the calls of the service
//! run one at a time, so what one has read stays true until it writes. The body carries the id of
//! the state word, so an image that was read across a drop and a creation does not match, and is
//! read again. A slot is used again when no client of its former index runs an operation.
//!
//! Crashes. The service goes with memory node 0, and the pool with it. A call with a lost answer
//! leaves a slot in state `Creating`. Its name is free again when its creator is gone or has
//! forgotten its ticket.

use std::sync::Mutex;

use dmtree_fabric::{Endpoint, Error, GlobalAddr, Member, NodeId, Result, Service, ServiceId};
use postcard::fixint;
use serde::{Deserialize, Serialize};

use crate::creation::Creator;
use crate::layout::{CATALOG, INDEX_IDS_WORD, SLOT_BYTES, SLOTS, first_node};
use crate::node::PoolNode;
use crate::wire::{self, Half, Quarter, Word, locked, seal, sealed};

/// The catalog, on memory node 0.
pub(crate) const CATALOG_SERVICE: ServiceId = ServiceId(0x13);

/// Most indexes of one pool.
pub const MAX_INDEXES: usize = SLOTS as usize;
/// Longest name of an index, bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest name of a system, bytes.
pub const MAX_SYSTEM_BYTES: usize = 64;
/// Longest options, bytes.
pub const MAX_OPTIONS_BYTES: usize = 2048;

/// The body of a slot, behind the line of words.
pub(crate) const BODY: u64 = 64;
const BODY_BYTES: usize = (SLOT_BYTES - BODY) as usize;
const NAME_AT: usize = 8;
const SYSTEM_AT: usize = NAME_AT + MAX_NAME_BYTES;
const OPTIONS_AT: usize = SYSTEM_AT + MAX_SYSTEM_BYTES;
const CREATOR_AT: usize = OPTIONS_AT + MAX_OPTIONS_BYTES;
const ROOT_WORD: u64 = 8;
const AUX_WORD: u64 = 16;
/// The deaths that garbage collections of the index have counted.
const COUNTED_WORD: u64 = 24;
/// What clients may learn of the index, and the claim of the client that is about to change it.
const DIRECTORY_WORD: u64 = 32;
const CLAIM_WORD: u64 = 40;

/// The first fields of the body of a slot: the number of the index, and the lengths of its name, of
/// the name of its system, and of its options.
type Lengths = (Half, u8, u8, Quarter);
/// The creator in the body of a slot: number of the node, spare, incarnation, ticket.
type CreatorFields = (Quarter, Quarter, Half, Word);

/// The kind of a call.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum CallKind {
    Create,
    Drop,
}

/// A call of the service. The options of the index follow.
#[derive(Serialize, Deserialize)]
struct Call<'a> {
    kind: CallKind,
    #[serde(with = "fixint::le")]
    incarnation: u32,
    #[serde(with = "fixint::le")]
    ticket: u64,
    name: &'a str,
    system: &'a str,
}

/// The state of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexState {
    /// Its creator formats it; no other client uses it.
    Creating,
    /// It can be opened.
    Ready,
    /// It has no name any more, and operations of clients that have opened it may still run.
    Dropped,
}

impl IndexState {
    fn word(self, id: u32) -> u64 {
        let state = match self {
            Self::Creating => 1,
            Self::Ready => 2,
            Self::Dropped => 3,
        };
        u64::from(id) << 8 | state
    }

    fn of(word: u64) -> Option<(Self, u32)> {
        let state = match word & 0xff {
            1 => Self::Creating,
            2 => Self::Ready,
            3 => Self::Dropped,
            _ => return None,
        };
        Some((state, u32::try_from(word >> 8).ok()?))
    }
}

/// An index that is to be created.
#[derive(Clone, Copy, Debug)]
pub struct NewIndex<'a> {
    /// Its name.
    pub name: &'a str,
    /// Which kind of index it is.
    pub system: &'a str,
    /// Its options, in the index's own encoding.
    pub options: &'a [u8],
}

/// One index in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its number; never given again.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Which kind of index it is.
    pub system: String,
    /// Its options, in the index's own encoding.
    pub options: Vec<u8>,
    /// A word that belongs to the index: 0 at creation, changed by compare-and-swap only. The word
    /// behind it is another one like that.
    pub root_word: GlobalAddr,
    /// Its state.
    pub state: IndexState,
    /// The process that created it, or is about to.
    pub creator: Creator,
}

impl IndexEntry {
    /// The word that holds its state.
    pub(crate) fn state_word(&self) -> Result<GlobalAddr> {
        let at = self.root_word.offset().checked_sub(CATALOG + ROOT_WORD);
        let slot = at.filter(|at| at.is_multiple_of(SLOT_BYTES) && at / SLOT_BYTES < SLOTS);
        match slot.filter(|_| self.root_word.node() == NodeId::memory(0)) {
            Some(slot) => Ok(slot_at(slot / SLOT_BYTES)),
            None => {
                Err(Error::invalid(format!("{} is no root word of the catalog", self.root_word)))
            }
        }
    }

    fn is_named(&self, name: &str) -> bool {
        self.state != IndexState::Dropped && self.name == name
    }

    /// Its state word while it is being created.
    pub(crate) fn creating_word(&self) -> u64 {
        IndexState::Creating.word(self.id)
    }
}

fn slot_at(slot: u64) -> GlobalAddr {
    first_node(CATALOG + slot * SLOT_BYTES)
}

fn encode_body(id: u32, new: NewIndex<'_>, creator: Creator) -> Vec<u8> {
    let NewIndex { name, system, options } = new;
    let mut out = vec![0; BODY_BYTES];
    let lengths: Lengths =
        (Half(id), name.len() as u8, system.len() as u8, Quarter(options.len() as u16));
    out[..NAME_AT].copy_from_slice(&wire::encode(&lengths));
    out[NAME_AT..][..name.len()].copy_from_slice(name.as_bytes());
    out[SYSTEM_AT..][..system.len()].copy_from_slice(system.as_bytes());
    out[OPTIONS_AT..][..options.len()].copy_from_slice(options);
    let Creator { member, ticket } = creator;
    let (node, spare) = (Quarter(member.node.bits()), Quarter(0));
    let creator: CreatorFields = (node, spare, Half(member.incarnation), Word(ticket));
    out[CREATOR_AT..][..16].copy_from_slice(&wire::encode(&creator));
    seal(&mut out);
    out
}

/// `Ok(None)`: free. `Err(())`: torn.
fn decode_slot(slot: u64, bytes: &[u8]) -> Result<Option<IndexEntry>, ()> {
    let Word(word) = wire::take(&mut &*bytes).map_err(|_| ())?;
    if word == 0 {
        return Ok(None);
    }
    let (state, id) = IndexState::of(word).ok_or(())?;
    let body = bytes.get(BODY as usize..).ok_or(())?;
    if body.len() != BODY_BYTES || !sealed(body) {
        return Err(());
    }
    let (Half(stored_id), name, system, Quarter(length)): Lengths =
        wire::take(&mut &*body).map_err(|_| ())?;
    if stored_id != id {
        return Err(());
    }
    let text = |at: usize, len: u8, max: usize| {
        let len = usize::from(len);
        let bytes = body[at..].get(..len).filter(|_| len <= max).ok_or(())?;
        String::from_utf8(bytes.to_vec()).map_err(|_| ())
    };
    let name = text(NAME_AT, name, MAX_NAME_BYTES)?;
    let system = text(SYSTEM_AT, system, MAX_SYSTEM_BYTES)?;
    let length = usize::from(length);
    let options = body[OPTIONS_AT..].get(..length).filter(|_| length <= MAX_OPTIONS_BYTES);
    let options = options.ok_or(())?.to_vec();
    let (Quarter(node), _, Half(incarnation), Word(ticket)): CreatorFields =
        wire::take(&mut &body[CREATOR_AT..]).map_err(|_| ())?;
    let member = Member { node: NodeId::from_bits(node), incarnation };
    let creator = Creator { member, ticket };
    let root_word = slot_at(slot).plus(ROOT_WORD);
    Ok(Some(IndexEntry { id, name, system, options, root_word, state, creator }))
}

/// Decodes a slot of any bytes.
#[cfg(feature = "tcp")]
pub(crate) fn look_at_slot(bytes: &[u8]) {
    let _ = decode_slot(0, bytes);
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(Error::invalid(format!(
            "the name of an index has 1 to {MAX_NAME_BYTES} bytes, not {}",
            name.len()
        )));
    }
    Ok(())
}

/// The error of a name that is taken.
pub(crate) fn exists(e: &IndexEntry) -> Error {
    let doing = match e.state {
        IndexState::Creating => format!(" ({} is creating it)", e.creator.member),
        IndexState::Ready | IndexState::Dropped => String::new(),
    };
    let name = &e.name;
    let text = format!(
        "there is an index {name:?} already{doing}: open it, drop it, or choose another name"
    );
    Error::exists(text)
}

fn not_found(name: &str) -> Error {
    Error::not_found(format!("there is no index {name:?} in this pool"))
}

async fn read_all(ep: &Endpoint) -> Result<Vec<(u64, IndexEntry)>> {
    let at = first_node(CATALOG);
    let mut pause = ep.backoff("the catalog", at);
    loop {
        let bytes = ep.read(at, (SLOTS * SLOT_BYTES) as u32).await?;
        let slots = bytes.extract(|b| -> Result<Vec<_>, ()> {
            let slots = b.chunks_exact(SLOT_BYTES as usize).zip(0..);
            let entries = slots.map(|(b, i)| Ok(decode_slot(i, b)?.map(|e| (i, e))));
            entries.filter_map(Result::transpose).collect()
        });
        match slots {
            Ok(slots) => return Ok(slots),
            // The service is writing a slot.
            Err(()) => pause.step().await?,
        }
    }
}

/// The word after an index's root word that says how many deaths its garbage collections have
/// counted.
pub(crate) fn counted_word(root_word: GlobalAddr) -> GlobalAddr {
    root_word.plus(COUNTED_WORD - ROOT_WORD)
}

/// All indexes with a slot, those that were dropped included. One READ.
pub(crate) async fn all_indexes(ep: &Endpoint) -> Result<Vec<IndexEntry>> {
    Ok(read_all(ep).await?.into_iter().map(|(_, e)| e).collect())
}

/// The numbers of [`all_indexes`].
pub(crate) async fn live_indexes(ep: &Endpoint) -> Result<Vec<u32>> {
    Ok(all_indexes(ep).await?.into_iter().map(|e| e.id).collect())
}

/// Creates and drops. Calls run one at a time, so what it reads stays true until it writes.
#[derive(Default)]
pub(crate) struct CatalogService {
    /// The slot to try first.
    next: Mutex<u64>,
}

impl CatalogService {
    async fn create(
        &self,
        ep: &Endpoint,
        new: NewIndex<'_>,
        creator: Creator,
    ) -> Result<(u64, u32)> {
        let taken = read_all(ep).await?;
        if let Some((_, e)) = taken.iter().find(|(_, e)| e.is_named(new.name)) {
            return Err(exists(e));
        }
        let first = *locked(&self.next);
        let slot = (0..SLOTS)
            .map(|k| (first + k) % SLOTS)
            .find(|s| taken.iter().all(|(t, _)| t != s))
            .ok_or_else(|| {
                Error::full(format!("the catalog on mn0 is full ({SLOTS} indexes): drop one"))
            })?;
        let before = ep.faa(first_node(INDEX_IDS_WORD), 1).await?;
        let id = u32::try_from(before + 1)
            .map_err(|_| Error::full("the pool has no index numbers left"))?;
        let at = slot_at(slot);
        let body = encode_body(id, new, creator);
        ep.write_bytes(at.plus(BODY), &body).await?;
        ep.write_word(at.plus(ROOT_WORD), 0).await?;
        ep.write_word(at.plus(AUX_WORD), 0).await?;
        ep.write_word(at.plus(COUNTED_WORD), 0).await?;
        ep.write_word(at.plus(DIRECTORY_WORD), 0).await?;
        ep.write_word(at.plus(CLAIM_WORD), 0).await?;
        // The state comes last: before it the slot is free.
        ep.write_word(at, IndexState::Creating.word(id)).await?;
        *locked(&self.next) = (slot + 1) % SLOTS;
        Ok((slot, id))
    }

    async fn remove(&self, ep: &Endpoint, name: &str) -> Result<()> {
        let taken = read_all(ep).await?;
        let found = taken.iter().find(|(_, e)| e.is_named(name));
        let (slot, e) = found.ok_or_else(|| not_found(name))?;
        ep.write_word(slot_at(*slot), IndexState::Dropped.word(e.id)).await
    }
}

impl Service for CatalogService {
    async fn answer(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let mut options = request;
        let Call { kind, incarnation, ticket, name, system } =
            wire::take_call("the catalog", &mut options)?;
        let new = NewIndex { name, system, options };
        check(new)?;
        match kind {
            CallKind::Create => {
                let creator = Creator { member: Member { node: from, incarnation }, ticket };
                let (slot, id) = self.create(ep, new, creator).await?;
                Ok(wire::encode(&(Word(slot), Half(id))))
            }
            CallKind::Drop => self.remove(ep, name).await.map(|()| Vec::new()),
        }
    }
}

fn check(NewIndex { name, system, options }: NewIndex<'_>) -> Result<()> {
    check_name(name)?;
    if system.len() > MAX_SYSTEM_BYTES {
        return Err(Error::invalid(format!(
            "the name of a system has at most {MAX_SYSTEM_BYTES} bytes, not {}",
            system.len()
        )));
    }
    if options.len() > MAX_OPTIONS_BYTES {
        return Err(Error::invalid(format!(
            "the options of an index have at most {MAX_OPTIONS_BYTES} bytes, not {}",
            options.len()
        )));
    }
    Ok(())
}

async fn call(
    ep: &Endpoint,
    kind: CallKind,
    new: NewIndex<'_>,
    creator: Creator,
) -> Result<Vec<u8>> {
    check(new)?;
    let NewIndex { name, system, options } = new;
    let Creator { member, ticket } = creator;
    let call = Call { kind, incarnation: member.incarnation, ticket, name, system };
    let mut request = wire::encode(&call);
    request.extend(options);
    let mut reply = Vec::new();
    ep.rpc(NodeId::memory(0), CATALOG_SERVICE, &request, &mut reply).await?;
    Ok(reply)
}

/// The indexes of a pool: their names, and what is left of those that were dropped.
#[derive(Clone, Copy, Debug)]
pub struct Catalog<'n>(pub(crate) &'n PoolNode);

impl Catalog<'_> {
    /// Registers a name once.
    pub(crate) async fn register_index(
        self,
        ep: &Endpoint,
        new: NewIndex<'_>,
        ticket: u64,
    ) -> Result<IndexEntry> {
        let creator = Creator { member: self.0.member(), ticket };
        let reply = call(ep, CallKind::Create, new, creator).await?;
        let (Word(slot), Half(id)) = wire::decode(&reply)?;
        if slot >= SLOTS {
            return Err(Error::corrupt(format!("mn0 granted slot {slot} of {SLOTS}")));
        }
        Ok(IndexEntry {
            id,
            name: new.name.to_owned(),
            system: new.system.to_owned(),
            options: new.options.to_vec(),
            root_word: slot_at(slot).plus(ROOT_WORD),
            state: IndexState::Creating,
            creator,
        })
    }

    /// Makes an index in state `Creating` ready for all nodes. Publishing twice is no error.
    ///
    /// # Errors
    /// `NotFound` when it was dropped meanwhile; those of the fabric.
    pub async fn publish_index(self, ep: &Endpoint, e: &IndexEntry) -> Result<()> {
        let ready = IndexState::Ready.word(e.id);
        let before = ep.cas(e.state_word()?, e.creating_word(), ready).await?;
        if before == ready || before == e.creating_word() {
            return Ok(());
        }
        Err(not_found(&e.name))
    }

    /// Looks a name up.
    ///
    /// # Errors
    /// `InvalidArgument` for an impossible name; those of the fabric.
    pub async fn find_index(self, ep: &Endpoint, name: &str) -> Result<Option<IndexEntry>> {
        check_name(name)?;
        Ok(all_indexes(ep).await?.into_iter().find(|e| e.is_named(name)))
    }

    /// All indexes, by name.
    pub async fn list_indexes(self, ep: &Endpoint) -> Result<Vec<IndexEntry>> {
        let mut all = all_indexes(ep).await?;
        all.retain(|e| e.state != IndexState::Dropped);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Removes an index. Operations that run come to their end, later ones fail with `Closed` on
    /// every node, and its memory goes back to the pool. What cannot be given back now, because a
    /// node does not answer or an operation does not end, is left to a later purge
    /// ([`Catalog::purge_dropped`]). Call it between operations.
    ///
    /// # Errors
    /// `NotFound`; those of the fabric.
    pub async fn drop_index(self, ep: &Endpoint, name: &str) -> Result<()> {
        let me = Creator { member: self.0.member(), ticket: 0 };
        let dropped = NewIndex { name, system: "", options: &[] };
        call(ep, CallKind::Drop, dropped, me).await?;
        let _ = Box::pin(self.purge_dropped(ep)).await;
        Ok(())
    }

    /// No operation of a dropped index can run any more: its slot is free.
    pub(crate) async fn free_slot(self, ep: &Endpoint, e: &IndexEntry) -> Result<()> {
        ep.cas(e.state_word()?, IndexState::Dropped.word(e.id), 0).await.map(drop)
    }
}
