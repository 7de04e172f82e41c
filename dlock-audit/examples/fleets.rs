//! Audits sound fleets that are made up, as many sections as are asked for, and ends with an error at a false alarm.
//!
//! ```sh
//! cargo run --release -p dlock-audit --example fleets -- 100000000
//! ```

#[allow(dead_code, unreachable_pub, reason = "the test has more of it")]
#[path = "../tests/unit/fleet.rs"]
mod fleet;

use std::time::{Duration, Instant};

use dlock_audit::{Audit, Outcome, Trail};
use fastrand::Rng;

use crate::fleet::{ERROR, Shape, fleet};

fn main() {
    let wanted: usize = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
    let audit = Audit::new().with_clock_error(Duration::from_nanos(ERROR));
    let (mut sections, mut fleets, mut held, mut took) = (0, 0, 0, Duration::ZERO);
    for seed in 1_000_000.. {
        if sections >= wanted {
            break;
        }
        let mut rng = Rng::with_seed(seed);
        let shape = Shape::of(&mut rng, 100_000);
        let trail = Trail::made(&fleet(&mut rng, shape, None));
        let begun = Instant::now();
        let report = audit.check(&trail);
        took += begun.elapsed();
        assert!(report.violations.is_empty(), "seed {seed}, {shape:?}: {:#?}", report.violations.first());
        sections += report.summary.holds;
        fleets += 1;
        held += usize::from(report.outcome() == Outcome::Held);
    }
    let each = took.as_nanos() / sections.max(1) as u128;
    println!(
        "{sections} sections of {fleets} fleets, no alarm; {held} held, the others unknown; {each} ns a section"
    );
}
