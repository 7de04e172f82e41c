use dlock::{Error, distributed_lock};

struct Shelf<const N: usize>;

impl<const N: usize> Shelf<N> {
    #[distributed_lock(key = "shelf_{N}_<sku>")]
    async fn take(&self, sku: &str) -> Result<usize, Error> {
        Ok(sku.len())
    }
}

fn main() {}
