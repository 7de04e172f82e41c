use dlock::distributed_lock;

#[distributed_lock(key = "gpu", take = 2)]
async fn takes_of_nothing() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(key = "gpu", permits = 4, take = 5)]
async fn takes_more_than_there_are() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(key = "gpu", permits = 0)]
async fn has_no_permits() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(key = "gpu", permits = 4, take = <>)]
async fn takes_no_argument() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(keys = ["a", "b"], permits = 4)]
async fn has_permits_of_several_keys() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(key = "page", mode = "shared")]
async fn has_another_mode() -> Result<(), dlock::Error> {
    Ok(())
}

#[distributed_lock(key = "page", segments = 4, mode = "read")]
async fn reads_a_segment() -> Result<(), dlock::Error> {
    Ok(())
}

fn main() {}
