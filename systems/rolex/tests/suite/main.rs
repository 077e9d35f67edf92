//! The tests of ROLEX in one program, so that it is linked once.

mod crash;
mod input;
mod late;
mod published;
mod sound;

dmtree_check::peer_tests! {
    of_sound: crate::sound::peer();
    of_published: crate::published::peer();
}
