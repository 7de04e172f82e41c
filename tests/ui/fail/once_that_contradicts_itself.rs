use dlock::{Error, once};

#[once(key = "report")]
async fn without_a_window() -> Result<(), Error> {
    Ok(())
}

#[once(key = "report", keep = "25h")]
async fn the_same_key_for_each_firing() -> Result<(), Error> {
    Ok(())
}

#[once(key = "report", every = "1h", keep = "25h")]
async fn two_windows() -> Result<(), Error> {
    Ok(())
}

#[once(key = "report", every = "0s")]
async fn no_time_at_all() -> Result<(), Error> {
    Ok(())
}

#[once(key = "report", every = "999999h")]
async fn longer_than_anything() -> Result<(), Error> {
    Ok(())
}

#[once(key = "invoice:<fire_at>", keep = "25h", on_crash = "skip", lease = "10s")]
async fn closed_by_a_crash_for_too_long(fire_at: u64) -> Result<(), Error> {
    Ok(())
}

#[once(key = "report", every = "1h", on_crash = "retry", permits = 2, mode = "read")]
async fn options_of_others() -> Result<(), Error> {
    Ok(())
}

#[once(key = "report", every = "1h")]
async fn without_a_result() {}

#[once(key = "report", every = "1h")]
fn boxed() -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
    Box::pin(async move { Ok(()) })
}

fn main() {}
