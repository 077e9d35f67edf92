//! A small cluster in virtual time, one node of which dies at a chosen verb, and what the others see.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Bound;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use dmtree_check::bed::Bed;
use dmtree_engine::{Defect, DmTree, Options};
use dmtree_fabric::sim::{CrashPoint, Hazards, How, Place, SimFabric};
use dmtree_fabric::{
    Capabilities, Core, Endpoint, Error, ErrorKind, Fabric, NodeId, Policy, SeededRandom, Standing,
    Terms, Worker,
};
use dmtree_parts::{Fill, Outcome, Page, RangeIndex, ScanRequest, Work, Write};
use dmtree_pool::PoolOptions;

pub const TERMS: Terms =
    Terms { lease_ns: 8_000_000, acknowledge_ns: 60_000_000, drift_one_in: 16 };
pub const PAUSE_NS: u64 = 400_000;
/// No read takes longer, whoever dies, ns.
pub const READ_BOUND_NS: u64 = 60_000_000;
/// No write does, ns.
pub const WRITE_BOUND_NS: u64 = 300_000_000;

/// What a client does.
#[derive(Clone, Debug)]
pub enum Op {
    Put(u64, Vec<u8>),
    Insert(u64, Vec<u8>),
    Update(u64, Vec<u8>),
    Delete(u64),
    Set(u64, Vec<u8>, Option<Vec<u8>>),
    Maintain,
    Sweep,
    Census,
    /// What nobody can hold any more is free; the caller does it.
    Reclaim,
    /// The tables of the client's node go to others; the caller does it.
    HandOver,
    Load(Vec<u64>),
    Many(Vec<(u64, Vec<u8>)>),
}

pub fn key(n: u64) -> Vec<u8> {
    format!("k{n:06}").into_bytes()
}

pub fn value(n: u64) -> Vec<u8> {
    format!("v{n:05}").into_bytes()
}

/// What a run begins with, and what the victim does.
#[derive(Clone, Debug)]
pub struct Play {
    pub name: &'static str,
    pub options: Options,
    /// Bytes of cache per compute node.
    pub cache_bytes: u64,
    /// Loaded first, with leaves as full as this.
    pub load: (Vec<u64>, f64),
    /// Done by the victim before time begins.
    pub before: Vec<Op>,
    /// Done by the victim in time.
    pub ops: Vec<Op>,
    pub compute_nodes: u16,
    /// What is wrong on purpose.
    pub defect: Option<Defect>,
    /// Survivors sweep in the end. Else what they meet is all that they repair.
    pub swept: bool,
}

impl Play {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            options: Options {
                fanout: 8,
                key_inline_bytes: 8,
                adaptive_capacity: false,
                ..Options::default()
            },
            cache_bytes: 1 << 20,
            load: (Vec::new(), 1.0),
            before: Vec::new(),
            ops: Vec::new(),
            compute_nodes: 3,
            defect: None,
            swept: true,
        }
    }
}

/// Who dies where.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub victim: u16,
    pub verb: u64,
    pub place: Place,
    pub how: How,
    pub whole_write: bool,
    pub seed: u64,
    /// A survivor dies, too: at this verb after the first death.
    pub second: Option<(u64, Place)>,
}

pub type Values = BTreeMap<u64, Vec<u8>>;

/// What is known of the keys: what was acknowledged, and what the operation in flight may have done.
#[derive(Default)]
struct Model {
    sure: Values,
    /// Keys of the operation in flight, with their new values.
    open: BTreeMap<u64, Option<Vec<u8>>>,
    /// A key of it has been seen new.
    turned: BTreeMap<u64, bool>,
}

impl Model {
    fn begin(&mut self, op: &Op) {
        self.open.clear();
        self.turned.clear();
        match op {
            Op::Put(k, v) | Op::Insert(k, v) | Op::Update(k, v) => {
                self.open.insert(*k, Some(v.clone()));
            }
            Op::Set(k, _, v) => _ = self.open.insert(*k, v.clone()),
            Op::Delete(k) => _ = self.open.insert(*k, None),
            Op::Maintain | Op::Sweep | Op::Census | Op::Reclaim | Op::HandOver => {}
            Op::Load(keys) => {
                self.open.extend(keys.iter().map(|k| (*k, Some(value(*k)))));
            }
            Op::Many(pairs) => {
                self.open.extend(pairs.iter().map(|(k, v)| (*k, Some(v.clone()))));
            }
        }
    }

    fn acknowledge(&mut self) {
        for (k, v) in std::mem::take(&mut self.open) {
            match v {
                Some(v) => _ = self.sure.insert(k, v),
                None => _ = self.sure.remove(&k),
            }
        }
    }

    /// Checks what somebody read, whose read began when `before` was turned.
    fn check(
        &mut self,
        k: u64,
        seen: Option<&[u8]>,
        was: (Option<Vec<u8>>, bool),
    ) -> Result<(), String> {
        let sure = self.sure.get(&k).map(Vec::as_slice);
        let open = self.open.get(&k);
        let (old, turned) = was;
        if let Some(new) = open
            && seen == new.as_deref()
            && seen != sure
        {
            self.turned.insert(k, true);
            return Ok(());
        }
        if turned && open.is_some() {
            return Err(format!("key {k} was new and is {seen:?} again"));
        }
        // Acknowledged while the read was under way: either.
        if seen == sure || seen == old.as_deref() {
            return Ok(());
        }
        Err(format!("key {k} is {seen:?}, not {sure:?} (or {open:?})"))
    }

    fn state_of(&self, k: u64) -> (Option<Vec<u8>>, bool) {
        (self.sure.get(&k).cloned(), self.turned.get(&k).copied().unwrap_or(false))
    }
}

/// What a run showed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    /// The victim died in the middle of its operations.
    pub died: bool,
    /// The second one, too.
    pub second_died: bool,
    /// Longest read and write of the others, ns.
    pub longest_read_ns: u64,
    pub longest_write_ns: u64,
}

type Task = (u32, Box<dyn Fn() -> bool>, Pin<Box<dyn Future<Output = ()>>>);

pub struct Scene {
    pub bed: Bed<DmTree>,
    pub fabric: SimFabric,
    core: Rc<Core>,
    own: u32,
    over: Rc<Cell<bool>>,
    tasks: RefCell<Vec<Task>>,
    trouble: Rc<RefCell<Option<String>>>,
}

impl Scene {
    pub fn new(play: &Play, whole_write: bool, seed: u64) -> Self {
        let pool = PoolOptions {
            memory_nodes: 2,
            compute_nodes: play.compute_nodes,
            memory_bytes_per_node: 3 << 20,
            compute_bytes_per_node: 256 << 10,
            chunk_bytes: Some(64 << 10),
            ..PoolOptions::default()
        };
        let hazards = Hazards {
            words: true,
            stretch_ns: 2_000,
            delay_ns: 500,
            atomic_gap_ns: 1_000,
            garbage: true,
            ..Hazards::NONE
        };
        let grants = match whole_write {
            true => Capabilities { whole_write_bytes: 4096, ..Capabilities::NONE },
            false => Capabilities::NONE,
        };
        let made = Bed::adversarial(hazards, grants, seed, &pool, play.cache_bytes, &play.options);
        let (bed, fabric): (Bed<DmTree>, SimFabric) = made.expect("a cluster");
        bed.cluster.judge().expect("in this process").set_terms(TERMS);
        let defects: Vec<Defect> = play.defect.into_iter().collect();
        bed.nodes.iter().for_each(|n| n.set_defects(&defects));
        let core = Core::new(fabric.attach(NodeId::memory(0)).expect("a member"), 16 << 20);
        let own = core.add_slot();
        let (over, tasks, trouble) = Default::default();
        Self { bed, fabric, core, own, over, tasks, trouble }
    }

    pub fn endpoint(&self, cn: u16, slot: u32) -> Endpoint {
        let t = self.fabric.attach(NodeId::compute(cn)).expect("a member");
        Endpoint::new(self.core.clone(), t, slot)
    }

    /// A client for the test itself.
    pub fn client(&self, cn: u16) -> DmTree {
        self.client_at(cn, self.own)
    }

    fn client_at(&self, cn: u16, slot: u32) -> DmTree {
        DmTree::new(self.endpoint(cn, slot), self.bed.nodes[usize::from(cn)].clone())
    }

    /// A slot for one more task.
    pub fn add_slot(&self) -> u32 {
        self.core.add_slot()
    }

    /// Lets a task look again: its node is back.
    pub fn wake(&self, slot: u32) {
        self.core.wake(slot);
    }

    /// Does this while the node is up.
    pub fn spawn(&self, cn: u16, slot: u32, f: impl Future<Output = ()> + 'static) {
        let (fabric, node) = (self.fabric.clone(), NodeId::compute(cn));
        let lives = move || !fabric.is_down(node);
        self.tasks.borrow_mut().push((slot, Box::new(lives), Box::pin(f)));
    }

    /// A client that works until it dies, or the run is over.
    pub fn worker<F: Future<Output = ()> + 'static>(&self, cn: u16, f: impl FnOnce(DmTree) -> F) {
        let slot = self.core.add_slot();
        let client = self.client_at(cn, slot);
        self.spawn(cn, slot, f(client));
    }

    pub fn keepers(&self) {
        self.keepers_at(|_| PAUSE_NS);
    }

    /// Keepers with pauses of their own, ns: who looks more often is more often the first.
    pub fn keepers_at(&self, pause_ns: impl Fn(u16) -> u64) {
        for cn in 0..self.bed.cluster.compute_nodes() as u16 {
            let pause_ns = pause_ns(cn);
            let slot = self.core.add_slot();
            let (node, ep) = (self.pool(cn), self.endpoint(cn, slot));
            ep.set_timeout(5_000_000);
            self.spawn(cn, slot, async move {
                let _ = node.keep_on(&ep, pause_ns, || false).await;
            });
        }
    }

    pub fn pool(&self, cn: u16) -> std::sync::Arc<dmtree_pool::PoolNode> {
        self.bed.cluster.compute_node(usize::from(cn)).expect("exists")
    }

    pub fn complain(&self) -> impl Fn(String) + use<> {
        let trouble = self.trouble.clone();
        move |what| _ = trouble.borrow_mut().get_or_insert(what)
    }

    /// Runs everything until `main` has ended.
    pub fn run(&self, policy: &mut dyn Policy, main: impl Future<Output = ()>) {
        self.fabric.set_timed(true);
        let slots = Rc::new(RefCell::new(Vec::new()));
        let mut worker = Worker::new(self.core.clone());
        for (slot, lives, mut task) in self.tasks.take() {
            let over = self.over.clone();
            slots.borrow_mut().push(slot);
            let end = std::future::poll_fn(move |cx| match over.get() {
                true => Poll::Ready(()),
                // Nothing of a dead node runs.
                false if !lives() => Poll::Pending,
                false => task.as_mut().poll(cx),
            });
            worker.spawn(slot, end);
        }
        let to_wake = slots.clone();
        worker.spawn(self.own, async move {
            main.await;
            self.over.set(true);
            to_wake.borrow().iter().for_each(|s| self.core.wake(*s));
        });
        if let Err(stalled) = worker.run(policy) {
            self.complain()(format!("stalled: {stalled}"));
        }
        drop(worker);
        self.fabric.set_timed(false);
    }

    /// Runs a future of the test itself while time stands still.
    pub fn now<T>(&self, f: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.core.block_on(self.own, f)
    }

    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Waits until nothing of the dead is left to be done, as this node knows it.
    pub async fn settled(&self, ep: &Endpoint, cn: u16, dead: &[u16]) {
        let began = ep.now();
        loop {
            let node = self.pool(cn);
            let gone = |n: &u16| node.standing(NodeId::compute(*n), 1) == Some(Standing::Gone);
            if node.is_settled() && dead.iter().all(gone) {
                return;
            }
            if ep.now() > began + 3_000_000_000 {
                self.complain()(format!("not settled: {:?}", self.bed.cluster.judge()));
                return;
            }
            ep.sleep(PAUSE_NS).await;
        }
    }
}

pub async fn perform(c: &mut DmTree, op: &Op) -> Result<(), Error> {
    let outcome = match op {
        Op::Put(k, v) => c.write(&key(*k), Write::Put(v)).await?,
        Op::Insert(k, v) => c.write(&key(*k), Write::Insert(v)).await?,
        Op::Update(k, v) => c.write(&key(*k), Write::Update(v)).await?,
        Op::Delete(k) => c.write(&key(*k), Write::Delete).await?,
        Op::Set(k, old, new) => {
            let w = Write::CompareAndSet { expected: old, new: new.as_deref() };
            c.write(&key(*k), w).await?
        }
        Op::Maintain => {
            while c.maintain().await? == Work::Some {}
            Outcome::Done
        }
        Op::Sweep => {
            c.sweep().await?;
            Outcome::Done
        }
        Op::Census => match c.census().await? {
            // What changes hands meanwhile may be seen in two.
            found if (found.objects, found.space_bytes, found.cells) == (0, 0, 0) => Outcome::Done,
            found => return Err(Error::corrupt(format!("a census has found {found:?}"))),
        },
        Op::Reclaim | Op::HandOver => Outcome::Done,
        Op::Load(keys) => {
            let mut pairs = keys.iter().map(|k| (key(*k), value(*k)));
            c.load(&mut pairs, true, Fill::Even(0.7)).await?;
            Outcome::Done
        }
        Op::Many(pairs) => {
            let keys: Vec<_> = pairs.iter().map(|(k, _)| key(*k)).collect();
            let writes: Vec<_> =
                keys.iter().zip(pairs).map(|(k, (_, v))| (&k[..], Write::Put(&v[..]))).collect();
            let mut outcomes = Vec::new();
            c.write_many(&writes, &mut outcomes).await?;
            for o in outcomes {
                assert_eq!(o?, Outcome::Done);
            }
            Outcome::Done
        }
    };
    match outcome {
        Outcome::Done => Ok(()),
        other => Err(Error::corrupt(format!("{op:?} was answered {other:?}"))),
    }
}

pub async fn get(c: &mut DmTree, k: u64) -> Result<Option<Vec<u8>>, Error> {
    let mut out = Vec::new();
    Ok(c.get(&key(k), &mut out).await?.then_some(out))
}

pub async fn scan(c: &mut DmTree) -> Result<Values, Error> {
    let mut out = Values::new();
    let mut low = Bound::Unbounded;
    let mut page = Page::new();
    loop {
        let r = ScanRequest {
            low: low.as_ref().map(Vec::as_slice),
            high: Bound::Unbounded,
            reverse: false,
            limit: 500,
        };
        let resume = c.scan(&r, &mut page).await?;
        for (k, v) in page.iter() {
            let n = std::str::from_utf8(&k[1..]).ok().and_then(|n| n.parse().ok());
            let n = n.ok_or_else(|| Error::corrupt(format!("a key nobody wrote: {k:?}")))?;
            if out.insert(n, v.to_vec()).is_some() {
                return Err(Error::corrupt(format!("key {n} twice")));
            }
        }
        match resume {
            None => return Ok(out),
            Some(next) => low = next.0,
        }
    }
}

/// What nobody holds is found at once, and every piece of memory has one holder then.
pub fn one_holder(scene: &Scene, c: &mut DmTree) -> Result<(), String> {
    let fail = |e: Error| format!("a census: {e}");
    let found = scene.now(c.census()).map_err(fail)?;
    let again = scene.now(c.census()).map_err(fail)?;
    match found.doubly == 0 && again.is_nothing() {
        true => Ok(()),
        false => Err(format!("lost or doubly owned memory: {found:?}, then {again:?}")),
    }
}

/// One run of a play: what went wrong, if anything did.
pub fn run(play: &Play, cut: Cut) -> Result<Shown, String> {
    let scene = Scene::new(play, cut.whole_write, cut.seed);
    let victim = cut.victim;
    let others: Vec<u16> = (0..play.compute_nodes).filter(|n| *n != victim).collect();
    let model = Rc::new(RefCell::new(Model::default()));
    let fail = |e: Error| format!("before: {e}");
    let mut first = scene.client(victim);
    for op in [Op::Load(play.load.0.clone())].iter().chain(&play.before) {
        model.borrow_mut().begin(op);
        let mut pairs = play.load.0.iter().map(|k| (key(*k), value(*k)));
        match op {
            Op::Load(keys) if keys.is_empty() => {}
            Op::Load(_) => {
                let load = first.load(&mut pairs, true, Fill::Even(play.load.1));
                scene.now(load).map_err(fail)?;
            }
            op => scene.now(perform(&mut first, op)).map_err(fail)?,
        }
        model.borrow_mut().acknowledge();
    }
    drop(first);
    let mut keys: Vec<u64> = model.borrow().sure.keys().copied().collect();
    for op in &play.ops {
        model.borrow_mut().begin(op);
        keys.extend(model.borrow().open.keys());
        model.borrow_mut().open.clear();
    }
    keys.sort_unstable();
    keys.dedup();
    scene.keepers();
    let shown = Rc::new(RefCell::new(Shown::default()));
    let done = Rc::new(Cell::new(false));
    // The victim.
    let (m, ops, d, fabric) = (model.clone(), play.ops.clone(), done.clone(), scene.fabric.clone());
    let complain = scene.complain();
    scene.worker(victim, |mut c| async move {
        let ep = c.endpoint().clone();
        ep.sleep(1_500_000).await;
        let point = CrashPoint { verb: cut.verb, place: cut.place };
        fabric.crash_at(NodeId::compute(victim), point, cut.how).expect("known");
        for op in &ops {
            m.borrow_mut().begin(op);
            if let Err(e) = perform(&mut c, op).await {
                complain(format!("the victim's {op:?}: {e}"));
                return;
            }
            m.borrow_mut().acknowledge();
        }
        fabric
            .crash_at(
                NodeId::compute(victim),
                CrashPoint { verb: u64::MAX / 2, place: Place::Before },
                cut.how,
            )
            .expect("known");
        d.set(true);
    });
    // Somebody reads all the time.
    let (m, all, s) = (model.clone(), keys.clone(), shown.clone());
    let complain = scene.complain();
    let (stop, stopped) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (to_stop, has_stopped) = (stop.clone(), stopped.clone());
    scene.worker(others[0], |mut c| async move {
        let ep = c.endpoint().clone();
        for round in 0.. {
            if to_stop.get() {
                has_stopped.set(true);
                return;
            }
            for (i, k) in all.iter().enumerate() {
                if (i + round) % 5 != 0 {
                    continue;
                }
                let was = m.borrow().state_of(*k);
                let began = ep.now();
                match get(&mut c, *k).await {
                    Ok(v) => {
                        if let Err(e) = m.borrow_mut().check(*k, v.as_deref(), was) {
                            complain(format!("a reader meanwhile: {e}"));
                            return;
                        }
                    }
                    Err(e) => complain(format!("get meanwhile: {e}")),
                }
                let took = ep.now() - began;
                let mut s = s.borrow_mut();
                s.longest_read_ns = s.longest_read_ns.max(took);
                if took > READ_BOUND_NS {
                    complain(format!("a get took {} us", took / 1000));
                }
            }
            let began = ep.now();
            if let Err(e) = scan(&mut c).await {
                complain(format!("scan meanwhile: {e}"));
            }
            let took = ep.now() - began;
            let longest = s.borrow().longest_read_ns.max(took);
            s.borrow_mut().longest_read_ns = longest;
            if took > READ_BOUND_NS {
                complain(format!("a scan took {} us", took / 1000));
            }
            ep.sleep(50_000).await;
        }
    });
    // A second survivor repairs what it meets, and may die doing so.
    if cut.second.is_some() {
        let (all, fabric) = (keys.clone(), scene.fabric.clone());
        let complain = scene.complain();
        scene.worker(*others.last().expect("three at least"), |mut c| async move {
            let ep = c.endpoint().clone();
            while !fabric.is_down(NodeId::compute(victim)) {
                ep.sleep(10_000).await;
            }
            for k in &all {
                let again = async {
                    match get(&mut c, *k).await? {
                        Some(v) => match c.write(&key(*k), Write::Update(&v)).await? {
                            Outcome::Done | Outcome::NotFound => Ok(()),
                            other => Err(Error::corrupt(format!("{other:?}"))),
                        },
                        None => Ok(()),
                    }
                };
                if let Err(e) = again.await {
                    complain(format!("the second survivor at {k}: {e}"));
                }
            }
            if let Err(e) = c.sweep().await {
                complain(format!("the second survivor's sweep: {e}"));
            }
            fabric
                .crash_at(
                    ep.node(),
                    CrashPoint { verb: u64::MAX / 2, place: Place::Before },
                    How::Machine,
                )
                .expect("known");
        });
    }
    let alive = Rc::new(Cell::new(others[0]));
    let last = *others.last().expect("three at least");
    let mut policy = SeededRandom::new(cut.seed);
    scene.run(&mut policy, async {
        let mut c = scene.client(others[0]);
        let ep = c.endpoint().clone();
        while !done.get()
            && !scene.fabric.is_down(NodeId::compute(victim))
            && scene.trouble().is_none()
        {
            ep.sleep(20_000).await;
            if ep.now() > 5_000_000_000 {
                scene.complain()("the victim neither ends nor dies".into());
            }
        }
        if done.get() {
            return;
        }
        shown.borrow_mut().died = true;
        let mut dead = vec![victim];
        if let Some((verb, place)) = cut.second {
            let who = NodeId::compute(last);
            scene.fabric.crash_at(who, CrashPoint { verb, place }, How::Machine).expect("known");
        }
        // Writers on both survivors meet what is left, at once: they wait, take over, go on.
        let mut written = 0;
        if last != others[0] && cut.second.is_some() {
            // The second victim works on its own task; see `helper`.
            while !scene.fabric.is_down(NodeId::compute(last)) && written < 400 {
                ep.sleep(200_000).await;
                written += 1;
            }
            if scene.fabric.is_down(NodeId::compute(last)) {
                shown.borrow_mut().second_died = true;
                dead.push(last);
            }
        }
        for k in &keys {
            let was = model.borrow().state_of(*k);
            let began = ep.now();
            let seen = match get(&mut c, *k).await {
                Ok(v) => v,
                Err(e) => return scene.complain()(format!("get of {k} after: {e}")),
            };
            if let Err(e) = model.borrow_mut().check(*k, seen.as_deref(), was) {
                return scene.complain()(format!("after: {e}"));
            }
            // What is read is written again, so that every leaf is locked; its value stays.
            let op = match &seen {
                Some(v) => Op::Update(*k, v.clone()),
                None => continue,
            };
            let middle = ep.now();
            if let Err(e) = perform(&mut c, &op).await {
                // Nothing may have been there: the operation in flight was a delete that took effect meanwhile.
                if !(e.to_string().contains("NotFound")
                    && model.borrow().open.get(k) == Some(&None))
                {
                    return scene.complain()(format!("{op:?} after: {e}"));
                }
            }
            let mut s = shown.borrow_mut();
            s.longest_read_ns = s.longest_read_ns.max(middle - began);
            s.longest_write_ns = s.longest_write_ns.max(ep.now() - middle);
            if ep.now() - middle > WRITE_BOUND_NS {
                scene.complain()(format!("a write took {} us", (ep.now() - middle) / 1000));
            }
        }
        scene.settled(&ep, others[0], &dead).await;
        for _ in 0..if play.swept { 3 } else { 0 } {
            if let Err(e) = c.sweep().await {
                return scene.complain()(format!("sweep: {e}"));
            }
            if let Err(e) = perform(&mut c, &Op::Maintain).await {
                return scene.complain()(format!("maintenance: {e}"));
            }
        }
        for k in &keys {
            let was = model.borrow().state_of(*k);
            match get(&mut c, *k).await {
                Ok(v) => {
                    if let Err(e) = model.borrow_mut().check(*k, v.as_deref(), was) {
                        return scene.complain()(format!("in the end: {e}"));
                    }
                }
                Err(e) => return scene.complain()(format!("get of {k} in the end: {e}")),
            }
        }
        let n = keys.last().copied().unwrap_or(0);
        for k in [n + 1, n + 2] {
            if let Err(e) = perform(&mut c, &Op::Insert(k, value(k))).await {
                return scene.complain()(format!("insert of {k} in the end: {e}"));
            }
        }
        alive.set(others[0]);
        // Nobody is stopped in the middle of a repair.
        stop.set(true);
        while !stopped.get() && scene.trouble().is_none() {
            ep.sleep(10_000).await;
        }
        if let Err(e) = ep.drain().await {
            // An unlock at a home that was dying: moot.
            assert!(e.kind() == ErrorKind::Unreachable, "{e}");
        }
        ep.sleep(100_000).await;
    });
    if let Some(what) = scene.trouble() {
        return Err(what);
    }
    let shown = *shown.borrow();
    if shown.died {
        let mut c = scene.client(alive.get());
        if play.swept {
            scene.now(perform(&mut c, &Op::Maintain)).map_err(|e| format!("maintenance: {e}"))?;
        }
        let walked = scene.now(c.walk());
        // Nobody may have needed an inner node that the dead had locked.
        if !play.swept && walked.as_ref().is_err_and(|e| e.to_string().contains("inner lock")) {
            return Ok(shown);
        }
        let shape = walked.map_err(|e| format!("walk: {e}"))?;
        let found = scene.now(scan(&mut c)).map_err(|e| format!("a last scan: {e}"))?;
        if found.len() as u64 != shape.keys {
            return Err(format!("{} keys in a scan, {} in the walk", found.len(), shape.keys));
        }
        one_holder(&scene, &mut c)?;
    }
    Ok(shown)
}
