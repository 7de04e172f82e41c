// `forbid` where generated code must not even switch a lint off.
#![forbid(
    dead_code,
    let_underscore_drop,
    non_ascii_idents,
    redundant_lifetimes,
    single_use_lifetimes,
    trivial_casts,
    trivial_numeric_casts,
    unreachable_code,
    unreachable_pub,
    unsafe_code,
    unused_assignments,
    unused_braces,
    unused_import_braces,
    unused_lifetimes,
    unused_must_use,
    unused_mut,
    unused_parens,
    unused_qualifications,
    unused_results,
    unused_unsafe,
    unused_variables,
    variant_size_differences
)]
#![forbid(rust_2018_idioms, rust_2021_compatibility, rust_2024_compatibility, elided_lifetimes_in_paths)]
#![deny(warnings, missing_docs, missing_debug_implementations, tail_expr_drop_order, if_let_rescope)]
//! Documented.

use dlock::{Error, Locks, Memory, distributed_lock};

#[distributed_lock(key = "short_<id>", backend = "memory")]
async fn short(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = { format!("{first} {second}") }, locks = locks, guard = held, on_busy = Ok(second), wait = "no")]
async fn long<'a>(first: &str, second: &'a str, locks: &Locks) -> Result<&'a str, Error> {
    if first.is_empty() {
        return Ok(second);
    }
    for _ in 0..2 {
        held.check()?;
    }
    Ok(second)
}

#[distributed_lock(key = "<a>/<b>", backend = "memory", on_lost = "continue")]
async fn patterns((a, b): (u8, u8), mut rest: Vec<u8>, _unused: u8, _: u8) -> Result<Vec<u8>, Error> {
    rest.push(a + b);
    Ok(rest)
}

#[distributed_lock(key = "<a>/<b>", segments = 2, backend = "memory", on_busy = |error| Err(error), wait = "no")]
async fn segmented((a, b): (u8, u8), mut rest: Vec<u8>, _unused: u8, _: u8) -> Result<Vec<u8>, Error> {
    rest.push(a + b);
    Ok(rest.clone())
}

fn main() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it starts");
    let locks = Locks::new(Memory::new());
    runtime.block_on(dlock::with_backend("memory", locks.clone(), async {
        assert_eq!(short(1).await?, 1);
        assert_eq!(long("a", "b", &locks).await?, "b");
        assert_eq!(patterns((1, 2), vec![], 0, 0).await?, [3]);
        assert_eq!(segmented((1, 2), vec![], 0, 0).await?, [3]);
        Ok(())
    }))
}
