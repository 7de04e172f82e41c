//! What the compiler says to right and wrong uses of the attribute.
//!
//! The texts are those of the stable compiler the project is built with. After a change that is meant,
//! `TRYBUILD=overwrite cargo test --test ui` writes them anew: read the difference.
#![cfg(feature = "macros")]

#[test]
fn wrong_uses_are_refused_with_what_to_write_instead() {
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}

/// In a build that has the backends they are no mistakes.
#[cfg(not(any(feature = "redis", feature = "sqlite", feature = "zk")))]
#[test]
fn a_backend_that_is_not_compiled_in_is_refused_by_the_name_of_its_feature() {
    trybuild::TestCases::new().compile_fail("tests/ui/fail/feature_off/*.rs");
}

#[test]
fn right_uses_compile_without_a_warning() {
    trybuild::TestCases::new().pass("tests/ui/pass/*.rs");
}
