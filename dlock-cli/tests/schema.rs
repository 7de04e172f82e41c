//! The statements that are printed for an administrator make the table that `migrate` makes.

mod support;

use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;
use support::Store;

/// What is printed without a URL.
fn printed(store: &Store, arguments: &[&str]) -> String {
    let arguments: Vec<_> = ["schema"].iter().chain(arguments).copied().collect();
    let done = store.plain(&arguments).done();
    assert_eq!(done.code, 0, "{}", done.err);
    done.out
}

/// `migrate` leaves the table alone that the statements made, and makes the one of another name.
fn is_as_migrated(by_hand: &str, other: &str) {
    let store = Store::at(by_hand);
    let found = store.dlock(["migrate"]).done();
    assert!(found.code == 0 && found.out.contains("nothing was changed"), "{}{}", found.out, found.err);
    assert_eq!(store.run("k", &[], "true").done().code, 0);
    let store = Store::at(other);
    let missing = store.dlock(["ls"]).done();
    assert!(missing.code == 64 && missing.err.contains("run `dlock migrate`"), "{}", missing.err);
    for made in [true, false] {
        let done = store.dlock(["--json", "migrate"]).done();
        assert_eq!((done.code, &done.json()["made"]), (0, &made.into()), "{}", done.err);
    }
    assert_eq!(store.run("k", &[], "true").done().code, 0);
}

#[test]
fn an_administrator_makes_the_table_of_postgresql_and_its_functions() {
    let (server, store) = (PostgresServer::start().unwrap(), Store::new());
    for _ in 0..2 {
        server.query(&printed(&store, &["postgres"]));
        server.query(&printed(&store, &["postgres", "--functions"]));
    }
    is_as_migrated(&server.url(), &format!("{}&table=public.other&mode=session", server.url()));
    let columns = |table: &str| {
        server.query(&format!(
            "SELECT string_agg(concat_ws(' ', column_name, data_type, is_nullable, column_default), ', ' \
             ORDER BY ordinal_position) FROM information_schema.columns WHERE table_name = '{table}'"
        ))
    };
    assert_eq!(columns("dlock"), columns("other"));
    let take = format!("SELECT dlock_take('k', '\\x{}', '30 seconds', 'a script')", "ab".repeat(16));
    assert!(server.query(&take).parse::<u64>().unwrap() > 0);
    assert!(Store::at(&server.url()).dlock(["inspect", "k"]).done().out.contains("fence"));
}

#[test]
fn an_administrator_makes_the_table_of_mariadb_and_its_procedures() {
    let (server, store) = (MysqlServer::start().unwrap(), Store::new());
    let run = |arguments: &[&str]| {
        std::fs::write(store.path("script.sql"), printed(&store, arguments)).unwrap();
        server.query(&format!("source {}", store.path("script.sql").display()));
    };
    for database in ["mysql", "mariadb"] {
        run(&[database, "--table", "locks.dlock"]);
        run(&[database, "--functions"]);
    }
    is_as_migrated(&server.url(), &format!("{}?table=other", server.url()));
    let made = |table: &str| {
        server
            .query(&format!("SHOW CREATE TABLE locks.{table}"))
            .replace(&format!("`{table}`"), "")
            .replacen(table, "", 1)
    };
    assert_eq!(made("dlock"), made("other"));
    let take = format!("CALL dlock_take('k', X'{}', 30000, 'a script')", "ab".repeat(16));
    assert!(server.query(&take).parse::<u64>().unwrap() > 0);
}

#[test]
fn an_administrator_makes_the_table_of_sqlite() {
    let store = Store::new();
    let script = printed(&store, &["sqlite", "--table", "by_hand"]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut file = SqliteConnection::connect(store.url()).await.unwrap();
        for _ in 0..2 {
            sqlx::raw_sql(sqlx::AssertSqlSafe(script.clone())).execute(&mut file).await.unwrap();
        }
        file.close().await.unwrap();
    });
    is_as_migrated(&format!("{}?table=by_hand", store.url()), &format!("{}?table=other", store.url()));
}

#[test]
fn what_has_no_table_is_said_to_need_none() {
    let (server, store) = (RedisServer::start().unwrap(), Store::new());
    let done = Store::at(&server.url()).dlock(["migrate"]).done();
    assert_eq!(
        (done.code, done.out.as_str()),
        (0, "redis needs no table; nothing was changed\n"),
        "{}",
        done.err
    );
    for (arguments, says) in [
        (&["schema", "redis"][..], "possible values: postgres, mysql, mariadb, sqlite"),
        (&["schema", "sqlite", "--functions"], "leave out --functions"),
        (&["schema", "postgres", "--table", "a; DROP"], "table name"),
        (&["--locks", "quorum:redis://a|redis://b|redis://c", "migrate"], "the URL of each node by itself"),
    ] {
        let refused = store.plain(arguments).done();
        assert_eq!(refused.code, 64, "{}", refused.err);
        assert!(refused.err.contains(says), "{}", refused.err);
    }
}
