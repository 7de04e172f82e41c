use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a")]
const fn const_fn(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a")]
fn not_async(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a")]
fn future_with_statements_around(id: u64) -> impl Future<Output = Result<u64, Error>> {
    let next = id + 1;
    async move { Ok(next) }
}

#[distributed_lock(key = "a")]
async fn unit_return(id: u64) {
    println!("{id}");
}

#[distributed_lock(key = "a")]
struct Room {
    id: u64,
}

struct Hall;

#[distributed_lock(key = "a")]
impl Hall {
    fn new() -> Self {
        Self
    }
}

trait Desk {
    #[distributed_lock(key = "a")]
    async fn book(&self) -> Result<u64, Error>;
}

fn main() {}
