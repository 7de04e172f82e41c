//! How the attribute finds its backend: given, else the override of the calling task, else the registry.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use dlock_core::{Error, ErrorKind, Failure, Locks, Operation, Result};

/// The backends dlock knows by name, and whether this build has them.
const KNOWN: &[(&str, bool)] = &[
    ("memory", true),
    ("mysql", cfg!(feature = "mysql")),
    ("postgres", cfg!(feature = "postgres")),
    ("redis", cfg!(feature = "redis")),
    ("sqlite", cfg!(feature = "sqlite")),
    ("zk", cfg!(feature = "zk")),
];

struct Registry {
    locks: BTreeMap<String, Locks>,
    default: Option<String>,
}

static REGISTRY: RwLock<Registry> = RwLock::new(Registry { locks: BTreeMap::new(), default: None });

tokio::task_local! {
    static OVERRIDES: Vec<(String, Locks)>;
}

fn registry() -> RwLockReadGuard<'static, Registry> {
    REGISTRY.read().unwrap_or_else(PoisonError::into_inner)
}

fn registry_mut() -> RwLockWriteGuard<'static, Registry> {
    REGISTRY.write().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `locks` known under `name` to every `#[distributed_lock(backend = "name")]` of this process. Done once,
/// at start-up. The only registered backend is also the default one.
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
/// [`ErrorKind::InvalidConfig`] when the name is empty or taken: replacing a backend silently would let two halves
/// of a program hold the "same" lock.
pub fn register(name: impl Into<String>, locks: Locks) -> Result<()> {
    let name = name.into();
    let refuse = |what: String| Err(Error::new(Operation::Configure, Failure::invalid_config(what)));
    if name.is_empty() {
        return refuse("a backend cannot be registered under an empty name".into());
    }
    let mut registry = registry_mut();
    if registry.locks.contains_key(&name) {
        return refuse(format!("a backend is registered as {name:?} already; each name is given once"));
    }
    registry.locks.insert(name, locks);
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
    if !registry.locks.contains_key(name) {
        return Err(unknown(name, &registry));
    }
    registry.default = Some(name.to_owned());
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
    registry.locks.get(name).cloned().ok_or_else(|| unknown(name, &registry))
}

/// The default backend: the innermost override, the one set, or the only one registered.
pub(crate) fn default_locks() -> Result<Locks> {
    if let Some(locks) = overridden(|overrides| overrides.last().map(|(_, locks)| locks.clone())) {
        return Ok(locks);
    }
    let registry = registry();
    if let Some(locks) = registry.default.as_ref().and_then(|name| registry.locks.get(name)) {
        return Ok(locks.clone());
    }
    match registry.locks.values().next() {
        Some(locks) if registry.locks.len() == 1 => Ok(locks.clone()),
        Some(_) => Err(no_default(format!(
            "several backends are registered ({}) and none is the default; name one in the attribute, or call \
             dlock::set_default",
            names(&registry)
        ))),
        None => Err(no_default(
            "no backend is registered; call dlock::register(\"name\", locks) at start-up".into(),
        )),
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
    registry.locks.keys().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

fn no_default(what: String) -> Error {
    Error::new(Operation::Configure, Failure::new(ErrorKind::UnknownBackend, what))
}

fn unknown(name: &str, registry: &Registry) -> Error {
    let overrides = overridden(|overrides| {
        Some(overrides.iter().map(|(name, _)| format!("{name:?}")).collect::<Vec<_>>().join(", "))
    });
    let there = match (registry.locks.is_empty(), overrides) {
        (true, None) => String::new(),
        (false, None) => format!("; registered are {}", names(registry)),
        // Most likely a test that replaces another name than the attribute has.
        (_, Some(overrides)) => format!("; with_backend replaces only {overrides} here"),
    };
    let compiled = match KNOWN.iter().find(|(known, _)| *known == name) {
        Some((_, true)) => " (it is compiled in)".to_owned(),
        Some((_, false)) => format!(" (the `{name}` feature of dlock is not compiled in)"),
        None => String::new(),
    };
    let what = format!(
        "nothing is registered as {name:?}{compiled}{there}; call dlock::register({name:?}, locks) at start-up; in a test, \
         wrap the call with dlock::with_backend, and a task that it spawns with dlock::in_current_scope"
    );
    Error::new(Operation::Configure, Failure::new(ErrorKind::UnknownBackend, what))
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
