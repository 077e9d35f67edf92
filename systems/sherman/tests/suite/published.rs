//! FG, Sherman as published, and the steps between them.

use dmtree_check::NodeFaultSet;
use dmtree_check::case::Case;
use dmtree_check::peer::prelude::*;
use dmtree_sherman::format::Geometry;
use dmtree_sherman::{Options, Sherman, ShermanNode};

fn systems() -> Vec<(&'static str, Options)> {
    vec![
        ("fg", Options::fg()),
        ("fg-combine", Options::combine()),
        ("fg-on-chip", Options::on_chip()),
        ("fg-hierarchical", Options::hierarchical()),
        ("sherman-published", Options::published()),
    ]
}

pub fn peer() -> Peer<Sherman> {
    let least_cache = |o: &_| ShermanNode::least_cache_bytes(&Geometry::new(o));
    Peer {
        value_bytes: Some(|o| o.value_bytes),
        local: local(),
        // Checksums show every torn page, and every verb is awaited.
        sound: vec![(Setting::new("fg", Options::fg(), NOTHING), 0..12)],
        defects: defects(),
        budgets: vec![budget()],
        ..Peer::new(systems(), least_cache, |o: &Options, below| o.drawn(below))
    }
}

fn local() -> Vec<Row<Sherman>> {
    let mut rows =
        of_one_length(20_000, |o, key_bytes, value_bytes| Options { key_bytes, value_bytes, ..o });
    rows.extend([
        model("ascending keys in high trees", Keys::Ascending, 2_000, 8_000)
            .seed(10)
            .options(|o| Options { key_bytes: 8, inner_slots: 4, leaf_slots: 4, ..o }),
        model("pages of 1 KiB", Keys::Hashed24, 3_000, 15_000)
            .seed(20)
            .options(|o: Options| Options { key_bytes: 24, ..o.in_pages_of_1k() }),
        three_memory_nodes(2_000, 8_000).options(|o| Options { locks: 1, ..o }),
        model("a cache of three pages", Keys::Hashed24, 2_000, 8_000)
            .seed(50)
            .options(|o| Options { inner_slots: 8, leaf_slots: 8, ..o })
            .cache(0, 3),
        load(Keys::Hashed24, 5_000).options(|o| Options { inner_slots: 8, ..o }),
        random_fill(300_000).on("fg, sherman-published"),
        full(10_000, |_| true).options(|o| Options { locks: 1024, ..o }),
    ]);
    rows.extend(chips(1_000, 4_000));
    rows
}

/// The figures of DESIGN.md section 4, at the geometry of the DMTree artifact.
fn budget() -> Budget<Sherman> {
    const WRITES: &str = "update, insert, compare-and-set, delete";
    let mut systems = systems();
    systems.push(("eager", Options { lazy_splits: false, ..Options::published() }));
    let leaf = cost(1, [1, 0, 0, 1166, 0]);
    let rows = vec![
        row("*", "get, get absent", leaf),
        row("fg", WRITES, cost(4, [1, 1, 2, 1166, 1166])),
        row("fg-combine, fg-on-chip, fg-hierarchical", WRITES, cost(3, [1, 2, 1, 1166, 1166 + 8])),
        row("sherman-published", WRITES, cost(3, [1, 2, 1, 1166, 34 + 8])),
        // 100 pairs, in leaves of 22.
        row("*", "scan of 100", cost(5, [5, 0, 0, 5 * 1166, 0])).again(leaf, Some(0.4)),
        // Lock, READ, WRITE sibling, [WRITE left, unlock], root word, three levels, lock, READ,
        // [WRITE, unlock].
        row("eager", "insert split", cost(11, [6, 5, 2, 5792, 3468])).share(0.9),
    ];
    Budget::new(systems, rows)
}

/// Each defect by itself, with the others repaired; DESIGN.md section 7 has the seeds.
fn defects() -> Vec<Defect<Options>> {
    const SHERMAN: &str = "sherman-published";
    const ANY: &[&str] = &["history", "failed", "structure", "torn", "hung"];
    let published = Options::published();
    let eager = Options { lazy_splits: false, ..published.clone() };
    let retry = Options { retry_torn: true, ..eager.clone() };
    let around = Options { versions_around: true, ..retry.clone() };
    let locked = Options { locked_reads: true, ..eager.clone() };
    let hierarchical = Options::hierarchical();
    let lazy = Options { lazy_splits: true, ..hierarchical.clone() };
    let bits = |version_bits| Options { version_bits, ..around.clone() };
    let of = |name, system, grants, (broken, seed): (&Options, _), repaired: &Options| {
        let setting = Setting::new(system, broken.clone(), grants);
        Defect::new(name, setting, seed, Repair::Options(repaired.clone())).found(ANY)
    };
    let wraps = |broken, seeds: std::ops::Range<u64>| {
        let defect = of("versions wrap", SHERMAN, KIND, (broken, 0), &bits(7));
        let setting = defect.setting.clone().clients(one_key);
        Defect { setting, ..defect }.found(&["torn"]).seeds(seeds.clone(), seeds)
    };
    let crashes = Setting::new("fg", Options::fg(), NOTHING).faults(NodeFaultSet::Crash);
    let mut all = vec![
        of("two-level versions", SHERMAN, READONLY, (&published, 0), &locked).seeds(0..40, 0..20),
        of("an entry between two versions", SHERMAN, KIND, (&eager, 11), &retry),
        of("equal versions at both ends", SHERMAN, KIND, (&retry, 96), &around),
        of("splits reported early", "fg-hierarchical", KIND, (&lazy, 269), &hierarchical),
        wraps(&bits(1), 0..50),
        wraps(&bits(4), 20..30),
        Defect::new("an abandoned lock", crashes, 20, Repair::Nothing).found(ANY),
    ];
    // A failing compare-and-swap that writes back undoes a release that is a WRITE.
    let on_chip = Capabilities { on_chip_bytes: 1024, ..READONLY };
    all.extend(systems().into_iter().skip(1).take(3).map(|(system, o)| {
        let setting = Setting::new(system, o, NOTHING);
        let defect = Defect::new("a release is a WRITE", setting, 0, Repair::Grants(on_chip));
        defect.found(&["failed"]).seeds(0..12, 0..8)
    }));
    all
}

/// Nine clients on one key with a value that spans lines.
fn one_key(case: Case) -> Case {
    let mut case = Case { value_bytes: vec![64], ..crowd(case, 9, 1, 150) };
    case.options["value_bytes"] = 64.into();
    case.pool.memory_nodes = 1;
    case
}
