use dlock::{Error, distributed_lock};

#[distributed_lock(key = "room_{}")]
async fn empty_placeholder(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "room_{id:04}")]
async fn formatted_placeholder(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "room_<self.id>")]
async fn self_without_receiver(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "room_< id >")]
async fn spaces_in_placeholder(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "room_id>")]
async fn stray_bracket(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "<id><who>")]
async fn touching_placeholders(id: u64, who: &str) -> Result<u64, Error> {
    Ok(id + who.len() as u64)
}

#[distributed_lock(key = "room_<id")]
async fn unclosed_placeholder(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "room_<idd>")]
async fn unknown_placeholder(id: u64, who: &str) -> Result<u64, Error> {
    Ok(id + who.len() as u64)
}

#[distributed_lock(key = "room_<room>")]
async fn unknown_placeholder_far_from_any(id: u64, who: &str) -> Result<u64, Error> {
    Ok(id + who.len() as u64)
}

#[distributed_lock(key = "room_<id>")]
async fn unknown_placeholder_without_arguments() -> Result<(), Error> {
    Ok(())
}

struct Shelf<const N: usize>;

impl<const N: usize> Shelf<N> {
    #[distributed_lock(key = "shelf_{N}_<sku>")]
    async fn take(&self, sku: &str) -> Result<usize, Error> {
        Ok(sku.len())
    }
}

fn main() {}
