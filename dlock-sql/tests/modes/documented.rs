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
