//! The rare branches, each with a mark, so that a check can say which it has never reached.

dmtree_fabric::marks! {
    /// A rare branch.
    pub enum Mark {
        Reused => "pool: an address begins another generation",
        WornOut => "pool: an address has used up its generations",
    }
}
