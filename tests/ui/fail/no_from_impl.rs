use dlock::distributed_lock;

struct AppError;

#[distributed_lock(key = "a")]
async fn book(id: u64) -> Result<u64, AppError> {
    Ok(id)
}

fn main() {}
