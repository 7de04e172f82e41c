use dlock::{Error, distributed_lock};

#[distributed_lock(keys = [read("a_<id>"), write("b_<id>")])]
async fn copy(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
