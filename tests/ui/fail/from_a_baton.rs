use dlock::{Baton, Error, distributed_lock, leader, once};

#[distributed_lock(from = baton, on_busy = Ok(()))]
async fn is_never_busy(baton: &Baton) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(requires = ["hand_over", "fair"], from = baton)]
async fn has_no_turn(baton: &Baton) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(from = baton, keys = ["a", "b"])]
async fn is_one_lock(baton: &Baton) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(from = baton, segments = 4, permits = 2)]
async fn is_whole(baton: &Baton) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(from = baton, mode = "read")]
async fn is_held_alone(baton: &Baton) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(baton = baton)]
async fn is_called_otherwise(baton: &Baton) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(from)]
async fn is_not_given(baton: &Baton) -> Result<(), Error> {
    Ok(())
}

#[leader(key = "a", from = baton)]
async fn leads(baton: &Baton) -> Result<(), Error> {
    Ok(())
}

#[once(key = "a", every = "1h", from = baton)]
async fn runs_once(baton: &Baton) -> Result<(), Error> {
    Ok(())
}

fn main() {}
