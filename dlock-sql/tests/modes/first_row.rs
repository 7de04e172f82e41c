//! The row of a key that is locked for the first time.

use std::time::Duration;

use dlock_core::Locks;
use dlock_sql::{MysqlOptions, MysqlRowLocks};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

/// Its key in the table.
const ROW: &[u8] = b"\xFEa";

async fn run(on: &mut MySqlConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(on).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_makes_a_row_that_another_has_made_and_locked_meanwhile_learns_that_it_is_busy() {
    let db = crate::support::mysql().await;
    let options = MysqlOptions::from_url(&format!("{}?migrate=true", db.server.url())).unwrap();
    let options = options.with_connect_timeout(Duration::from_secs(20));
    let locks = Locks::new(MysqlRowLocks::with_options(options).await.unwrap());
    // Who makes a row waits at a door.
    let mut other = MySqlConnection::connect(&db.server.url()).await.unwrap();
    let trigger = "CREATE TRIGGER door BEFORE INSERT ON dlock FOR EACH ROW SET @door = GET_LOCK('door', 60)";
    run(&mut other, trigger).await;
    run(&mut other, "DO GET_LOCK('door', 0)").await;

    let lock = locks.lock("a").with_request_timeout(Duration::from_secs(5));
    let asking = tokio::spawn(async move { lock.try_acquire().await.map(|guard| guard.is_some()) });
    let at_the_door = "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock'";
    while db.number(at_the_door).await == 0 {
        assert!(!asking.is_finished(), "the row is made without passing the door");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The door is this session's, which so goes through it.
    let make = "INSERT INTO dlock (`key`, fence, expires, holder) VALUES (?, 0, 9223372036854775807, X'')";
    sqlx::query(make).bind(ROW).execute(&mut other).await.unwrap();
    run(&mut other, "START TRANSACTION").await;
    let lock = "SELECT 1 FROM dlock WHERE `key` = ? FOR UPDATE";
    sqlx::query(lock).bind(ROW).execute(&mut other).await.unwrap();
    run(&mut other, "DO RELEASE_ALL_LOCKS()").await;

    assert!(!asking.await.unwrap().expect("the server answers"), "two have the row");
    run(&mut other, "COMMIT").await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}
