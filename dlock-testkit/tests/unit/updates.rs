//! Updates that are lost.

use dlock_core::Fence;
use dlock_testkit::checkers::{Updates, lost_updates};
use dlock_testkit::register::Register;

/// The first holder reads, is overtaken, and writes when it wakes up.
fn overtaken(register: &Register) -> Updates {
    let (old, new) = (Fence::new(1), Fence::new(2));
    let seen = register.read(old).unwrap();
    let read = register.read(new).unwrap();
    let _ = register.write(old, seen, seen + 1);
    register.write(new, read, read + 1).unwrap();
    lost_updates(&register.record())
}

#[test]
fn without_fences_the_update_of_a_stale_holder_is_lost() {
    let verdict = overtaken(&Register::unfenced());
    let expected = Updates { tried: 2, accepted: 2, stale_tried: 1, stale_accepted: 1, lost_updates: 1 };
    assert_eq!(verdict, expected);
}

#[test]
fn with_fences_the_stale_holder_is_refused() {
    let verdict = overtaken(&Register::fenced());
    let expected = Updates { tried: 2, accepted: 1, stale_tried: 1, stale_accepted: 0, lost_updates: 0 };
    assert_eq!(verdict, expected);
}
