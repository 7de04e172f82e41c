//! What must never leave the process.

use crate::receiver::Receiver;
use crate::worker::{exported, tour};

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[tokio::test]
async fn no_key_token_or_password_is_exported() {
    let (receiver, url) = Receiver::start().await;
    let canary = "canary4711";
    let said = exported(tour(canary, &url, &[]).await);
    let (bytes, text) = receiver.everything();
    assert!(contains(&bytes, b"room_<mark>_<id>"), "the templates are there");
    // It is a part of all keys, and of a password.
    assert!(!contains(&bytes, canary.as_bytes()));
    assert!(!text.contains(canary));
    let tokens: Vec<_> = said.iter().filter_map(|line| line.strip_prefix("token ")).collect();
    assert!(tokens.len() > 10, "{tokens:?}");
    for token in tokens {
        assert!(!contains(&bytes, token.as_bytes()) && !contains(&bytes, &bytes_of(token)));
        assert!(!text.to_lowercase().contains(token));
    }
}
