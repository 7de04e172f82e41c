//! A quorum's URL is answered with the name of the feature, where that is off.

use dlock::{Error, ErrorKind};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let error = dlock::connect("quorum:memory:|redis://:hunter2@h|memory:").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let text = error.to_string();
    assert!(text.contains("the feature `quorum`") && !text.contains("hunter2"), "{text}");
    Ok(())
}
