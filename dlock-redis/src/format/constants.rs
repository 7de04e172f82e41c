//! Compares the numbers in the scripts with their twins in Rust.
//!
//! The scripts are called by the hash of their text, and some of them are published. So the numbers in them are
//! literals.

use std::time::Duration;

use dlock_core::backend::{MOST_PERMITS, PERMITS_REMEMBERED, PREFERENCE, PREFERENCE_ALIVE};

use super::LONGEST_VALUE;
use super::redisson_shares::MOST_AT_ONCE;

const SCRIPTS: [(&str, &str); 9] = [
    ("fair.lua", include_str!("fair.lua")),
    ("line.lua", include_str!("line.lua")),
    ("plain.lua", include_str!("plain.lua")),
    ("plain_take_over.lua", include_str!("plain_take_over.lua")),
    ("redisson_fair.lua", include_str!("redisson_fair.lua")),
    ("redisson_head.lua", include_str!("redisson_head.lua")),
    ("redisson_permits.lua", include_str!("redisson_permits.lua")),
    ("redisson_readers.lua", include_str!("redisson_readers.lua")),
    ("shares.lua", include_str!("shares.lua")),
];

/// The constants that only scripts have.
const OF_SCRIPTS: [&str; 11] =
    ["AT_ONCE", "CHANCE", "ENTRIES", "FAR", "FIELDS", "HOLDERS", "JOIN", "LONGEST", "ROOM", "STALE", "TURN"];

/// Returns the constants of a script: `local ONE, OTHER = 1, 2`.
fn constants(script: &str) -> impl Iterator<Item = (&str, u128)> {
    let lines = script.lines().filter_map(|line| line.strip_prefix("local ")?.split_once(" = "));
    let constants = lines.filter(|(names, _)| names.starts_with(|c: char| c.is_ascii_uppercase()));
    constants.flat_map(|(names, values)| {
        let values = values.split(", ").map(|value| value.parse().expect("a number"));
        names.split(", ").zip(values)
    })
}

fn millis(duration: Duration) -> u128 {
    duration.as_millis()
}

#[test]
fn a_constant_that_scripts_share_with_the_engine_has_the_value_of_the_engine() {
    let mut compared = 0;
    for (file, text) in SCRIPTS {
        for (name, value) in constants(text) {
            let ours = match name {
                "PREFERENCE" => millis(PREFERENCE),
                "ALIVE" => millis(PREFERENCE_ALIVE),
                "REMEMBERED" => millis(PERMITS_REMEMBERED),
                "MOST_PERMITS" => u128::from(MOST_PERMITS),
                _ if OF_SCRIPTS.contains(&name) => continue,
                _ => panic!("{file}: {name} has a twin in Rust, or stands among those of the scripts"),
            };
            assert_eq!(value, ours, "{file}: {name}");
            compared += 1;
        }
    }
    assert_eq!(compared, 6);
    let plain = include_str!("plain.lua");
    assert!(plain.contains(&format!("head or waiter, {}\n", millis(PREFERENCE_ALIVE))), "plain.lua");
    let entries = constants(include_str!("redisson_readers.lua")).find(|(name, _)| *name == "ENTRIES");
    assert_eq!(entries, Some(("ENTRIES", u128::from(MOST_AT_ONCE))));
}

#[test]
fn a_script_reads_as_much_of_a_value_as_may_be_a_lock() {
    let others = [
        include_str!("plain_alone.lua"),
        include_str!("plain_batch.lua"),
        include_str!("plain_force.lua"),
        include_str!("plain_look.lua"),
        include_str!("shares_carry.lua"),
    ];
    let mut compared = 0;
    for text in SCRIPTS.iter().map(|(_, text)| *text).chain(others) {
        // A number needs no more than 32 bytes.
        for part in text.split("'GETRANGE', ").skip(1).filter(|part| !part.starts_with("name, 0, 31)")) {
            let (_, last) = part.split_once(", 0, ").expect("a range");
            let last: usize = last.split(')').next().expect("an end").parse().expect("a number");
            assert_eq!(last, LONGEST_VALUE - 1, "{part}");
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
}
