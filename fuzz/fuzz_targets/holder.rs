#![no_main]

use dlock_core::Holder;
use dlock_testkit::hostile::{assert_harmless, text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| assert_harmless(&Holder::parse(&text(bytes))));
