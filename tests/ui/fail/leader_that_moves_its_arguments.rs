use dlock::{Error, leader};

#[leader(key = "billing")]
async fn bill(accounts: Vec<String>) -> Result<(), Error> {
    for account in accounts {
        drop(account);
    }
    Ok(())
}

fn main() {}
