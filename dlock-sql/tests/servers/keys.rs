//! Keys that a database might take for each other.

use crate::support::{Db, on_both, take};

on_both! {
    async fn keys_that_a_collation_would_confuse_are_different_locks<D: Db>(db: D) {
        let backend = db.backend().await;
        let locks = db.locks().await;
        let longest = "\u{1f512}".repeat(128);
        let keys = [
            "room", "Room", "room ", " room", "r\u{f6}om", "ro\u{308}om", "\u{212b}", "\u{e5}", "a\u{30a}", "ss", "\u{df}",
            "\u{1f512}", "\u{1f511}", "%", "_", "\\", "'", "''", "\"", "`", "\u{200b}", "i", "\u{131}", "I", "\u{130}",
            "'; DROP TABLE dlock; --", "$1", "?", ":key", "null", "0", "0x30", &longest,
        ];
        let mut guards = Vec::new();
        for key in keys {
            guards.push(take(&locks, key).await);
        }
        let mut held: Vec<_> = D::holders(&backend).await.unwrap().into_iter().map(|(key, _)| key.as_str().to_owned()).collect();
        let mut wanted = keys.map(str::to_owned).to_vec();
        held.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(held, wanted);
        for guard in guards {
            let key = guard.key().to_owned();
            assert_eq!(locks.inspect(&key).await.unwrap().unwrap().fence, guard.fence());
            guard.release().await.unwrap();
        }
        assert_eq!(db.held(), 0);
    }
}
