//! The SQL of the documentation, on each database that it is meant for.

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_sql::{MysqlOptions, PostgresOptions, SqliteOptions};
use sea_orm::ConnectionTrait;

use crate::support::{mysql, on_each, postgres};

const GUARANTEES: &str = include_str!("../../../docs/guarantees.md");
const WITHOUT_A_LOCK: &str = include_str!("../../../docs/which-backend.md");
const SERVERS: &str = include_str!("../../../docs/backends/sql.md");
const TABLES: &str = include_str!("../../../docs/backends/sql-schema.md");

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

    async fn what_which_backend_md_does_without_a_lock_is_sql(db) {
        db.run("CREATE TABLE stock (sku bigint, amount bigint); INSERT INTO stock VALUES (7, 1);
            CREATE TABLE seat (id bigint, guest bigint); INSERT INTO seat VALUES (3, NULL);
            CREATE TABLE price (sku bigint, amount bigint, as_of bigint); INSERT INTO price VALUES (7, 0, 0)").await;
        // Two come at the same time, and the second one has older data.
        for (guest, as_of) in [("1", "705"), ("2", "700")] {
            for block in blocks(WITHOUT_A_LOCK) {
                let block = block.replace(":sku", "7").replace(":seat", "3").replace(":amount", guest);
                db.run(&block.replace(":guest", guest).replace(":as_of", as_of)).await;
            }
        }
        assert_eq!(db.number("SELECT amount FROM stock").await, 0);
        assert_eq!(db.number("SELECT guest FROM seat").await, 1);
        assert_eq!(db.number("SELECT count(*) FROM price WHERE amount = 1 AND as_of = 705").await, 1);
    }
}}

#[test]
fn the_page_for_administrators_has_the_scripts_that_make_the_tables() {
    let postgres = PostgresOptions::from_url("postgres://localhost").unwrap();
    let mysql = MysqlOptions::from_url("mysql://localhost").unwrap();
    let scripts = [postgres.schema(), mysql.schema(), SqliteOptions::new("locks.db").schema()];
    assert_eq!(blocks(TABLES), scripts);
}

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

/// The statements that stand in the middle of a line, in backticks.
fn inline<'a>(page: &'a str, begin: &str) -> Vec<&'a str> {
    // Every second part is between two of them.
    let found: Vec<&str> = page
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|code| code.starts_with(begin) && *code != begin.trim_end())
        .collect();
    assert!(!found.is_empty(), "{begin}");
    found
}

#[tokio::test]
async fn what_sql_md_says_to_administrators_of_postgresql_is_sql() {
    let db = postgres().await;
    PostgresOptions::from_pool(&db.pool).migrate().await.unwrap();
    db.run("CREATE ROLE app").await;
    db.run(&meant_for("PostgreSQL").join("\n")).await;
    for statement in inline(SERVERS, "ALTER TABLE ") {
        db.run(statement).await;
    }
}

/// The parameters of the calls in the table, and what of it is handed over.
const MINE: &str = "07070707070707070707070707070707";
const BATON: &str = "f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8f8";

/// In the order of the table: take, renew, hand over, take over, release.
#[tokio::test]
async fn the_calls_in_sql_md_are_those_of_other_clients_of_postgresql() {
    let db = postgres().await;
    let options = PostgresOptions::from_pool(&db.pool);
    options.migrate().await.unwrap();
    db.run(&options.functions()).await;
    let answers: Vec<_> = inline(SERVERS, "SELECT dlock_");
    let columns = ["dlock_take", "dlock_renew", "dlock_hand_over", "dlock_take_over", "dlock_release"];
    assert_eq!(answers.len(), columns.len());
    for (call, column) in answers.iter().zip(columns) {
        let call = call.replace("$1", &format!("'\\x{MINE}'::bytea")).replace("$2", &format!("'{BATON}'"));
        // Of a fence, a truth or a token.
        let answer = format!(
            "SELECT CASE coalesce({column}::text, 'false') WHEN 'false' THEN 0 ELSE 1 END::int8 FROM ({call}) answer"
        );
        assert_eq!(db.number(&answer).await, 1, "{call}");
    }
}

#[tokio::test]
async fn the_calls_in_sql_md_are_those_of_other_clients_of_mariadb() {
    let db = mysql().await;
    let options = MysqlOptions::from_url(&db.server.url()).unwrap();
    options.migrate().await.unwrap();
    for statement in options.procedures() {
        db.run(&statement).await;
    }
    let answers: Vec<_> = inline(SERVERS, "CALL dlock_")
        .into_iter()
        .map(|call| {
            let batons = usize::from(call.contains("take_over"));
            let call = call.replacen('?', &format!("'{BATON}'"), batons);
            db.server.query(&call.replace('?', &format!("X'{MINE}'")))
        })
        .collect();
    let [taken, renewed, baton, taken_over, released] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!([&**renewed, &**baton, &**released], ["1", BATON, "1"]);
    assert!(taken_over.parse::<u64>().unwrap() > taken.parse().unwrap(), "{answers:?}");
}

#[tokio::test]
async fn what_sql_md_says_to_administrators_of_mariadb_is_sql() {
    let db = mysql().await;
    db.run("CREATE DATABASE shop; CREATE USER 'app'@'%'").await;
    let url = db.server.url().replace("/locks", "/shop");
    MysqlOptions::from_url(&url).unwrap().migrate().await.unwrap();
    db.run(&format!("USE shop; {}", meant_for("MariaDB").join("\n"))).await;
}

/// A client that is not dlock, by the functions that dlock has for it: what they answer, as a number.
trait OtherClient {
    async fn take(&mut self, key: &str, token: u8) -> Option<u64>;
    async fn renew(&mut self, key: &str, token: u8) -> bool;
    async fn release(&mut self, key: &str, token: u8) -> bool;
    /// The token of the baton.
    async fn hand_over(&mut self, key: &str, token: u8) -> Option<String>;
    async fn take_over(&mut self, key: &str, baton: &str, token: u8) -> Option<u64>;
}

/// It takes the same locks, and both sides respect each other.
async fn they_take_and_respect_the_same_locks(locks: Locks, mut other: impl OtherClient) {
    let guard = locks.lock("a").acquire().await.unwrap();
    assert_eq!(other.take("a", 1).await, None, "somebody has it");
    let last = guard.fence().unwrap().get();
    guard.release().await.unwrap();
    let fence = other.take("a", 1).await.unwrap();
    assert!(fence > last);
    assert_eq!(other.take("a", 1).await, Some(fence), "asked again, it is the same grant");
    assert_eq!(other.take("a", 2).await, None, "another acquire is another one");
    let error = locks.lock("a").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let holder = locks.inspect("a").await.unwrap().unwrap();
    assert_eq!(holder.fence.unwrap().get(), fence);
    assert!(other.renew("a", 1).await && !other.renew("a", 2).await && !other.release("a", 2).await);
    let waiting = tokio::spawn({
        let lock = locks.lock("a");
        async move { lock.acquire().await.unwrap() }
    });
    assert!(other.release("a", 1).await);
    let guard = waiting.await.unwrap();
    assert!(guard.fence().unwrap().get() > fence);
    assert!(!other.renew("a", 1).await && !other.release("a", 1).await, "it is lost");
    guard.check().unwrap();
    assert!(locks.force_release("a").await.unwrap());
    guard.lost().await;
    let first = other.take("never locked before", 3).await.unwrap();
    assert!(first > 0);
    assert_eq!(locks.inspect("never locked before").await.unwrap().unwrap().fence.unwrap().get(), first);
    assert_eq!(other.take("", 4).await, None, "no lock has this key");
    they_give_batons_and_take_them_over(&locks, &mut other).await;
}

/// Each side takes over what the other has handed over.
async fn they_give_batons_and_take_them_over(locks: &Locks, other: &mut impl OtherClient) {
    let guard = locks.lock("b").acquire().await.unwrap();
    let baton = guard.hand_over().await.unwrap();
    let text = baton.to_text();
    let [_, _, _, until, _, token, _] = text.splitn(7, ':').collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert_eq!(other.take_over("b", &"0".repeat(32), 1).await, None, "it has another token");
    let fence = other.take_over("b", token, 1).await.unwrap();
    assert!(fence > guard.fence().unwrap().get());
    assert_eq!(other.take_over("b", token, 1).await, Some(fence), "asked again, it is the same grant");
    assert_eq!(other.take_over("b", token, 2).await, None, "it is taken over once");
    assert_eq!(locks.take_over(&baton).await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(other.renew("b", 1).await);

    assert_eq!(other.hand_over("b", 2).await, None, "another one has it");
    let token = other.hand_over("b", 1).await.unwrap();
    assert_eq!(other.hand_over("b", 1).await.as_ref(), Some(&token), "asked again, it is the same baton");
    assert!(!other.renew("b", 1).await && !other.release("b", 1).await, "it is handed over");
    assert!(other.take("b", 3).await.is_none(), "nobody else gets it");
    let holder = locks.inspect("b").await.unwrap().unwrap();
    assert!(holder.left_behind && holder.fence.unwrap().get() == fence, "{holder:?}");
    let baton = format!("dlock-baton:1:{}:{until}:{fence}:{token}:b", baton.backend());
    let guard = locks.take_over(&baton.parse().unwrap()).await.unwrap();
    assert!(guard.fence().unwrap().get() > fence);
    assert_eq!(other.hand_over("b", 1).await, None, "it was lost before");
    guard.release().await.unwrap();
    for key in ["b", "never locked either"] {
        assert_eq!(other.take_over(key, &token, 1).await, None, "it makes no lock");
        assert_eq!(other.hand_over(key, 1).await, None, "nobody has it");
    }
}

struct TokioPostgres(tokio_postgres::Client);

impl TokioPostgres {
    async fn is(&self, call: &str, key: &str, token: u8) -> bool {
        let row = self
            .0
            .query_one(&format!("SELECT dlock_{call}"), &[&key, &[token; 16].as_slice()])
            .await
            .unwrap();
        row.get(0)
    }
}

impl OtherClient for TokioPostgres {
    async fn take(&mut self, key: &str, token: u8) -> Option<u64> {
        let take = "SELECT dlock_take($1, $2, '30 seconds', 'another client')";
        let row = self.0.query_one(take, &[&key, &[token; 16].as_slice()]).await.unwrap();
        row.get::<_, Option<i64>>(0).map(i64::unsigned_abs)
    }

    async fn renew(&mut self, key: &str, token: u8) -> bool {
        self.is("renew($1, $2, '30 seconds')", key, token).await
    }

    async fn release(&mut self, key: &str, token: u8) -> bool {
        self.is("release($1, $2)", key, token).await
    }

    async fn hand_over(&mut self, key: &str, token: u8) -> Option<String> {
        let hand_over = "SELECT dlock_hand_over($1, $2, '30 seconds')";
        self.0.query_one(hand_over, &[&key, &[token; 16].as_slice()]).await.unwrap().get(0)
    }

    async fn take_over(&mut self, key: &str, baton: &str, token: u8) -> Option<u64> {
        let take_over = "SELECT dlock_take_over($1, $2, $3, '30 seconds', 'another client')";
        let row = self.0.query_one(take_over, &[&key, &baton, &[token; 16].as_slice()]).await.unwrap();
        row.get::<_, Option<i64>>(0).map(i64::unsigned_abs)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_postgres_takes_and_respects_the_same_locks() {
    let db = postgres().await;
    let options = PostgresOptions::from_url(&db.server.url()).unwrap().with_table("public.my_locks").unwrap();
    options.migrate().await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&db.server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..2 {
        client.batch_execute(&options.functions()).await.unwrap();
    }
    let locks = Locks::new(options.connect().await.unwrap());
    they_take_and_respect_the_same_locks(locks, TokioPostgres(client)).await;
}

/// The server's own command line client; each call is a session of its own.
struct CommandLine(MysqlServer);

impl CommandLine {
    fn call(&self, call: &str, key: &str, token: u8, rest: &str) -> String {
        let token = format!("{token:02x}").repeat(16);
        self.0.query(&format!("CALL dlock_{call}('{key}', X'{token}'{rest})"))
    }
}

impl OtherClient for CommandLine {
    async fn take(&mut self, key: &str, token: u8) -> Option<u64> {
        self.call("take", key, token, ", 30000, 'another client'").parse().ok()
    }

    async fn renew(&mut self, key: &str, token: u8) -> bool {
        self.call("renew", key, token, ", 30000") == "1"
    }

    async fn release(&mut self, key: &str, token: u8) -> bool {
        self.call("release", key, token, "") == "1"
    }

    async fn hand_over(&mut self, key: &str, token: u8) -> Option<String> {
        Some(self.call("hand_over", key, token, ", 30000")).filter(|answer| answer != "NULL")
    }

    async fn take_over(&mut self, key: &str, baton: &str, token: u8) -> Option<u64> {
        let token = format!("{token:02x}").repeat(16);
        let call = format!("CALL dlock_take_over('{key}', '{baton}', X'{token}', 30000, 'another client')");
        self.0.query(&call).parse().ok()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_client_of_mariadb_takes_and_respects_the_same_locks() {
    let db = mysql().await;
    let options = MysqlOptions::from_url(&db.server.url()).unwrap().with_table("my_locks").unwrap();
    options.migrate().await.unwrap();
    for statement in options.procedures().into_iter().chain(options.procedures()) {
        db.run(&statement).await;
    }
    let locks = Locks::new(options.connect().await.unwrap());
    let calls = [
        "take('a', MINE, 30000, '')",
        "renew('a', MINE, 30000)",
        "hand_over('a', MINE, 30000)",
        "take_over('a', 'BATON', MINE, 30000, '')",
        "release('a', MINE)",
    ];
    for call in calls {
        let call = call.replace("MINE", &format!("X'{MINE}'")).replace("BATON", BATON);
        let refused = db.server.try_query(&format!("SET autocommit = 0; CALL dlock_{call}"));
        let error = refused.expect_err(&call).to_string();
        assert!(error.contains("autocommit is off"), "{call}: {error}");
    }
    they_take_and_respect_the_same_locks(locks, CommandLine(db.server)).await;
}

/// As it is documented: the file, with the table's name in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_clients_run_the_files_for_other_clients_as_they_are() {
    let (mariadb, postgresql) = (mysql().await, postgres().await);
    MysqlOptions::from_url(&mariadb.server.url()).unwrap().migrate().await.unwrap();
    let script = mariadb.server.unix_socket().with_file_name("procedures.sql");
    std::fs::write(&script, include_str!("../../src/mysql/procedures.sql").replace("{table}", "dlock"))
        .unwrap();
    for _ in 0..2 {
        mariadb.server.query(&format!("source {}", script.display()));
    }
    let token = MINE;
    let call = |call: &str| mariadb.server.query(&format!("CALL dlock_{call}"));
    assert!(call(&format!("take('a', X'{token}', 30000, '')")).parse::<u64>().unwrap() > 0);
    assert_eq!(call(&format!("renew('a', X'{token}', 30000)")), "1");
    assert_eq!(call(&format!("hand_over('a', X'{token}', 30000)")), BATON);
    assert!(call(&format!("take_over('a', '{BATON}', X'{token}', 30000, '')")).parse::<u64>().unwrap() > 0);
    assert_eq!(call(&format!("release('a', X'{token}')")), "1");
    PostgresOptions::from_url(&postgresql.server.url()).unwrap().migrate().await.unwrap();
    let script = include_str!("../../src/postgres/functions.sql").replace("{table}", "dlock");
    postgresql.server.query(&script);
    let take = format!("SELECT dlock_take('a', '\\x{token}', '30 seconds', '')");
    assert!(postgresql.server.query(&take).parse::<u64>().unwrap() > 0);
    let hand_over = format!("SELECT dlock_hand_over('a', '\\x{token}', '30 seconds')");
    assert_eq!(postgresql.server.query(&hand_over), BATON);
}

/// `call` makes a call of the functions, in which the caller's token is in brackets and times are in milliseconds, and
/// returns what it answers.
fn tokens_that_are_not_the_callers_own_take_nothing<E: std::fmt::Display>(
    call: impl Fn(&str) -> Result<String, E>,
) {
    let answer = |text: &str| call(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let is_refused = |text: &str| {
        let error = call(text).expect_err(text).to_string();
        assert!(error.contains("16 new random bytes"), "{text}: {error}");
    };
    let fence = answer(&format!("take('a', [{MINE}], 30000, 'giver')"));
    assert_eq!(answer(&format!("hand_over('a', [{MINE}], 30000)")), BATON);
    assert_eq!(
        answer(&format!("hand_over('a', [{MINE}], 30000)")),
        BATON,
        "asked again, it is the same baton"
    );
    for _ in 0..2 {
        is_refused(&format!("take_over('a', '{BATON}', [{BATON}], 30000, 'taker')"));
        let taken = answer(&format!("take('a', [{BATON}], 30000, 'taker')"));
        assert!(["", "NULL"].contains(&&*taken), "{taken}");
        for other in [", 30000", ""] {
            let name = if other.is_empty() { "release" } else { "renew" };
            let done = answer(&format!("{name}('a', [{BATON}]{other})"));
            assert!(["f", "0"].contains(&&*done), "{name}: {done}");
        }
        let baton = answer(&format!("hand_over('a', [{BATON}], 30000)"));
        assert!(["", "NULL"].contains(&&*baton), "{baton}");
    }
    let own = "0123456789abcdef0123456789abcdef";
    let taken_over = answer(&format!("take_over('a', '{BATON}', [{own}], 30000, 'taker')"));
    assert!(taken_over.parse::<u64>().unwrap() > fence.parse().unwrap(), "{taken_over}");
    for short in ["", "01", &own[2..], &format!("{own}00")] {
        is_refused(&format!("take('b', [{short}], 30000, '')"));
        is_refused(&format!("renew('a', [{short}], 30000)"));
        is_refused(&format!("hand_over('a', [{short}], 30000)"));
        is_refused(&format!("take_over('a', '{BATON}', [{short}], 30000, '')"));
        is_refused(&format!("release('a', [{short}])"));
    }
}

/// The call with its token written as the server writes bytes.
fn with_bytes(call: &str, before: &str, after: &str) -> String {
    call.replace('[', before).replace(']', after)
}

#[tokio::test]
async fn a_token_that_is_not_the_callers_own_takes_nothing_from_postgresql() {
    let db = postgres().await;
    let options = PostgresOptions::from_pool(&db.pool);
    options.migrate().await.unwrap();
    db.run(&options.functions()).await;
    tokens_that_are_not_the_callers_own_take_nothing(|call| {
        let call = with_bytes(call, "decode('", "', 'hex')").replace("30000", "'30 seconds'");
        db.server.try_query(&format!("SELECT dlock_{call}"))
    });
}

#[tokio::test]
async fn a_token_that_is_not_the_callers_own_takes_nothing_from_mariadb() {
    let db = mysql().await;
    let options = MysqlOptions::from_url(&db.server.url()).unwrap();
    options.migrate().await.unwrap();
    for statement in options.procedures() {
        db.run(&statement).await;
    }
    tokens_that_are_not_the_callers_own_take_nothing(|call| {
        db.server.try_query(&format!("CALL dlock_{}", with_bytes(call, "X'", "'")))
    });
}

/// sea-orm, on a connection of its own.
struct SeaOrm(sea_orm::DatabaseConnection);

impl SeaOrm {
    /// What a call answers, as it answers it: a number, or true as 1.
    async fn call(&self, call: &str, key: &str, token: u8, rest: &str) -> Option<i64> {
        let (backend, token) = (self.0.get_database_backend(), vec![token; 16]);
        let text = match backend {
            sea_orm::DbBackend::Postgres => format!("SELECT dlock_{call}($1, $2{rest}) AS answer"),
            _ => format!("CALL dlock_{call}(?, ?{rest})"),
        };
        number(&self.ask(text, [key.into(), token.into()]).await)
    }

    async fn ask<const COUNT: usize>(
        &self,
        text: String,
        values: [sea_orm::Value; COUNT],
    ) -> sea_orm::QueryResult {
        let backend = self.0.get_database_backend();
        let statement = sea_orm::Statement::from_sql_and_values(backend, text, values);
        self.0.query_one_raw(statement).await.unwrap().unwrap()
    }

    fn lease(&self) -> &'static str {
        if self.0.get_database_backend() == sea_orm::DbBackend::Postgres {
            ", '30 seconds'"
        } else {
            ", 30000"
        }
    }
}

fn number(row: &sea_orm::QueryResult) -> Option<i64> {
    // A fence of MariaDB has no sign.
    let fence = row.try_get_by_index::<Option<u64>>(0).map(|fence| fence.map(u64::cast_signed));
    let number = fence.or_else(|_| row.try_get_by_index::<Option<i64>>(0));
    number.unwrap_or_else(|_| row.try_get_by_index::<Option<bool>>(0).unwrap().map(i64::from))
}

impl OtherClient for SeaOrm {
    async fn take(&mut self, key: &str, token: u8) -> Option<u64> {
        let rest = format!("{}, 'another client'", self.lease());
        self.call("take", key, token, &rest).await.map(i64::unsigned_abs)
    }

    async fn renew(&mut self, key: &str, token: u8) -> bool {
        self.call("renew", key, token, self.lease()).await == Some(1)
    }

    async fn release(&mut self, key: &str, token: u8) -> bool {
        self.call("release", key, token, "").await == Some(1)
    }

    async fn hand_over(&mut self, key: &str, token: u8) -> Option<String> {
        let text = match self.0.get_database_backend() {
            sea_orm::DbBackend::Postgres => "SELECT dlock_hand_over($1, $2, '30 seconds')",
            _ => "CALL dlock_hand_over(?, ?, 30000)",
        };
        let row = self.ask(text.to_owned(), [key.into(), vec![token; 16].into()]).await;
        row.try_get_by_index(0).unwrap()
    }

    async fn take_over(&mut self, key: &str, baton: &str, token: u8) -> Option<u64> {
        let text = match self.0.get_database_backend() {
            sea_orm::DbBackend::Postgres => {
                "SELECT dlock_take_over($1, $2, $3, '30 seconds', 'another client')"
            }
            _ => "CALL dlock_take_over(?, ?, ?, 30000, 'another client')",
        };
        let row = self.ask(text.to_owned(), [key.into(), baton.into(), vec![token; 16].into()]).await;
        number(&row).map(i64::unsigned_abs)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sea_orm_takes_and_respects_the_same_locks_on_postgresql() {
    let db = postgres().await;
    let options = PostgresOptions::from_url(&db.server.url()).unwrap();
    options.migrate().await.unwrap();
    db.run(&options.functions()).await;
    let other = SeaOrm(sea_orm::Database::connect(db.server.url()).await.unwrap());
    they_take_and_respect_the_same_locks(Locks::new(options.connect().await.unwrap()), other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sea_orm_takes_and_respects_the_same_locks_on_mariadb() {
    let db = mysql().await;
    let options = MysqlOptions::from_url(&db.server.url()).unwrap();
    options.migrate().await.unwrap();
    for statement in options.procedures() {
        db.run(&statement).await;
    }
    let other = SeaOrm(sea_orm::Database::connect(db.server.url()).await.unwrap());
    they_take_and_respect_the_same_locks(Locks::new(options.connect().await.unwrap()), other).await;
}
