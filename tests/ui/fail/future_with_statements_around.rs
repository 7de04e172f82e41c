use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a")]
fn book(id: u64) -> impl Future<Output = Result<u64, Error>> {
    let next = id + 1;
    async move { Ok(next) }
}

fn main() {}
