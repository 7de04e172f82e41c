use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", wait = Duration::from_secs(5))]
async fn duration_is_an_expression() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = {})]
async fn duration_is_an_empty_block() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "soon")]
async fn duration_is_no_duration() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = 30)]
async fn duration_not_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "30sec")]
async fn duration_with_unknown_unit() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "5")]
async fn duration_without_unit() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "10ms")]
async fn lease_out_of_bounds() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "0s")]
async fn wait_of_zero() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "9999999999999999999999h")]
async fn wait_too_long() -> Result<(), Error> {
    Ok(())
}

fn main() {}
