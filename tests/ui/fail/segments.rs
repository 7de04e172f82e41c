use dlock::{Error, distributed_lock};

#[distributed_lock(key = "a", segments = "20")]
async fn segments_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(keys = ["a", "b"], segments = 3)]
async fn segments_of_several_keys() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", segments = 0)]
async fn segments_of_zero() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", segments = 3, on_unavailable = "run")]
async fn segments_without_the_lock() -> Result<(), Error> {
    Ok(())
}

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
