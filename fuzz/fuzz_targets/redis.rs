#![no_main]

use dlock_testkit::hostile::{assert_harmless, text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| dlock_redis::holders_in(&text(bytes)).iter().for_each(assert_harmless));
