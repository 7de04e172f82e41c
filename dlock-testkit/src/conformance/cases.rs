//! The cases, by subject.

pub(super) mod administering;
mod basic;
mod batches;
mod cancelling;
pub(super) mod carrying;
pub(super) mod carrying_shares;
pub(super) mod downgrading;
mod dropping;
mod electing;
pub(super) mod fairness;
mod fences;
mod handing_over;
mod inspecting;
mod keys;
pub(super) mod leaving;
mod losing;
mod once;
mod options;
mod outages;
mod panicking;
pub(super) mod permits;
pub(super) mod preferring;
mod reentering;
mod releasing;
mod renewing;
mod runtimes;
pub(super) mod sessions;
pub(super) mod sharing;
mod shutting_down;
mod unknown;
mod unpolled;
mod waiting;

use super::Case;

/// All cases.
pub(super) const ALL: &[&[Case]] = &[
    basic::CASES,
    waiting::CASES,
    options::CASES,
    keys::CASES,
    releasing::CASES,
    dropping::CASES,
    reentering::CASES,
    losing::CASES,
    renewing::CASES,
    fences::CASES,
    handing_over::CASES,
    unknown::CASES,
    unpolled::CASES,
    outages::CASES,
    panicking::CASES,
    cancelling::CASES,
    batches::CASES,
    inspecting::CASES,
    administering::CASES,
    shutting_down::CASES,
    sharing::CASES,
    downgrading::CASES,
    permits::CASES,
    preferring::CASES,
    electing::CASES,
    fairness::CASES,
    leaving::CASES,
    carrying::CASES,
    carrying_shares::CASES,
    once::CASES,
    runtimes::CASES,
    sessions::CASES,
];

/// The list of a module's cases: `name: Need & Need, Pace;`. A case that is written and not listed is dead code, which
/// the compiler tells.
macro_rules! cases {
    ($($name:ident: $($need:ident)&+, $pace:ident;)+) => {
        pub(super) const CASES: &[$crate::conformance::Case] = &[$($crate::conformance::Case {
            name: stringify!($name),
            needs: &[$($crate::conformance::Need::$need),+],
            pace: $crate::conformance::Pace::$pace,
            run: |stage| Box::pin($name(stage)),
        }),+];
    };
}

use cases;
