//! No false alarm over sound fleets, and each violation that is planted in one is found.

use std::time::Duration;

use dlock_audit::{Audit, DoubtKind, Outcome, Report, Trail};
use fastrand::Rng;

use crate::fleet::{ERROR, PLANTED, Shape, Wrong, fleet};

fn audit(trail: &Trail) -> Report {
    Audit::new().with_clock_error(Duration::from_nanos(ERROR)).check(trail)
}

#[test]
fn a_million_sections_of_sound_fleets_raise_no_alarm() {
    let (mut sections, mut held) = (0, 0);
    for seed in 0.. {
        if sections >= 1_000_000 {
            break;
        }
        let mut rng = Rng::with_seed(seed);
        let shape = Shape::of(&mut rng, 20_000);
        let runs = fleet(&mut rng, shape, None);
        let report = audit(&Trail::made(&runs));
        assert!(report.violations.is_empty(), "seed {seed}, {shape:?}: {:#?}", report.violations.first());
        let is_killed = runs.iter().any(|run| run.is_killed);
        let unfinished = report.doubts.iter().any(|doubt| doubt.kind == DoubtKind::Unfinished);
        assert_eq!(unfinished, is_killed, "seed {seed}");
        // What clocks alone leave open is only said where no fences show the order.
        let others = report.doubts.iter().find(|doubt| doubt.kind != DoubtKind::Unfinished);
        assert!(others.is_none_or(|doubt| doubt.kind == DoubtKind::Undecided), "seed {seed}: {others:?}");
        sections += report.summary.holds;
        held += usize::from(report.outcome() == Outcome::Held);
    }
    assert!(held > 5, "{held} fleets are known to have held");
}

#[test]
fn each_of_a_thousand_planted_violations_is_found_and_names_its_holder() {
    let mut found = 0;
    for seed in 0..125 {
        for wrong in Wrong::ALL {
            let mut rng = Rng::with_seed(seed);
            let shape = Shape { is_fenced: true, keys: 2, ..Shape::of(&mut rng, 400) };
            let report = audit(&Trail::made(&fleet(&mut rng, shape, Some(wrong))));
            assert_eq!(
                report.outcome(),
                Outcome::Overlapped,
                "seed {seed}, {wrong:?}, {shape:?}: {report:#?}"
            );
            let named = report.violations.iter().flat_map(|violation| &violation.holds);
            let is_named = named.into_iter().any(|held| held.number >= PLANTED);
            // A backup that was restored is found by any of the fences that come again.
            assert!(
                is_named || wrong == Wrong::RestoredBackup,
                "seed {seed}, {wrong:?}: {:#?}",
                report.violations
            );
            found += 1;
        }
    }
    assert_eq!(found, 1_000);
}
