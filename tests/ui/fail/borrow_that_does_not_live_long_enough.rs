use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a")]
async fn book(name: String) -> Result<&'static str, Error> {
    Ok(name.as_str())
}

fn main() {}
