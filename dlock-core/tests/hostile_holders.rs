//! Whatever stands in a store where a holder is expected.

use std::time::UNIX_EPOCH;

use dlock_core::Holder;
use dlock_testkit::hostile::{assert_harmless, for_each_text};

/// How many bytes of a name are kept, with the ellipsis behind them.
const LONGEST: usize = 256 + '…'.len_utf8();

#[test]
fn whatever_stands_in_a_store_is_bounded_and_shown_in_one_harmless_line() {
    for_each_text(|text| {
        let holder = Holder::parse(text);
        for name in [&holder.host, &holder.label, &holder.trace, &holder.candidate].into_iter().flatten() {
            assert!(name.len() <= LONGEST, "{} bytes", name.len());
        }
        let since = holder.since.map(|since| since.duration_since(UNIX_EPOCH).expect("since 1970"));
        assert!(since.is_none_or(|since| since.as_secs() < 253_402_300_800), "{since:?}");
        assert!(holder.to_string().len() < 16 * LONGEST, "{holder}");
        assert_harmless(&holder);
    });
}
