use dlock::distributed_lock;

#[distributed_lock(key = "report", hold_at_least = "0s")]
async fn for_no_time() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(key = "report", max_hold = "721h")]
async fn for_too_long() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(key = "report", max_hold = 60)]
async fn without_a_unit() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(key = "gpu", permits = 4, hold_at_least = "1m")]
async fn of_a_permit() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(key = "page", hold_at_least = "1m", mode = "read")]
async fn of_a_reader() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(key = "report", lock_at_least_for = "1m")]
async fn as_it_is_called_elsewhere() -> Result<(), dlock::Error> {
    Ok(())
}

fn main() {}
