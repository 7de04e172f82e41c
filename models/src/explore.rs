//! Exploring a model: every state, every order of events, with its properties asked in each.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// What an exploration came to.
#[derive(Clone, Debug)]
#[must_use]
pub struct Explored {
    /// States that differ.
    pub states: usize,
    /// Steps taken, also to states that were known already.
    pub steps: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
    /// Every state was visited: what is not in here does not exist, within the bounds of the model.
    pub complete: bool,
    /// How long it took.
    pub took: Duration,
    /// The story, step by step, to the first state that breaks each broken property.
    pub broken: BTreeMap<&'static str, Vec<String>>,
    /// Situations that the model has to reach, and did not: it proves nothing without them.
    pub unreached: Vec<&'static str>,
}

impl Explored {
    /// Whether everything was visited, no property was broken, and no situation was missed.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.complete && self.broken.is_empty() && self.unreached.is_empty()
    }

    /// Panics with the story unless the model [holds](Self::holds).
    ///
    /// # Panics
    ///
    /// When a property is broken, a situation was not reached, or states are left.
    #[track_caller]
    pub fn assert_holds(&self) {
        assert!(self.holds(), "{self}");
    }

    /// Returns the story of how `property` is broken.
    ///
    /// # Panics
    ///
    /// When it is not.
    #[track_caller]
    #[must_use]
    pub fn story_of(&self, property: &str) -> &[String] {
        match self.broken.get(property) {
            Some(story) => story,
            None => panic!("{property:?} was not broken; {self}"),
        }
    }
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, depth, complete, took, broken, unreached } = self;
        let all = if *complete { "all" } else { "the first" };
        write!(f, "{all} {states} states in {steps} steps, depth {depth}, {took:.1?}")?;
        for (property, story) in broken {
            write!(f, "\n  broken: {property}")?;
            for (place, step) in story.iter().enumerate() {
                write!(f, "\n    {:3}. {step}", place + 1)?;
            }
        }
        for situation in unreached {
            write!(f, "\n  never reached: {situation}")?;
        }
        Ok(())
    }
}

/// Which states to visit.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// All, also after a property was broken.
    Everything,
    /// Until this property is broken.
    Broken(&'static str),
}

/// Explores a model with two threads; `progress` is called every few seconds with the states and steps so far.
pub fn explore<M>(model: M, until: Until, mut progress: impl FnMut(usize, usize)) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let started = Instant::now();
    let finish = match until {
        Until::Everything => HasDiscoveries::All,
        Until::Broken(property) => HasDiscoveries::AnyOf([property].into()),
    };
    // Two threads cost the shortest story and gain time; a story is wanted short.
    let threads = if matches!(until, Until::Everything) { 2 } else { 1 };
    let checker = model.checker().threads(threads).finish_when(finish).spawn_bfs();
    let mut reported = Instant::now();
    while !checker.is_done() {
        std::thread::sleep(Duration::from_millis(5));
        if reported.elapsed() > Duration::from_secs(5) {
            reported = Instant::now();
            progress(checker.unique_state_count(), checker.state_count());
        }
    }
    let checker = checker.join();
    let model = checker.model();
    let mut broken = BTreeMap::new();
    let mut unreached = Vec::new();
    let mut discoveries = checker.discoveries();
    let stopped_early = |found: bool| matches!(until, Until::Broken(_)) && found;
    let early = discoveries.keys().any(|name| stopped_early(matches!(until, Until::Broken(p) if p == *name)));
    for property in model.properties() {
        match (property.expectation, discoveries.remove(property.name)) {
            (Expectation::Sometimes, None) if !early => unreached.push(property.name),
            (Expectation::Sometimes, _) | (_, None) => {}
            (_, Some(path)) => {
                let story = path.into_actions().iter().map(|action| model.format_action(action)).collect();
                broken.insert(property.name, story);
            }
        }
    }
    Explored {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        complete: !early,
        took: started.elapsed(),
        broken,
        unreached,
    }
}

/// Explores all of a model, which holds.
///
/// # Panics
///
/// When it does not, with the story.
#[track_caller]
pub fn holds<M>(model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let explored = explore(model, Until::Everything, |_, _| {});
    println!("{explored}");
    explored.assert_holds();
}

/// Explores a model until `property` is broken, by one of the shortest ways.
///
/// # Panics
///
/// When it is not.
#[track_caller]
pub fn is_broken<M>(model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let explored = explore(model, Until::Broken(property), |_, _| {});
    println!("{explored}");
    assert!(!explored.story_of(property).is_empty());
}
