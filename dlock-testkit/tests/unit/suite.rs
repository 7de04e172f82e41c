//! The cases of the conformance suite, and which of them a backend may leave out.

use std::collections::BTreeSet;
use std::time::Duration;

use dlock_core::backend::{Administration, BoxedFuture, Forced, Unadministered, boxed};
use dlock_core::{Backend, Capabilities, Failure, Holder, Key};
use dlock_testkit::conformance::{
    ADMINISTRATION, Arguments, CARRYING, CARRYING_SHARES, Case, DOWNGRADING, FAIRNESS, Harness, LEAVING,
    PERMITS, SESSIONS, SHARING, WAITERS, WITH_FENCES, account_for, cases, is_wanted, tests,
};
use dlock_testkit::mutants::Mutation;

#[test]
fn every_case_has_a_name_of_its_own_that_is_a_sentence() {
    let names: Vec<_> = cases().map(Case::name).collect();
    let different: BTreeSet<_> = names.iter().copied().collect();
    assert_eq!(names.len(), different.len());
    for name in names {
        assert!(name.split('_').count() >= 4, "{name} does not say what the backend does");
        assert!(!name.bytes().any(|byte| byte.is_ascii_digit()), "{name} has a number for a name");
    }
}

#[test]
fn a_suite_of_which_nothing_is_left_is_not_wanted() {
    let wanted = |words: &[&str]| {
        let arguments = Arguments::from_iter(["conformance"].iter().chain(words));
        ["single", "cluster"].map(|suite| is_wanted(&arguments, suite))
    };
    assert_eq!(wanted(&[]), [true, true]);
    assert_eq!(wanted(&["single::"]), [true, false]);
    assert_eq!(wanted(&["--skip", "cluster::"]), [true, false]);
    assert_eq!(wanted(&["--exact", "cluster::a_dropped_guard_is_given_back_soon"]), [false, true]);
    assert_eq!(wanted(&["no such case"]), [false, false]);
}

struct Bare(dlock_core::Memory, Option<Refusing>);

#[derive(Debug)]
struct NoFences(dlock_core::Memory, Option<Refusing>);

/// An administration that is there, and cannot do something.
#[derive(Clone, Copy, Debug)]
enum Refusing {
    Everything,
    Waiters,
}

impl Administration for NoFences {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        match self.1 {
            Some(Refusing::Waiters) => self.0.holders(),
            _ => Unadministered.holders(),
        }
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        self.0.force_release(key, seen)
    }

    fn waiters(&self, key: Key) -> Option<BoxedFuture<'_, Result<Vec<Holder>, Failure>>> {
        // Of the key that is asked for first only.
        key.as_str().starts_with("dlock").then(|| boxed(async { Ok(Vec::new()) }))
    }
}

impl Backend for NoFences {
    type Claim = <dlock_core::Memory as Backend>::Claim;

    fn name(&self) -> &'static str {
        "bare"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic()
    }

    fn lock_id(&self, key: &Key) -> dlock_core::backend::LockId {
        self.0.lock_id(key)
    }

    fn claim(&self, request: dlock_core::backend::ClaimRequest) -> Self::Claim {
        self.0.claim(request)
    }

    fn administration(&self) -> Option<&dyn Administration> {
        self.1.map(|_| self as &dyn Administration)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.0.inspect(key).await
    }
}

impl Harness for Bare {
    type Backend = NoFences;

    async fn open(&self) -> dlock_core::Result<NoFences> {
        Ok(NoFences(self.0.clone(), self.1))
    }
}

#[test]
fn a_backend_that_lacks_an_ability_has_to_name_the_cases_it_gets_out_of() {
    let trials = tests("bare", || Bare(dlock_core::Memory::new(), None));
    let all = cases().count();
    let fenced = cases().filter(|case| case.missing(&Capabilities::basic()).is_some()).count();
    assert!(fenced >= 5);
    assert_eq!(trials.len(), all - fenced + 1, "the others, and the test that counts them");
    let error = account_for(&Capabilities::basic(), &[]).unwrap_err();
    assert!(error.contains("a_fence_grows_after_a_drop") && error.contains("no fences"), "{error}");
    let named: Vec<_> =
        cases().filter(|case| case.missing(&Capabilities::basic()).is_some()).map(Case::name).collect();
    account_for(&Capabilities::basic(), &[&named]).unwrap();
    let modes: &[&[&str]] =
        &[SHARING, DOWNGRADING, PERMITS, FAIRNESS, LEAVING, CARRYING, CARRYING_SHARES, SESSIONS];
    account_for(&Capabilities::basic(), &[&[WITH_FENCES, ADMINISTRATION, WAITERS], modes].concat()).unwrap();
    account_for(&Capabilities::basic(), &[&[WITH_FENCES, ADMINISTRATION], modes].concat()).unwrap_err();
    account_for(&Capabilities::basic(), &[&[WITH_FENCES, ADMINISTRATION, WAITERS], &modes[1..]].concat())
        .unwrap_err();
    account_for(&Capabilities::basic().with_fencing(), &[&named]).unwrap_err();
    let mut administered = Capabilities::basic();
    administered.administered = true;
    account_for(&administered, &[&named]).unwrap_err();
    let mut with_waiters = Capabilities::basic();
    with_waiters.shows_waiters = true;
    account_for(&with_waiters, &[&named]).unwrap_err();
}

#[test]
fn an_administration_that_refuses_what_it_shows_is_noticed() {
    let name = "what_is_shown_of_administration_is_what_there_is";
    let case = cases().find(|case| case.name() == name).unwrap();
    let run = |refusing| case.run(Bare(dlock_core::Memory::new(), refusing), Duration::from_secs(30));
    run(None).unwrap();
    let error = run(Some(Refusing::Everything)).unwrap_err();
    assert!(error.contains("the list of holders"), "{error}");
    let error = run(Some(Refusing::Waiters)).unwrap_err();
    assert!(error.contains("the list of waiters"), "{error}");
}

#[test]
fn the_page_has_as_many_cases_and_broken_backends_as_there_are() {
    let page = include_str!("../../../docs/reliability.md");
    let (all, broken) = (cases().count(), Mutation::ALL.len());
    for says in [
        format!("\n{all} cases over any backend"),
        format!("\n{broken} deliberately broken backends"),
        format!("| {broken} of {broken} |"),
    ] {
        assert!(page.contains(&says), "{says}");
    }
}
