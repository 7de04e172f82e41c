use dlock::{Error, distributed_lock};

#[distributed_lock(key = "")]
async fn empty_key() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", keys = ["a", "b"])]
async fn key_and_keys() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = format!("room_{id}"))]
async fn key_is_a_call(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = {})]
async fn key_is_an_empty_block() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = id)]
async fn key_not_in_quotes(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")]
async fn key_too_long() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock("room_<id>")]
async fn key_without_its_name(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(keys = {})]
async fn keys_are_an_empty_block() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(keys = [])]
async fn keys_are_none() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(keys = "room_<id>")]
async fn keys_are_one_text(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(keys = ["a", format!("room_{id}")])]
async fn keys_with_an_expression(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(keys = [read("a_<id>"), write("b_<id>")])]
async fn keys_with_modes(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(keys = ["a_<id>", "b_<idd>"])]
async fn keys_with_unknown_placeholder(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock]
async fn missing_arguments(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(backend = "memory")]
async fn missing_key(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
