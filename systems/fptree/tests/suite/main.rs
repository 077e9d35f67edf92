//! The tests of the FPTree family in one program, so that it is linked once.

mod concurrent;
mod layout;
mod systems;

dmtree_check::peer_tests! {
    published: crate::systems::peer();
}
