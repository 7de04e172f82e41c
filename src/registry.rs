//! The search of an attribute for its backend: the one given, else the override of the calling task, else the registry.
//!
//! [`init`](crate::init) goes through these states, which errors name to say what to do:
//!
//! ```text
//! No --awaited--> Begun --all registered--> Done
//!                 ^   |
//!                 +---+ failed or dropped, and awaited again
//! ```

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use dlock_core::{Error, ErrorKind, Failure, Locks, Operation, Result};

use crate::variables::{DEFAULT, invalid, is_name, is_same, is_set, shown, variable_of};

/// The backends that dlock knows by name, and whether this build has them.
const KNOWN: &[(&str, bool)] = &[
    ("etcd", cfg!(feature = "etcd")),
    ("memory", true),
    ("mysql", cfg!(feature = "mysql")),
    ("postgres", cfg!(feature = "postgres")),
    ("redis", cfg!(feature = "redis")),
    ("sqlite", cfg!(feature = "sqlite")),
    ("zk", cfg!(feature = "zk")),
];

#[derive(Debug)]
struct Entry {
    locks: Locks,
    /// Is `true` if a variable named it, so that every spelling with that variable means it.
    is_of_variable: bool,
}

#[derive(Debug)]
struct Registry {
    entries: BTreeMap<String, Entry>,
    default: Option<String>,
    initialized: Initialized,
}

/// The state of [`init`](crate::init).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Initialized {
    /// It was not called.
    No,
    /// It was called, and has failed, was dropped or goes on.
    Begun,
    Done(Call),
}

/// The restrictions of a call of [`init`](crate::init).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// It took only some of the backends.
    pub takes_some: bool,
    /// It was given variables in place of the environment.
    pub is_given: bool,
}

impl Registry {
    const fn new() -> Self {
        Self { entries: BTreeMap::new(), default: None, initialized: Initialized::No }
    }

    /// Returns the entry that an attribute with this name means, and its own name.
    fn find(&self, name: &str) -> Option<(&String, &Entry)> {
        self.entries.get_key_value(name).or_else(|| {
            self.entries.iter().find(|(known, entry)| entry.is_of_variable && is_same(known, name))
        })
    }

    /// Returns the registered name that `name` would be confused with: the name itself, or a name with the same
    /// variable, if a variable named one of the two.
    fn confused_with(&self, name: &str, is_of_variable: bool) -> Option<&String> {
        let is_confused = |(known, entry): &(&String, &Entry)| {
            *known == name || (is_of_variable || entry.is_of_variable) && is_same(known, name)
        };
        self.entries.iter().find(is_confused).map(|(known, _)| known)
    }

    /// Checks that all names of variables can be added, and that `DLOCK_URL` can be the default.
    fn check_initial<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<()> {
        let again = if matches!(self.initialized, Initialized::Done(_)) {
            "; dlock::init() is called once"
        } else {
            ""
        };
        for name in names {
            let variable = variable_of(name).unwrap_or_default();
            if let Some(known) = self.confused_with(name, true) {
                return Err(invalid(format!(
                    "{variable} is set, and a backend is registered as {known:?} already{again}"
                )));
            }
            if let (true, Some(default)) = (is_same(name, DEFAULT), &self.default) {
                return Err(invalid(format!(
                    "{variable} is set, and dlock::set_default({default:?}) was called already; keep one of them"
                )));
            }
        }
        Ok(())
    }
}

static REGISTRY: RwLock<Registry> = RwLock::new(Registry::new());

tokio::task_local! {
    static OVERRIDES: Vec<(String, Locks)>;
}

fn registry() -> RwLockReadGuard<'static, Registry> {
    REGISTRY.read().unwrap_or_else(PoisonError::into_inner)
}

fn registry_mut() -> RwLockWriteGuard<'static, Registry> {
    REGISTRY.write().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `locks` known under `name` to every `#[distributed_lock(backend = "name")]` of this process.
///
/// Call it once, at start-up, for locks that are built by hand; [`init`](crate::init) does it for those that
/// environment variables name. The only registered backend is also the default one.
///
/// ```
/// # fn main() -> Result<(), dlock::Error> {
/// use dlock::{Locks, Memory};
///
/// dlock::register("orders", Locks::new(Memory::new()))?;
/// let again = dlock::register("orders", Locks::new(Memory::new()));
/// assert!(again.is_err(), "a name is given once");
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`] when the name is empty, has a `:`, `/` or `@` in it, as URLs have, or is taken:
/// replacing a backend silently would let two halves of a program hold the "same" lock. A name that
/// [`init`](crate::init) registered takes all names with the same variable.
pub fn register(name: impl Into<String>, locks: Locks) -> Result<()> {
    let name = name.into();
    if name.is_empty() {
        return Err(invalid("a backend cannot be registered under an empty name".into()));
    }
    if !is_name(&name) {
        return Err(invalid("the name of a backend has no `:`, `/` or `@` in it, as URLs have".into()));
    }
    let mut registry = registry_mut();
    if let Some(known) = registry.confused_with(&name, false) {
        let of_variable = variable_of(known).filter(|_| registry.entries[known].is_of_variable);
        let from =
            of_variable.map_or_else(String::new, |variable| format!(" by dlock::init(), from {variable}"));
        let what = format!("a backend is registered as {known:?} already{from}; each name is given once");
        return Err(invalid(what));
    }
    registry.entries.insert(name, Entry { locks, is_of_variable: false });
    Ok(())
}

/// Checks that the backends of variables can be registered.
pub(crate) fn check_initial<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<()> {
    registry().check_initial(names)
}

/// Notes that variables are read, until [`register_initial`] notes the outcome.
pub(crate) fn begin_initial() {
    let mut registry = registry_mut();
    if registry.initialized == Initialized::No {
        registry.initialized = Initialized::Begun;
    }
}

/// Registers the backends of variables, all or none.
pub(crate) fn register_initial(backends: &[(String, Locks)], call: Call) -> Result<()> {
    let mut registry = registry_mut();
    registry.check_initial(backends.iter().map(|(name, _)| &**name))?;
    registry.initialized = Initialized::Done(call);
    for (name, locks) in backends {
        if is_same(name, DEFAULT) {
            registry.default = Some(name.clone());
        }
        registry.entries.insert(name.clone(), Entry { locks: locks.clone(), is_of_variable: true });
    }
    Ok(())
}

/// Makes the backend registered as `name` the default one, for attributes that name none. Needed only when more
/// than one is registered.
///
/// # Errors
///
/// [`ErrorKind::UnknownBackend`] when nothing is registered under the name.
pub fn set_default(name: &str) -> Result<()> {
    let mut registry = registry_mut();
    let Some((known, _)) = registry.find(name) else { return Err(unknown(name, &registry, is_set)) };
    registry.default = Some(known.clone());
    Ok(())
}

/// Returns the locks registered as `name`, or the override of the calling task.
///
/// # Errors
///
/// [`ErrorKind::UnknownBackend`] when there are none; the message lists the names there are, and says whether the
/// backend is compiled in.
pub fn registered(name: &str) -> Result<Locks> {
    if let Some(locks) = overridden(|overrides| {
        overrides.iter().rev().find(|(known, _)| known == name).map(|(_, locks)| locks.clone())
    }) {
        return Ok(locks);
    }
    let registry = registry();
    let found = registry.find(name).map(|(_, entry)| entry.locks.clone());
    found.ok_or_else(|| unknown(name, &registry, is_set))
}

/// Returns the default backend: the innermost override, the one set, or the only one registered.
pub(crate) fn default_locks() -> Result<Locks> {
    if let Some(locks) = overridden(|overrides| overrides.last().map(|(_, locks)| locks.clone())) {
        return Ok(locks);
    }
    let registry = registry();
    if let Some(entry) = registry.default.as_ref().and_then(|name| registry.entries.get(name)) {
        return Ok(entry.locks.clone());
    }
    match registry.entries.values().next() {
        Some(entry) if registry.entries.len() == 1 => Ok(entry.locks.clone()),
        _ => Err(no_default(&registry, is_set)),
    }
}

/// Runs `body` with `locks` in place of whatever is registered as `name`, and as the default: for tests, which run in
/// parallel in one process. Spawned tasks do not inherit it, unless wrapped with [`in_current_scope`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::Error> {
/// use dlock::{Locks, Memory, distributed_lock};
///
/// #[distributed_lock(key = "room_<id>", backend = "orders")]
/// async fn book(id: u64) -> Result<u64, dlock::Error> { Ok(id) }
///
/// let locks = Locks::new(Memory::new());
/// assert_eq!(dlock::with_backend("orders", locks, book(7)).await?, 7);
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// Dropping it drops the body.
pub async fn with_backend<F: Future>(name: impl Into<String>, locks: Locks, body: F) -> F::Output {
    let mut overrides = overridden(|overrides| Some(overrides.to_vec())).unwrap_or_default();
    overrides.push((name.into(), locks));
    OVERRIDES.scope(overrides, body).await
}

/// Takes the calling scope along into a task that is about to be spawned: the locks it holds, which stay held until the
/// task has ended too, and the overrides of [`with_backend`]. See [`dlock_core::in_current_scope`].
///
/// # Cancel safety
///
/// Dropping the returned future drops `future` and then its share of the locks.
pub fn in_current_scope<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let overrides = overridden(|overrides| Some(overrides.to_vec()));
    let future = dlock_core::in_current_scope(future);
    async move {
        match overrides {
            Some(overrides) => OVERRIDES.scope(overrides, future).await,
            None => future.await,
        }
    }
}

fn overridden<T>(look: impl FnOnce(&[(String, Locks)]) -> Option<T>) -> Option<T> {
    OVERRIDES.try_with(|overrides| look(overrides)).ok().flatten()
}

fn names(registry: &Registry) -> String {
    registry.entries.keys().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// Returns the error of a missing default backend.
fn no_default(registry: &Registry, is_set: impl Fn(&str) -> bool) -> Error {
    let what = match (registry.entries.is_empty(), is_set("DLOCK_URL")) {
        (true, _) => format!("no backend is registered; {}", advice(registry, DEFAULT, is_set)),
        (false, true) => format!(
            "several backends are registered ({}) and none is the default; {}",
            names(registry),
            advice(registry, DEFAULT, is_set)
        ),
        (false, false) => format!(
            "several backends are registered ({}) and none is the default; name one in the attribute, call \
             dlock::set_default at start-up, or set DLOCK_URL for dlock::init()",
            names(registry)
        ),
    };
    Error::new(Operation::Configure, Failure::new(ErrorKind::UnknownBackend, what))
}

/// Returns the error of an unknown name.
fn unknown(name: &str, registry: &Registry, is_set: impl Fn(&str) -> bool) -> Error {
    let overrides = overridden(|overrides| {
        Some(overrides.iter().map(|(name, _)| shown(name)).collect::<Vec<_>>().join(", "))
    });
    let there = match (registry.entries.is_empty(), overrides) {
        (true, None) => String::new(),
        (false, None) => format!("; registered are {}", names(registry)),
        // The caller is most likely a test that replaces another name than the attribute has.
        (_, Some(overrides)) => format!("; with_backend replaces only {overrides} here"),
    };
    let compiled = match KNOWN.iter().find(|(known, _)| *known == name) {
        Some((_, true)) => " (it is compiled in)".to_owned(),
        Some((_, false)) => format!(" (the `{name}` feature of dlock is not compiled in)"),
        None => String::new(),
    };
    let advice = advice(registry, name, is_set);
    let name = shown(name);
    let what = format!(
        "nothing is registered as {name}{compiled}{there}; {advice}; in a test, wrap the call with \
         dlock::with_backend, and a task that it spawns with dlock::in_current_scope"
    );
    Error::new(Operation::Configure, Failure::new(ErrorKind::UnknownBackend, what))
}

/// Returns the advice that leads to a backend under this name.
fn advice(registry: &Registry, name: &str, is_set: impl Fn(&str) -> bool) -> String {
    if !is_name(name) {
        return "a URL goes into a variable that dlock::init() reads, or to dlock::connect, and the name of its backend \
                here"
            .to_owned();
    }
    let by_hand = format!("call dlock::register({name:?}, locks) at start-up");
    let Some(variable) = variable_of(name) else { return by_hand };
    let is_set = is_set(&variable);
    let not_read = format!("{variable} is set, but dlock::init() did not read it");
    let and_set = if is_set { String::new() } else { format!(", and set {variable}") };
    match (registry.initialized, is_set) {
        (Initialized::No, true) => {
            format!("{variable} is set, but dlock::init() was not called; call it at start-up")
        }
        (Initialized::No, false) => {
            format!("set {variable} and call dlock::init() at start-up, or {by_hand}")
        }
        (Initialized::Begun, _) => format!(
            "dlock::init() was called and has not succeeded: see to its error, and await it before the first \
             use{and_set}"
        ),
        (Initialized::Done(Call { takes_some: true, .. }), true) => {
            format!("{not_read}: add {name:?} to its `only`")
        }
        (Initialized::Done(Call { is_given: true, .. }), true) => {
            format!("{not_read}: add it to the variables that it is given")
        }
        (Initialized::Done(_), true) => format!("{not_read}: set it before the call"),
        (Initialized::Done(Call { takes_some: true, .. }), false) => {
            format!("add {name:?} to the `only` of dlock::init(){and_set}, or {by_hand}")
        }
        (Initialized::Done(Call { is_given: true, .. }), false) => {
            format!("add {variable} to the variables that dlock::init() is given, or {by_hand}")
        }
        (Initialized::Done(_), false) => format!("dlock::init() found no {variable}: set it, or {by_hand}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::Memory;

    #[test]
    fn an_unknown_name_lists_the_registered_ones_and_tells_of_the_feature() {
        register("registry-a", Locks::new(Memory::new())).unwrap();
        for (name, compiled) in KNOWN {
            let error = registered(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnknownBackend);
            let text = error.to_string();
            let there = if *compiled { "is compiled in".to_owned() } else { format!("the `{name}` feature") };
            assert!(text.contains("registry-a") && text.contains(&there), "{text}");
        }
        assert!(!registered("other").unwrap_err().to_string().contains("compiled"));
    }

    /// The advice about `name`, where this variable is set.
    fn said(registry: &Registry, name: &str, variable: &str) -> String {
        let error = unknown(name, registry, |asked| asked == variable);
        assert_eq!(error.kind(), ErrorKind::UnknownBackend);
        error.to_string()
    }

    fn entry(is_of_variable: bool) -> Entry {
        Entry { locks: Locks::new(Memory::new()), is_of_variable }
    }

    #[test]
    fn an_unknown_name_whose_variable_is_set_says_that_init_was_not_called() {
        let mut registry = Registry::new();
        let text = said(&registry, "zk", "DLOCK_ZK_URL");
        assert!(text.contains("DLOCK_ZK_URL is set, but dlock::init() was not called"), "{text}");
        let text = said(&registry, "zk", "DLOCK_URL");
        let (by_init, by_hand) =
            (text.find("set DLOCK_ZK_URL and call dlock::init()"), text.find("dlock::register("));
        assert!(by_init.is_some() && by_init < by_hand, "{text}");
        // No variable has such a name in it.
        let text = said(&registry, "bücher", "DLOCK_URL");
        assert!(text.contains("dlock::register(\"bücher\"") && !text.contains("dlock::init()"), "{text}");

        registry.initialized = Initialized::Begun;
        for variable in ["DLOCK_URL", "DLOCK_ZK_URL"] {
            let text = said(&registry, "zk", variable);
            assert!(text.contains("dlock::init() was called and has not succeeded"), "{text}");
            assert_eq!(text.contains("set DLOCK_ZK_URL"), variable == "DLOCK_URL", "{text}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_by_what_init_looked_at() {
        let mut registry = Registry::new();
        registry.entries.extend(["a", "b"].map(|name| (name.to_owned(), entry(false))));
        for (takes_some, is_given, unset, set) in [
            (
                false,
                false,
                "dlock::init() found no DLOCK_ZK_URL: set it",
                "did not read it: set it before the call",
            ),
            (false, true, "add DLOCK_ZK_URL to the variables", "did not read it: add it to the variables"),
            (true, false, "add \"zk\" to the `only` of dlock::init(), and set DLOCK_ZK_URL", "to its `only`"),
        ] {
            registry.initialized = Initialized::Done(Call { takes_some, is_given });
            for (variable, says) in [("DLOCK_URL", unset), ("DLOCK_ZK_URL", set)] {
                let text = said(&registry, "zk", variable);
                assert!(text.contains(says), "{text}");
            }
        }
        let text = no_default(&registry, |asked| asked == "DLOCK_URL").to_string();
        assert!(text.contains("add \"default\" to its `only`"), "{text}");
    }

    #[tokio::test]
    async fn what_may_be_a_url_is_no_name_and_is_not_repeated() {
        for url in [
            "redis://:hunter2@h",
            "quorum:redis://:hunter2@a|memory:",
            "u:hunter2@h",
            "hunter2@h",
            "hunter2/db",
        ] {
            let locks = || Locks::new(Memory::new());
            let error = register(url, locks()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            let overridden =
                with_backend(url, locks(), async { registered("registry-e").unwrap_err() }).await;
            let call = crate::init().only([url]);
            let init = format!("{call:?}") + &call.await.unwrap_err().to_string();
            let unknown = [registered(url).unwrap_err(), set_default(url).unwrap_err()];
            let text = format!("{error} {overridden} {init} {unknown:?}");
            assert!(!text.contains("hunter2") && text.contains("may be a URL"), "{text}");
            assert!(unknown[0].to_string().contains("goes into a variable"), "{text}");
        }
    }

    #[test]
    fn without_a_default_it_is_said_what_to_set_and_whether_init_was_not_called() {
        let mut registry = Registry::new();
        let none = |registry: &Registry, is_set| no_default(registry, |asked| is_set && asked == "DLOCK_URL");
        let text = none(&registry, true).to_string();
        assert!(text.contains("DLOCK_URL is set, but dlock::init() was not called"), "{text}");
        let text = none(&registry, false).to_string();
        assert!(text.contains("set DLOCK_URL and call dlock::init() at start-up"), "{text}");

        registry.entries.extend(["a", "b"].map(|name| (name.to_owned(), entry(false))));
        let text = none(&registry, false).to_string();
        assert!(text.contains("(\"a\", \"b\")") && text.contains("dlock::set_default"), "{text}");
        let text = none(&registry, true).to_string();
        assert!(text.contains("DLOCK_URL is set, but dlock::init() was not called"), "{text}");
    }

    #[test]
    fn a_name_of_a_variable_is_found_in_every_spelling_and_one_given_by_hand_in_its_own() {
        let mut registry = Registry::new();
        registry.entries.insert("shop_orders".into(), entry(true));
        registry.entries.insert("by_hand".into(), entry(false));
        let found = |name| registry.find(name).map(|(known, _)| known.as_str());
        for name in ["shop_orders", "shop-orders", "Shop Orders"] {
            assert_eq!(found(name), Some("shop_orders"), "{name}");
        }
        assert_eq!((found("by_hand"), found("by-hand"), found("shop")), (Some("by_hand"), None, None));
        // A second backend of another spelling would be a second lock of what the attributes take for one.
        assert!(registry.confused_with("shop-orders", false).is_some());
        assert!(registry.confused_with("by-hand", true).is_some());
        assert!(registry.confused_with("by-hand", false).is_none());
        for (name, says) in
            [("shop-orders", "\"shop_orders\" already"), ("by_hand", "DLOCK_BY_HAND_URL is set")]
        {
            let error = registry.check_initial([name]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(says), "{error}");
        }
        registry.default = Some("by_hand".into());
        let error = registry.check_initial(["default"]).unwrap_err();
        assert!(error.to_string().contains("dlock::set_default(\"by_hand\")"), "{error}");
        registry.check_initial(["zk"]).unwrap();
    }

    #[tokio::test]
    async fn an_unknown_name_is_told_of_overrides_under_other_names_and_of_spawned_tasks() {
        let locks = Locks::new(Memory::new());
        let text = with_backend("registry-tests", locks, async {
            registered("registry-d").unwrap_err().to_string()
        });
        let text = text.await;
        assert!(text.contains("with_backend replaces only \"registry-tests\""), "{text}");
        assert_eq!(text.matches("registered").count(), 1, "once that nothing is: {text}");
        let spawned = with_backend("registry-d", Locks::new(Memory::new()), async {
            tokio::spawn(async { registered("registry-d").unwrap_err().to_string() }).await.unwrap()
        });
        let text = spawned.await;
        assert!(text.contains("a task that it spawns with dlock::in_current_scope"), "{text}");
    }

    #[test]
    fn a_name_is_given_once_and_not_empty() {
        register("registry-b", Locks::new(Memory::new())).unwrap();
        for name in ["registry-b", ""] {
            let error = register(name, Locks::new(Memory::new())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        }
        assert_eq!(set_default("registry-nobody").unwrap_err().kind(), ErrorKind::UnknownBackend);
    }

    #[tokio::test]
    async fn the_innermost_override_wins_and_ends_with_its_body() {
        let (a, b) = (Locks::new(Memory::new()), Locks::new(Memory::new()));
        let _held = a.lock("k").acquire().await.unwrap();
        let free =
            async || registered("registry-c").unwrap().lock("k").try_acquire().await.unwrap().is_some();
        with_backend("registry-c", a.clone(), async {
            assert!(!free().await);
            with_backend("registry-c", b.clone(), async {
                assert!(free().await);
                assert!(default_locks().unwrap().lock("other").try_acquire().await.unwrap().is_some());
                let task = tokio::spawn(in_current_scope(async { registered("registry-c").is_ok() }));
                assert!(task.await.unwrap());
                assert!(!tokio::spawn(async { registered("registry-c").is_ok() }).await.unwrap());
            })
            .await;
            assert!(!free().await);
        })
        .await;
        assert!(registered("registry-c").is_err());
    }
}
