//! The SQL of the documentation, on each database that it is meant for.

use crate::support::{mysql, on_each, postgres};

const GUARANTEES: &str = include_str!("../../../docs/guarantees.md");
const SERVERS: &str = include_str!("../../../docs/backends/sql.md");

/// The blocks of SQL in a page.
fn blocks(page: &str) -> Vec<&str> {
    let blocks: Vec<&str> =
        page.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert!(!blocks.is_empty());
    blocks
}

on_each! { [postgres Postgres, mysql MySql, sqlite Sqlite] {
    async fn what_guarantees_md_says_of_fences_is_sql(db) {
        db.run("CREATE TABLE stock (sku bigint PRIMARY KEY, amount bigint NOT NULL, fence bigint NOT NULL);
            INSERT INTO stock VALUES (7, 60, 5)").await;
        for (fence, amount) in [(6, 59), (5, 0), (6, 58)] {
            for block in blocks(GUARANTEES) {
                let block = block.replace(":sku", "7").replace(":fence", &fence.to_string());
                db.run(&block.replace(":amount", &amount.to_string())).await;
            }
        }
        assert_eq!(db.number("SELECT count(*) FROM stock WHERE amount = 58 AND fence = 6").await, 1);
    }
}}

/// The statements after this line, up to the next such line.
fn meant_for(server: &str) -> Vec<String> {
    let mut all = Vec::new();
    for block in blocks(SERVERS) {
        let mut is_meant = false;
        for line in block.lines() {
            match line.strip_prefix("-- ") {
                Some(comment) => is_meant = comment.starts_with(server),
                None if is_meant => all.push(line.to_owned()),
                None => {}
            }
        }
    }
    assert!(!all.is_empty());
    all
}

#[tokio::test]
async fn what_sql_md_says_to_administrators_of_postgresql_is_sql() {
    let db = postgres().await;
    dlock_sql::PostgresOptions::from_pool(&db.pool).migrate().await.unwrap();
    db.run("CREATE ROLE app").await;
    db.run(&meant_for("PostgreSQL").join("\n")).await;
}

#[tokio::test]
async fn what_sql_md_says_to_administrators_of_mariadb_is_sql() {
    let db = mysql().await;
    db.run("CREATE DATABASE shop; CREATE USER 'app'@'%'").await;
    let url = db.server.url().replace("/locks", "/shop");
    dlock_sql::MysqlOptions::from_url(&url).unwrap().migrate().await.unwrap();
    db.run(&meant_for("MariaDB").join("\n")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_clients_of_postgresql_take_and_respect_the_same_locks() {
    use dlock_core::{ErrorKind, Locks, Wait};

    let db = postgres().await;
    dlock_sql::PostgresOptions::from_pool(&db.pool).migrate().await.unwrap();
    db.run("CREATE ROLE app").await;
    db.run(&meant_for("PostgreSQL").join("\n")).await;
    let locks = Locks::new(dlock_sql::Postgres::connect(&db.server.url()).await.unwrap());
    // psql is a client of another library, and each call of it a session of its own.
    let psql = |call: &str| db.server.query(&format!("SELECT dlock_{call}"));
    let mine = "'\\x000102030405060708090a0b0c0d0e0f'";
    let take = format!("take('a', {mine}, '30 seconds', 'report.py')");
    let guard = locks.lock("a").acquire().await.unwrap();
    assert_eq!(psql(&take), "", "somebody has it");
    let last = guard.fence().unwrap().get();
    guard.release().await.unwrap();
    let fence: u64 = psql(&take).parse().unwrap();
    assert!(fence > last);
    assert_eq!(psql(&take), fence.to_string(), "asked again, it is the same grant");
    let error = locks.lock("a").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!(locks.inspect("a").await.unwrap().unwrap().fence.unwrap().get(), fence);
    assert_eq!(psql(&format!("renew('a', {mine}, '30 seconds')")), "t");
    let waiting = tokio::spawn({
        let lock = locks.lock("a");
        async move { lock.acquire().await.unwrap() }
    });
    assert_eq!(psql(&format!("release('a', {mine})")), "t");
    let guard = waiting.await.unwrap();
    assert!(guard.fence().unwrap().get() > fence);
    assert_eq!(psql(&format!("renew('a', {mine}, '30 seconds')")), "f", "it is lost");
    assert_eq!(psql(&format!("release('a', {mine})")), "f");
    guard.check().unwrap();
    assert!(locks.force_release("a").await.unwrap());
    guard.lost().await;
}
