//! Rows that are deleted, and rows whose fences have come to their end.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Mysql, MysqlRowLocks, MysqlSessions, Postgres, PostgresRowLocks, PostgresSessions};

macro_rules! pruned {
    ($($name:ident: $server:ident, $leases:ident, $kept:ident, $migrate:literal, $first:literal, $rows:literal;)*) => {$(
        mod $name {
            use super::*;

            async fn take(locks: &Locks, key: &str) -> dlock_core::Guard {
                locks.lock(key).acquire().await.unwrap_or_else(|error| panic!("{error}"))
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn pruning_deletes_what_is_free_and_hides_nobody() {
                let server = $server::start().unwrap();
                let url = format!("{}{}", server.url(), $migrate);
                let (leases, locks) =
                    ($leases::connect(&url).await.unwrap(), Locks::new($kept::connect(&url).await.unwrap()));
                let (held, gone) = (take(&locks, "held").await, take(&locks, "gone").await);
                let last = gone.fence();
                gone.release().await.unwrap();
                assert_eq!(leases.prune(Duration::ZERO).await.unwrap(), 0, "they were used a moment ago");
                server.query(concat!("UPDATE dlock SET fence = fence - 3600000000 WHERE fence > 3600000000 AND ", $first));
                assert_eq!(leases.prune(Duration::ZERO).await.unwrap(), $rows);
                let others = Locks::new($kept::connect(&url).await.unwrap());
                let seen = others.inspect("held").await.unwrap().unwrap();
                assert_eq!(seen.pid, Some(std::process::id()));
                let listed = others.holders().await.unwrap();
                assert_eq!(listed.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["held"]);
                assert_eq!(listed[0].1.pid, Some(std::process::id()));
                let error = others.lock("held").with_wait(Wait::No).acquire().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                let again = take(&others, "gone").await;
                assert!(again.fence() > last.map(|last| dlock_core::Fence::new(last.get() - 3_600_000_000)));
                again.release().await.unwrap();
                held.release().await.unwrap();
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_fence_at_its_end_is_an_error_that_says_what_to_mend_and_keeps_nothing() {
                let server = $server::start().unwrap();
                let url = format!("{}{}", server.url(), $migrate);
                let (ours, theirs) =
                    (Locks::new($kept::connect(&url).await.unwrap()), Locks::new($kept::connect(&url).await.unwrap()));
                take(&ours, "a").await.release().await.unwrap();
                server.query(concat!("UPDATE dlock SET fence = 9223372036854775807 WHERE fence > 3600000000 AND ", $first));
                let beside = take(&ours, "b").await;
                for locks in [&ours, &theirs, &ours] {
                    let error = locks.lock("a").with_wait(Wait::No).acquire().await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
                    assert!(error.to_string().contains("end of its numbers"), "{error}");
                }
                assert_eq!(ours.inspect("a").await.unwrap(), None);
                beside.check().unwrap();
                beside.release().await.unwrap();
            }
        }
    )*};
}

pruned! {
    postgres_session: PostgresServer, Postgres, PostgresSessions, "&migrate=true", "key >= decode('ff', 'hex')", 2;
    postgres_row: PostgresServer, Postgres, PostgresRowLocks, "&migrate=true", "key >= decode('ff', 'hex')", 3;
    mysql_session: MysqlServer, Mysql, MysqlSessions, "?migrate=true", "`key` >= X'FF'", 2;
    mysql_row: MysqlServer, Mysql, MysqlRowLocks, "?migrate=true", "`key` >= X'FF'", 3;
}
