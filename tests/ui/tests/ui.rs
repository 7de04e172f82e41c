//! What the compiler says to right and wrong uses of the attributes.
//!
//! The texts are those of the stable compiler the project is built with. After a change that is meant,
//! `TRYBUILD=overwrite cargo test -p dlock-ui` writes them anew: read the difference.
//!
//! A package of its own, since the compiler builds once more whatever its package depends on.

use trybuild::TestCases;

#[test]
fn wrong_uses_are_refused_with_what_to_write_instead() {
    TestCases::new().compile_fail("fail/*.rs");
}

#[test]
fn a_backend_that_is_not_compiled_in_is_refused_by_the_name_of_its_feature() {
    TestCases::new().compile_fail("fail/feature_off/*.rs");
}

#[test]
fn right_uses_compile_without_a_warning() {
    TestCases::new().pass("pass/*.rs");
}
