use dlock::{Error, distributed_lock};

struct Shelf(Vec<u8>);

impl Shelf {
    #[distributed_lock(key = "a", segments = 3)]
    async fn items(&mut self) -> Result<&mut Vec<u8>, Error> {
        Ok(&mut self.0)
    }
}

#[distributed_lock(key = "a", segments = 3)]
async fn chosen<'a>(first: &'a mut u8, other: &mut u8) -> Result<&'a mut u8, Error> {
    *other = *first;
    Ok(first)
}

fn main() {}
