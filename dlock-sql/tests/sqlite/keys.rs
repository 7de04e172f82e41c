//! Keys are bytes, and nothing in them is special.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::backend::{Renewed, Withdrawal};
use dlock_core::{Claim, Key};

use crate::support::{Site, busy, claim, fence, granted};

/// Keys that differ in what databases like to fold, pad, escape or cut.
fn hostile() -> Vec<String> {
    let parts = [
        "a",
        "A",
        "á",
        "a\u{301}",
        "ä",
        "ß",
        "SS",
        "ı",
        "I",
        "İ",
        " ",
        "\t",
        "\n",
        "\r\n",
        "'",
        "\"",
        "`",
        "\\",
        "%",
        "_",
        "?1",
        ":x",
        "$1",
        "@p",
        ";",
        "--",
        "/*",
        "../",
        "/",
        "\u{1}",
        "\u{7f}",
        "\u{200b}",
        "\u{feff}",
        "🔒",
        "👩‍👩‍👧",
        "0",
        "00",
        "1e1",
        "NULL",
        "x''",
        "{}",
        "[\"\"]",
        "room_7",
        "'; DROP TABLE dlock; --",
    ];
    let mut keys = HashSet::new();
    for one in parts {
        keys.insert(one.to_owned());
        for two in parts {
            keys.insert(format!("{one}{two}"));
            keys.insert(format!("{two}{one}{two}"));
        }
    }
    keys.insert("x".repeat(Key::MAX_LEN));
    keys.insert(format!("{}y", "x".repeat(Key::MAX_LEN - 1)));
    let mut keys: Vec<String> = keys.into_iter().filter(|key| Key::new(key).is_ok()).collect();
    keys.sort();
    keys.truncate(2_000);
    keys
}

#[tokio::test]
async fn two_thousand_hostile_keys_are_two_thousand_locks() {
    let site = Site::new();
    let backend = site.backend().await;
    let keys = hostile();
    assert_eq!(keys.len(), 2_000);
    let lease = Duration::from_secs(60);
    let mut claims = Vec::new();
    for key in &keys {
        let mut mine = claim(&backend, key, lease).await;
        let grant = granted(mine.attempt().await.unwrap());
        claims.push((mine, fence(grant)));
    }
    assert_eq!(site.held().await, 2_000);
    for (key, (mine, fence)) in keys.iter().zip(&mut claims) {
        let mut other = claim(&backend, key, lease).await;
        let answer = busy(other.attempt().await.unwrap());
        assert_eq!(answer.holder.unwrap().fence, Some(*fence), "{key:?}");
        assert_eq!(mine.renew().await.unwrap(), Renewed::Extended, "{key:?}");
        assert_eq!(mine.withdraw().await.unwrap(), Withdrawal::REMOVED, "{key:?}");
    }
    assert_eq!(site.held().await, 0);
}
