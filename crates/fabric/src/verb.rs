//! Verbs as values; chains and batches are tuples of them. An `Option` of a WRITE may be left out.
//! Results are typed, and an order that no fabric keeps does not compile:
//!
//! ```compile_fail
//! use dmtree_fabric::{GlobalAddr, NodeId, verb::{cas, read}};
//! # fn chain(ep: &dmtree_fabric::Endpoint) {
//! let at = GlobalAddr::new(NodeId::memory(0), 64);
//! let _ = ep.chain((read(at, 8), cas(at, 0, 1))); // nothing is ordered behind a READ
//! # }
//! ```
//!
//! ```
//! use dmtree_fabric::{GlobalAddr, NodeId, verb::{beside, cas, fenced, read}};
//! # fn chain(ep: &dmtree_fabric::Endpoint) {
//! let at = GlobalAddr::new(NodeId::memory(0), 64);
//! let _ = ep.chain((cas(at, 0, 1), read(at, 8))); // atomic->READ is
//! let _ = ep.chain((read(at, 8), fenced(cas(at, 0, 1)))); // or with a fence: a round trip
//! let both = beside(read(at, 8), Some(read(at, 64)));
//! let _ = ep.chain((cas(at, 0, 1), both)); // two READs, each behind the atomic
//! # }
//! ```

use crate::addr::GlobalAddr;
use crate::core::Posting;
use crate::direct::DirectList;
use crate::error::Result;
use crate::sampled::Sampled;
use crate::slab::{Buf, Slab};
use crate::transport::{Opcode, WorkRequest};

/// READ; yields [`Sampled`].
#[derive(Clone, Copy, Debug)]
pub struct Read {
    at: GlobalAddr,
    len: u32,
    unvalidated: bool,
}

/// WRITE of a buffer; gives it back for reuse.
#[derive(Debug)]
pub struct Write {
    at: GlobalAddr,
    buf: Option<Buf>,
}

/// WRITE of one word, sent inline.
#[derive(Clone, Copy, Debug)]
pub struct WriteWord {
    at: GlobalAddr,
    word: u64,
}

/// Compare-and-swap of `a` to `b`, or fetch-and-add of `a`; yields the previous word.
#[derive(Clone, Copy, Debug)]
pub struct Atomic {
    op: Opcode,
    at: GlobalAddr,
    a: u64,
    b: u64,
}

/// A verb that waits for all earlier verbs of its chain to complete. Costs a round trip.
#[derive(Clone, Copy, Debug)]
pub struct Fenced<V>(V);

/// A READ, and perhaps another of the same node. Both wait for what stands before them in their
/// chain, and neither for the other; nothing is ordered behind them.
#[derive(Clone, Copy, Debug)]
pub struct Beside(Read, Option<Read>);

/// Verbs to one node, in order, as one element of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Chain<L>(L);

/// READ of `len` bytes.
pub const fn read(at: GlobalAddr, len: u32) -> Read {
    Read { at, len, unvalidated: false }
}
/// READ of memory that may have been freed: the caller accepts only bytes that prove themselves
/// valid, from any object. To a NIC it is the same verb; a fabric that checks accesses reports no
/// finding.
pub const fn read_unvalidated(at: GlobalAddr, len: u32) -> Read {
    Read { at, len, unvalidated: true }
}
/// Two READs of one node, the last of a chain.
pub const fn beside(one: Read, other: Option<Read>) -> Beside {
    Beside(one, other)
}
/// WRITE of a whole buffer.
pub const fn write(at: GlobalAddr, buf: Buf) -> Write {
    Write { at, buf: Some(buf) }
}
/// WRITE of one aligned word.
pub const fn write_word(at: GlobalAddr, word: u64) -> WriteWord {
    WriteWord { at, word }
}
/// Compare-and-swap of one aligned word.
pub const fn cas(at: GlobalAddr, old: u64, new: u64) -> Atomic {
    Atomic { op: Opcode::Cas, at, a: old, b: new }
}
/// Fetch-and-add on one aligned word.
pub const fn faa(at: GlobalAddr, add: u64) -> Atomic {
    Atomic { op: Opcode::Faa, at, a: add, b: 0 }
}
/// The same verb, fenced.
pub const fn fenced<V: Single>(verb: V) -> Fenced<V> {
    Fenced(verb)
}
/// A chain as an element of a batch.
pub const fn chain<L: Ordered>(list: L) -> Chain<L> {
    Chain(list)
}

/// A local buffer, and the chunk of the slab that it lies in.
type Local = (*mut u8, u32);

/// A verb without one.
const NOWHERE: Local = (std::ptr::null_mut(), 0);

/// Fills a posting with requests and the buffers they use.
pub struct Stager<'a> {
    posting: &'a mut Posting,
    slab: &'a Slab,
    /// The next request continues the chain of the previous one.
    chained: bool,
    words_used: u32,
    fenced: bool,
    unvalidated: bool,
}

impl<'a> Stager<'a> {
    pub(crate) fn new(
        posting: &'a mut Posting,
        slab: &'a Slab,
        chained: bool,
        atomics: u32,
    ) -> Self {
        if atomics > 0 {
            posting.words = Some(slab.alloc(atomics * 8));
        }
        Self { posting, slab, chained, words_used: 0, fenced: false, unvalidated: false }
    }

    fn push(
        &mut self,
        op: Opcode,
        at: GlobalAddr,
        len: u32,
        (a, b): (u64, u64),
        (local, chunk): Local,
    ) {
        let (fenced, unvalidated) = (self.fenced, self.unvalidated);
        (self.fenced, self.unvalidated) = (false, false);
        let chained = self.chained;
        let request = WorkRequest { op, fenced, chained, unvalidated, len, at, a, b, chunk, local };
        self.posting.requests.push(request);
    }

    fn push_buf(&mut self, op: Opcode, at: GlobalAddr, buf: Buf) {
        self.push(op, at, buf.len() as u32, (0, 0), (buf.raw(), buf.chunk()));
        self.posting.bufs.push(Some(buf));
    }

    fn push_atomic(&mut self, op: Opcode, at: GlobalAddr, a: u64, b: u64) {
        let words = self.posting.words.as_ref().expect("room for every atomic was made");
        assert!((self.words_used + 1) * 8 <= words.len() as u32, "room for every atomic was made");
        let local = words.raw().wrapping_add(self.words_used as usize * 8);
        self.words_used += 1;
        let chunk = words.chunk();
        self.push(op, at, 8, (a, b), (local, chunk));
    }

    /// Runs `f` with all requests it pushes in one chain.
    fn in_chain(&mut self, f: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.chained, true);
        f(self);
        self.chained = outer;
        if !outer && let Some(last) = self.posting.requests.last_mut() {
            last.chained = false;
        }
    }
}

/// Hands the results of a completed posting out, in the order of staging.
#[derive(Debug)]
pub struct Collector<'a> {
    bufs: std::slice::IterMut<'a, Option<Buf>>,
    words: Option<&'a Buf>,
    word: usize,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(posting: &'a mut Posting) -> Self {
        Self { bufs: posting.bufs.iter_mut(), words: posting.words.as_ref(), word: 0 }
    }

    fn buf(&mut self) -> Buf {
        self.bufs.next().and_then(Option::take).expect("one buffer for each READ and WRITE")
    }

    fn word(&mut self) -> u64 {
        let words = self.words.expect("one word for each atomic");
        let at = self.word * 8;
        self.word += 1;
        u64::from_le_bytes(words[at..at + 8].try_into().expect("8 bytes"))
    }
}

/// A verb, or a tuple of lists.
pub trait List {
    /// Its results.
    type Out;
    /// Bytes of buffers that staging will take from the slab.
    fn room(&self) -> u64 {
        0
    }
    /// How many atomics it holds.
    fn atomics(&self) -> u32 {
        0
    }
    /// Turns it into requests.
    fn stage(&mut self, s: &mut Stager<'_>);
    /// Takes the results.
    fn collect(self, c: &mut Collector<'_>) -> Self::Out;
    /// Executes it on memory of this process.
    ///
    /// # Errors
    /// That of the first verb that fails; those behind it do not execute.
    fn execute(self, d: &mut DirectList<'_>) -> Result<Self::Out>;
}

/// One element of a chain, not a tuple.
pub trait Single: List {}

/// A fabric executes `Self` after `Prev` when both stand in this order in a chain.
#[diagnostic::on_unimplemented(
    message = "a fabric does not order `{Self}` after `{Prev}` in a chain",
    note = "ordered are WRITE->WRITE, WRITE->READ, WRITE->atomic and atomic->READ; fence the second or await the first"
)]
pub trait After<Prev> {}

/// A tuple with neighbours that satisfy [`After`]; order is transitive, so neighbours suffice.
pub trait Ordered: List {}

impl List for Read {
    type Out = Sampled;
    fn room(&self) -> u64 {
        Slab::cost(self.len)
    }
    fn stage(&mut self, s: &mut Stager<'_>) {
        s.unvalidated = self.unvalidated;
        let buf = s.slab.alloc(self.len);
        s.push_buf(Opcode::Read, self.at, buf);
    }
    fn collect(self, c: &mut Collector<'_>) -> Sampled {
        Sampled::new(c.buf())
    }
    fn execute(self, d: &mut DirectList<'_>) -> Result<Sampled> {
        d.read(self.at, self.len).map(Sampled::new)
    }
}

impl List for Beside {
    type Out = (Sampled, Option<Sampled>);
    fn room(&self) -> u64 {
        self.0.room() + self.1.room()
    }
    fn stage(&mut self, s: &mut Stager<'_>) {
        self.0.stage(s);
        self.1.stage(s);
    }
    fn collect(self, c: &mut Collector<'_>) -> Self::Out {
        (self.0.collect(c), self.1.collect(c))
    }
    fn execute(self, d: &mut DirectList<'_>) -> Result<Self::Out> {
        Ok((self.0.execute(d)?, self.1.execute(d)?))
    }
}

impl List for Write {
    type Out = Buf;
    fn stage(&mut self, s: &mut Stager<'_>) {
        let buf = self.buf.take().expect("a list is staged once");
        s.push_buf(Opcode::Write, self.at, buf);
    }
    fn collect(self, c: &mut Collector<'_>) -> Buf {
        c.buf()
    }
    fn execute(self, d: &mut DirectList<'_>) -> Result<Buf> {
        let buf = self.buf.expect("a list is executed once");
        d.write(self.at, &buf).map(|()| buf)
    }
}

impl List for WriteWord {
    type Out = ();
    fn stage(&mut self, s: &mut Stager<'_>) {
        s.push(Opcode::WriteWord, self.at, 8, (self.word, 0), NOWHERE);
    }
    fn collect(self, _c: &mut Collector<'_>) {}
    fn execute(self, d: &mut DirectList<'_>) -> Result<()> {
        d.write_word(self.at, self.word)
    }
}

impl List for Atomic {
    type Out = u64;
    fn room(&self) -> u64 {
        64
    }
    fn atomics(&self) -> u32 {
        1
    }
    fn stage(&mut self, s: &mut Stager<'_>) {
        s.push_atomic(self.op, self.at, self.a, self.b);
    }
    fn collect(self, c: &mut Collector<'_>) -> u64 {
        c.word()
    }
    fn execute(self, d: &mut DirectList<'_>) -> Result<u64> {
        d.atomic(self.op, self.at, self.a, self.b)
    }
}

impl<V: Single> List for Fenced<V> {
    type Out = V::Out;
    fn room(&self) -> u64 {
        self.0.room()
    }
    fn atomics(&self) -> u32 {
        self.0.atomics()
    }
    fn stage(&mut self, s: &mut Stager<'_>) {
        s.fenced = true;
        self.0.stage(s);
        s.fenced = false;
    }
    fn collect(self, c: &mut Collector<'_>) -> V::Out {
        self.0.collect(c)
    }
    fn execute(self, d: &mut DirectList<'_>) -> Result<V::Out> {
        self.0.execute(d)
    }
}

/// A verb that may be left out.
impl<V: Single> List for Option<V> {
    type Out = Option<V::Out>;
    fn room(&self) -> u64 {
        self.as_ref().map_or(0, List::room)
    }
    fn atomics(&self) -> u32 {
        self.as_ref().map_or(0, List::atomics)
    }
    fn stage(&mut self, s: &mut Stager<'_>) {
        self.iter_mut().for_each(|v| v.stage(s));
    }
    fn collect(self, c: &mut Collector<'_>) -> Option<V::Out> {
        self.map(|v| v.collect(c))
    }
    fn execute(self, d: &mut DirectList<'_>) -> Result<Option<V::Out>> {
        self.map(|v| v.execute(d)).transpose()
    }
}

impl<L: Ordered> List for Chain<L> {
    type Out = L::Out;
    fn room(&self) -> u64 {
        self.0.room()
    }
    fn atomics(&self) -> u32 {
        self.0.atomics()
    }
    fn stage(&mut self, s: &mut Stager<'_>) {
        s.in_chain(|s| self.0.stage(s));
    }
    fn collect(self, c: &mut Collector<'_>) -> L::Out {
        self.0.collect(c)
    }
    fn execute(self, d: &mut DirectList<'_>) -> Result<L::Out> {
        d.in_chain(|d| self.0.execute(d))
    }
}

impl Single for Read {}
impl Single for Beside {}
impl Single for Write {}
impl Single for WriteWord {}
impl Single for Atomic {}
impl<V: Single> Single for Fenced<V> {}
impl<V: Single> Single for Option<V> {}

macro_rules! after {
    ($($next:ty: $($prev:ty),+;)+) => {$($(
        impl After<$prev> for $next {}
        impl After<Fenced<$prev>> for $next {}
    )+)+};
}
after! {
    Write: Write, WriteWord;
    WriteWord: Write, WriteWord;
    Read: Write, WriteWord, Atomic;
    Atomic: Write, WriteWord;
}
impl<V: Single, P> After<P> for Fenced<V> {}
impl<P> After<P> for Beside where Read: After<P> {}

/// WRITEs alone may be left out of a chain: what is ordered behind one of them is ordered behind
/// every verb that may stand before it, so neighbours still suffice.
macro_rules! optional {
    ($($write:ty),+) => {$(
        impl<P> After<P> for Option<$write> where $write: After<P> {}
        impl After<Option<$write>> for Write {}
        impl After<Option<$write>> for WriteWord {}
        impl After<Option<$write>> for Read {}
        impl After<Option<$write>> for Atomic {}
    )+};
}
optional!(Write, WriteWord);

impl<V: Single> Ordered for V {}

macro_rules! tuples {
    ($($name:ident.$i:tt),+; $($next:ident after $prev:ident),*) => {
        impl<$($name: List),+> List for ($($name,)+) {
            type Out = ($($name::Out,)+);
            fn room(&self) -> u64 { 0 $(+ self.$i.room())+ }
            fn atomics(&self) -> u32 { 0 $(+ self.$i.atomics())+ }
            fn stage(&mut self, s: &mut Stager<'_>) { $(self.$i.stage(s);)+ }
            fn collect(self, c: &mut Collector<'_>) -> Self::Out { ($(self.$i.collect(c),)+) }
            fn execute(self, d: &mut DirectList<'_>) -> Result<Self::Out> {
                Ok(($(self.$i.execute(d)?,)+))
            }
        }
        impl<$($name: Single),+> Ordered for ($($name,)+) where $($next: After<$prev>),* {}
    };
}
tuples!(A.0, B.1; B after A);
tuples!(A.0, B.1, C.2; B after A, C after B);
tuples!(A.0, B.1, C.2, D.3; B after A, C after B, D after C);
tuples!(A.0, B.1, C.2, D.3, E.4; B after A, C after B, D after C, E after D);
tuples!(A.0, B.1, C.2, D.3, E.4, F.5; B after A, C after B, D after C, E after D, F after E);

/// One element of a [`VerbVec`], before or after it has run.
#[derive(Debug)]
enum Item {
    Read(Read),
    Write(Write),
    WriteWord(WriteWord),
    Atomic(Atomic),
    Sampled(Option<Sampled>),
    Word(u64),
    Done,
}

/// A batch with a length known only at run time: chains of verbs to any nodes, posted together.
/// Inside a chain only the ordered pairs may follow each other; that is checked when it is built.
/// Reusable: running it turns verbs into results, and [`VerbVec::clear`] keeps the memory.
#[derive(Debug, Default)]
pub struct VerbVec {
    items: Vec<(Item, bool)>,
    room: u64,
    atomics: u32,
}

impl VerbVec {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets verbs and results, keeps the memory.
    pub fn clear(&mut self) {
        self.items.clear();
        (self.room, self.atomics) = (0, 0);
    }

    /// How many verbs (or results).
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn push(&mut self, item: Item) -> usize {
        self.items.push((item, false));
        self.items.len() - 1
    }

    /// Adds a READ; the number under which its result is found.
    pub fn read(&mut self, at: GlobalAddr, len: u32) -> usize {
        self.room += Slab::cost(len);
        self.push(Item::Read(read(at, len)))
    }

    /// Adds a WRITE.
    pub fn write(&mut self, at: GlobalAddr, buf: Buf) -> usize {
        self.push(Item::Write(write(at, buf)))
    }

    /// Adds an inline WRITE of one word.
    pub fn write_word(&mut self, at: GlobalAddr, word: u64) -> usize {
        self.push(Item::WriteWord(write_word(at, word)))
    }

    /// Adds a compare-and-swap.
    pub fn cas(&mut self, at: GlobalAddr, old: u64, new: u64) -> usize {
        self.atomics += 1;
        self.push(Item::Atomic(cas(at, old, new)))
    }

    /// The verb added next belongs to the chain of the verb added last.
    ///
    /// # Panics
    /// When nothing was added yet, or when the last verb orders nothing behind it (a READ).
    pub fn then(&mut self) -> &mut Self {
        let (item, chained) = self.items.last_mut().expect("a chain begins with a verb");
        assert!(!matches!(item, Item::Read(_)), "nothing is ordered behind a READ");
        *chained = true;
        self
    }

    /// Takes the bytes that READ number `i` yielded.
    ///
    /// # Panics
    /// When `i` is not a READ that has run, or was taken before.
    pub fn take_sampled(&mut self, i: usize) -> Sampled {
        match &mut self.items[i].0 {
            Item::Sampled(s) => s.take().expect("a result is taken once"),
            other => panic!("verb {i} is no finished READ but {other:?}"),
        }
    }

    /// The previous word that atomic number `i` yielded.
    ///
    /// # Panics
    /// When `i` is not an atomic that has run.
    pub fn word(&self, i: usize) -> u64 {
        match &self.items[i].0 {
            Item::Word(w) => *w,
            other => panic!("verb {i} is no finished atomic but {other:?}"),
        }
    }
}

impl List for VerbVec {
    type Out = Self;

    fn room(&self) -> u64 {
        self.room + if self.atomics > 0 { Slab::cost(self.atomics * 8) } else { 0 }
    }

    fn atomics(&self) -> u32 {
        self.atomics
    }

    fn stage(&mut self, s: &mut Stager<'_>) {
        for (item, chained) in &mut self.items {
            match item {
                Item::Read(verb) => verb.stage(s),
                Item::Write(verb) => verb.stage(s),
                Item::WriteWord(verb) => verb.stage(s),
                Item::Atomic(verb) => verb.stage(s),
                _ => panic!("clear() a batch before it is used again"),
            }
            s.posting.requests.last_mut().expect("just pushed").chained = *chained;
        }
    }

    fn collect(mut self, c: &mut Collector<'_>) -> Self {
        for (item, _) in &mut self.items {
            *item = match std::mem::replace(item, Item::Done) {
                Item::Read(verb) => Item::Sampled(Some(verb.collect(c))),
                Item::Atomic(verb) => Item::Word(verb.collect(c)),
                Item::Write(verb) => {
                    verb.collect(c);
                    Item::Done
                }
                _ => Item::Done,
            };
        }
        self
    }

    fn execute(mut self, d: &mut DirectList<'_>) -> Result<Self> {
        for (item, chained) in &mut self.items {
            // A chain ends with the verb that does not go on.
            let goes_on = std::mem::replace(chained, false);
            d.set_chained(goes_on || d.is_chained());
            *item = match std::mem::replace(item, Item::Done) {
                Item::Read(verb) => Item::Sampled(Some(verb.execute(d)?)),
                Item::Write(verb) => verb.execute(d).map(|_| Item::Done)?,
                Item::WriteWord(verb) => verb.execute(d).map(|()| Item::Done)?,
                Item::Atomic(verb) => Item::Word(verb.execute(d)?),
                _ => panic!("clear() a batch before it is used again"),
            };
            if !goes_on {
                d.set_chained(false);
            }
        }
        Ok(self)
    }
}
