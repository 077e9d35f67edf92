//! Locks in tables of the memory nodes, on chip where the fabric has any, in front of them the local locks of a compute node: of inner
//! nodes as ART has them, and of leaves before the lock moves into them. Released by compare-and-swap.
//!
//! What shares a word shares the lock; nobody holds two.

use dmtree_fabric::verb::{cas, write};
use dmtree_fabric::{Buf, Error, GlobalAddr, Result, Stage, Step};
use dmtree_parts::handover::LocalTurn;
use dmtree_parts::hash::check64;
use dmtree_parts::lock_words::LockWord;

use crate::client::Smart;
use crate::node::Locks;

const SEED: u64 = 0x6c_6f_63_6b;

/// So many attempts at a lock follow each other without a pause.
pub(crate) const SPINS: u32 = 64;
/// Pauses after that, ns: a few round trips.
pub(crate) const LONG_PAUSE_NS: u64 = 8_000;

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct Held {
    word: GlobalAddr,
    turn: LocalTurn,
}

impl Smart {
    /// The locks; where they are is asked for once.
    pub(crate) async fn locks(&self) -> Result<&Locks> {
        if let Some(locks) = self.node.locks.get() {
            return Ok(locks);
        }
        let words = self.node.lock_tables().find(&self.ep, &self.node.pool, self.node.root).await?;
        Ok(self.node.locks.get_or_init(|| Locks::new(words)))
    }

    /// Takes the lock of a node or leaf.
    pub(crate) async fn lock(&self, of: GlobalAddr) -> Result<Held> {
        let locks = self.locks().await?;
        let hash = check64(&of.bits().to_le_bytes(), SEED);
        let LockWord { at: word, number } = locks.words.by_hash(of, hash)?;
        let turn = match locks.local.try_turn(number) {
            Some(turn) => turn,
            None => {
                let turn = locks.local.turn(&self.ep, number).await?;
                self.ep.stage_cost(Stage::PolledLine, turn.threads_waiting() as u32);
                turn
            }
        };
        self.ep.stage_cost(Stage::LocalQueue, 1);
        self.ep.point().await;
        if turn.is_handed {
            return Ok(Held { word, turn });
        }
        // As published nobody pauses between two attempts; here only who has made very many does.
        let mut at_once = self.ep.backoff_within("remote lock", word, 0);
        let mut paused = self.ep.backoff_within("remote lock", word, LONG_PAUSE_NS);
        self.ep.step(Step::Lock);
        while self.ep.cas(word, 0, self.tag).await? != 0 {
            self.retried.set(true);
            match at_once.steps() < SPINS {
                true => at_once.step().await?,
                false => paused.step().await?,
            }
            self.ep.step(Step::Lock);
        }
        turn.set_tag(self.tag);
        Ok(Held { word, turn })
    }

    /// Releases a lock, or hands it over.
    pub(crate) async fn unlock(&self, held: Held) -> Result<()> {
        let Held { word, turn } = held;
        let turn = match turn.may_hand_over() {
            true => match turn.hand_over() {
                None => return Ok(()),
                Some(back) => back,
            },
            false => turn,
        };
        self.release(word, turn).await
    }

    /// Sets a lock word free. It holds the tag of whoever of this compute node took it.
    async fn release(&self, word: GlobalAddr, turn: LocalTurn) -> Result<()> {
        self.ep.step(Step::Lock);
        let was = self.ep.cas(word, turn.tag(), 0).await?;
        check_held(word, was, &turn)?;
        turn.leave();
        Ok(())
    }

    /// WRITEs a leaf, and releases its lock in the same chain or hands it over.
    pub(crate) async fn write_and_unlock(
        &self,
        held: Held,
        at: GlobalAddr,
        image: Buf,
    ) -> Result<()> {
        let Held { word, turn } = held;
        self.ep.step(Step::Entry);
        if turn.may_hand_over() {
            self.ep.write(at, image).await?;
            return match turn.hand_over() {
                None => Ok(()),
                Some(turn) => self.release(word, turn).await,
            };
        }
        let (_, was) = self.ep.chain((write(at, image), cas(word, turn.tag(), 0))).await?;
        check_held(word, was, &turn)?;
        turn.leave();
        Ok(())
    }
}

fn check_held(word: GlobalAddr, was: u64, turn: &LocalTurn) -> Result<()> {
    if was == turn.tag() {
        return Ok(());
    }
    Err(Error::corrupt(format!("lock {word} held {was:#x} instead of {:#x}", turn.tag())))
}
