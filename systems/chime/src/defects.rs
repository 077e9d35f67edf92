//! The published defects of CHIME, each by itself, with the others repaired; DESIGN.md section 7
//! has the seeds.

use dmtree_parts::peer::Defect;

pub(crate) fn defects(_system: &str) -> Vec<Defect> {
    Vec::new()
}
