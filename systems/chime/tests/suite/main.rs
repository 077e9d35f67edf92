//! The tests of CHIME in one program, so that it is linked once.

mod published;

dmtree_check::peer_tests! {
    of_published: crate::published::peer();
}
