use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", locks = locks, backend = "memory")]
async fn backend_and_locks(locks: &dlock::Locks) -> Result<usize, Error> {
    Ok(locks.backend().len())
}

#[distributed_lock(key = "a", backend = memory)]
async fn backend_not_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", crate = "::dlock")]
async fn crate_path_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "1s", key = "b")]
async fn duplicate_option() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", backend = "")]
async fn empty_backend() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", requires = [fencing])]
async fn guarantee_not_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", guard = id)]
async fn guard_hides_argument(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a", guard = "held")]
async fn guard_is_no_name() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a" wait = "1s")]
async fn missing_comma() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait, lease =, guard = held)]
async fn missing_value(id: u64) -> Result<u64, Error> {
    Ok(held.fence().map_or(id, |fence| fence.get()))
}

#[distributed_lock(key = "a", wait = "forever", on_busy = Ok(()))]
async fn on_busy_with_endless_wait() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "no", on_busy = |error, again| Err(error))]
async fn on_busy_with_two_arguments() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "no", on_busy = async |error| Err(error))]
async fn on_busy_that_awaits() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_lost = abort)]
async fn on_lost_not_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", ttl = "30s")]
async fn option_named_as_elsewhere() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", recheck = "false")]
async fn recheck_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", crate = dlock)]
async fn relative_crate_path() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", requires = "fenceing")]
async fn unknown_guarantee() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_lost = "stop")]
async fn unknown_on_lost() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", on_unavailable = "ignore")]
async fn unknown_on_unavailable() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", bakend = "memory")]
async fn unknown_option() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", retries = 3)]
async fn unknown_option_far_from_any() -> Result<(), Error> {
    Ok(())
}

fn main() {}
