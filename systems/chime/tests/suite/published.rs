//! CHIME as published, and the steps to it.

use dmtree_check::peer::prelude::*;
use dmtree_chime::{Options, Vacancy};
use dmtree_parts::AnyOptions;

pub fn peer() -> Peer {
    let mut peer = Peer::of(dmtree_chime::systems());
    let presets = peer.presets();
    let repaired =
        |(name, o): &(&'static str, AnyOptions)| (*name, o.changed(|o: Options| o.repaired()));
    peer.systems.extend(presets.iter().map(repaired));
    Peer { local: local(), ..peer }
}

fn local() -> Vec<Row> {
    let mut rows =
        of_one_length(20_000, |o, key_bytes, value_bytes| Options { key_bytes, value_bytes, ..o });
    rows.extend([
        model("ascending keys in high trees", Keys::Ascending, 2_000, 8_000)
            .seed(10)
            .options(|o| Options { key_bytes: 8, inner_span: 4, span: 16, ..o }),
        model("the original layout", Keys::Ascending, 3_000, 15_000)
            .seed(20)
            .options(|o: Options| o.original()),
        three_memory_nodes(2_000, 8_000),
        model("a vacancy bit for several slots", Keys::Hashed24, 3_000, 10_000)
            .seed(40)
            .options(|o| Options { span: 100, inner_span: 16, neighbourhood: 16, ..o }),
        model("a cache of three nodes", Keys::Hashed24, 2_000, 8_000)
            .seed(50)
            .options(|o| Options { inner_span: 8, span: 16, ..o })
            .cache(0, 3),
        load(Keys::Hashed24, 5_000).options(|o| Options { inner_span: 8, ..o }),
        full(5_000, |_: &Options| true),
    ]);
    rows
}
