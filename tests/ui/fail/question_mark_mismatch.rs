use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a")]
async fn book(id: u64, who: &str) -> Result<u64, Error> {
    let number: u64 = who.parse()?;
    Ok(number + id)
}

fn main() {}
