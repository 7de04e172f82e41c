use dlock::{Error, leader};

#[leader(key = "billing", priority = 61)]
async fn later_than_anybody() -> Result<(), Error> {
    Ok(())
}

#[leader(key = "billing", priority = "first")]
async fn a_priority_in_words() -> Result<(), Error> {
    Ok(())
}

#[leader(key = "billing", term = "term")]
async fn a_term_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[leader(key = "billing_<tenant>", term = tenant)]
async fn a_term_that_hides_an_argument(tenant: &str) -> Result<(), Error> {
    Ok(())
}

#[leader(key = "billing", wait = "10s", permits = 2)]
async fn options_of_locks() -> Result<(), Error> {
    Ok(())
}

#[leader(key = "billing", guard = held, max_hold = "1h", hold_at_least = "1m")]
async fn options_that_have_another_name() -> Result<(), Error> {
    Ok(())
}

#[leader(term = term)]
async fn without_a_key() -> Result<(), Error> {
    Ok(())
}

#[leader(key = "billing_<region>")]
async fn of_a_region_that_is_not_given(tenant: &str) -> Result<(), Error> {
    Ok(())
}

#[leader(key = "billing", lease = "10ms")]
async fn with_a_lease_that_is_too_short() -> Result<(), Error> {
    Ok(())
}

#[leader(key = "billing")]
async fn without_a_result() {}

#[leader(key = "billing")]
fn not_async() -> Result<(), Error> {
    Ok(())
}

fn main() {}
