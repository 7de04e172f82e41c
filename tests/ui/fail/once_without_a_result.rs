use dlock::once;

struct NoPaper;

#[once(key = "report", every = "1h")]
async fn without_a_result() -> u32 {
    1
}

#[once(key = "report", every = "1h")]
async fn with_an_error_that_takes_none_of_dlock() -> Result<(), NoPaper> {
    Ok(())
}

fn main() {}
