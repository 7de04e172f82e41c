//! Durations as text with a unit, such as `"30s"`: checked at compile time, so that none can fail at run time.

use std::ops::RangeInclusive;
use syn::LitStr;

const DAY: u64 = 24 * 60 * 60 * 1000;

/// The bounds of the runtime, in milliseconds.
pub(crate) const LEASE: RangeInclusive<u64> = 50..=DAY;
pub(crate) const WAIT: RangeInclusive<u64> = 1..=DAY;
pub(crate) const MAX_HOLD: RangeInclusive<u64> = 50..=30 * DAY;
pub(crate) const HOLD_AT_LEAST: RangeInclusive<u64> = 1..=30 * DAY;

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

/// Parses `text` into milliseconds.
pub(crate) fn parse(option: &str, text: &LitStr, bounds: &RangeInclusive<u64>) -> syn::Result<u64> {
    milliseconds(option, &text.value(), bounds).map_err(|message| syn::Error::new(text.span(), message))
}

fn milliseconds(option: &str, text: &str, bounds: &RangeInclusive<u64>) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = &text[number.len()..];
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!(
            "`{text}` is not a duration; write one whole number and one unit, such as `{option} = \"30s\"` \
             (units: `ms`, `s`, `m`, `h`)"
        ));
    }
    if unit.is_empty() {
        return Err(format!("a duration needs a unit; write `{option} = \"{number}s\"` for seconds"));
    }
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!(
            "unknown unit `{unit}`; the units are `ms`, `s`, `m` and `h`, as in `{option} = \"30s\"`"
        ));
    };
    // A number too large for the type is too large for the bounds as well.
    let milliseconds = number.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(*factor);
    if bounds.contains(&milliseconds) {
        return Ok(milliseconds);
    }
    let (least, most) = (written(*bounds.start()), written(*bounds.end()));
    Err(match (option, milliseconds) {
        ("wait", 0) => "write `wait = \"no\"` to not wait at all".to_owned(),
        ("wait", n) if n > DAY => {
            format!("`wait` is at most {most}; write `wait = \"forever\"` to wait without a limit")
        }
        _ => format!("write a duration from {least} to {most} for `{option}`"),
    })
}

/// Formats a duration in the largest unit that is exact.
fn written(milliseconds: u64) -> String {
    let (unit, factor) =
        UNITS.iter().rev().find(|(_, factor)| milliseconds.is_multiple_of(*factor)).unwrap_or(&UNITS[0]);
    format!("{}{unit}", milliseconds / factor)
}

#[cfg(test)]
mod tests {
    use super::{HOLD_AT_LEAST, LEASE, MAX_HOLD, WAIT, milliseconds, written};
    use crate::args::{PERMITS, SEGMENTS};
    use dlock_core::backend::MOST_PERMITS;
    use dlock_core::{MAX_LEASE, MAX_WAIT, MIN_HOLD_AT_LEAST, MIN_LEASE, Segmented};

    #[test]
    fn the_bounds_are_those_of_the_runtime() {
        let [least, lease, wait, least_hold, hold] =
            [MIN_LEASE, MAX_LEASE, MAX_WAIT, MIN_HOLD_AT_LEAST, dlock_core::MAX_HOLD]
                .map(|bound| u64::try_from(bound.as_millis()).unwrap());
        assert_eq!([LEASE, WAIT], [least..=lease, 1..=wait]);
        assert_eq!([MAX_HOLD, HOLD_AT_LEAST], [least..=hold, least_hold..=hold]);
        assert_eq!([SEGMENTS, PERMITS], [1..=Segmented::MAX, 1..=MOST_PERMITS]);
    }

    #[test]
    fn every_unit_is_understood() {
        assert_eq!(milliseconds("lease", "250ms", &LEASE), Ok(250));
        assert_eq!(milliseconds("lease", "30s", &LEASE), Ok(30_000));
        assert_eq!(milliseconds("lease", "2m", &LEASE), Ok(120_000));
        assert_eq!(milliseconds("lease", "24h", &LEASE), Ok(86_400_000));
        assert_eq!(milliseconds("wait", "1ms", &WAIT), Ok(1));
    }

    #[test]
    fn what_is_no_duration_is_refused_with_what_to_write() {
        for (text, remedy) in [
            ("", "one whole number and one unit"),
            ("soon", "one whole number and one unit"),
            ("1.5s", "one whole number and one unit"),
            ("-1s", "one whole number and one unit"),
            ("1h 30m", "one whole number and one unit"),
            ("1h30m", "one whole number and one unit"),
            ("30", "write `lease = \"30s\"`"),
            ("30 s", "unknown unit ` s`"),
            ("30sec", "unknown unit `sec`"),
            ("30us", "unknown unit `us`"),
            ("30S", "unknown unit `S`"),
            ("٣٠s", "one whole number and one unit"),
        ] {
            let message = milliseconds("lease", text, &LEASE).expect_err(text);
            assert!(message.contains(remedy), "{text}: {message}");
        }
    }

    #[test]
    fn the_bounds_are_part_of_the_message() {
        const BOUNDS: &str = "write a duration from 50ms to 24h for `lease`";
        assert_eq!(milliseconds("lease", "50ms", &LEASE), Ok(50));
        assert_eq!(milliseconds("lease", "49ms", &LEASE), Err(BOUNDS.to_owned()));
        assert_eq!(milliseconds("lease", "0s", &LEASE), Err(BOUNDS.to_owned()));
        assert_eq!(milliseconds("lease", "25h", &LEASE), Err(BOUNDS.to_owned()));
        let absurd = "99999999999999999999999999999h";
        assert_eq!(milliseconds("lease", absurd, &LEASE), Err(BOUNDS.to_owned()));
        assert!(milliseconds("wait", absurd, &WAIT).unwrap_err().contains("`wait = \"forever\"`"));
        assert!(milliseconds("wait", "0s", &WAIT).unwrap_err().contains("`wait = \"no\"`"));
    }

    #[test]
    fn a_bound_is_written_in_its_largest_exact_unit() {
        assert_eq!(written(50), "50ms");
        assert_eq!(written(1500), "1500ms");
        assert_eq!(written(90_000), "90s");
        assert_eq!(written(86_400_000), "24h");
    }
}
