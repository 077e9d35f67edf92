//! The tests of CHIME in one program, so that it is linked once.

mod cache;
mod crash;
mod published;
mod sound;

dmtree_check::peer_tests! {
    of_published: crate::published::peer();
    of_sound: crate::sound::peer();
}
