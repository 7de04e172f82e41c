//! What is found out when a backend connects.

use dlock_core::{ErrorKind, Locks};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{
    Mysql, MysqlOptions, MysqlRowLocks, MysqlSessions, Postgres, PostgresOptions, PostgresRowLocks,
    PostgresSessions, TransactionLocks, sqlx,
};

use crate::support::{Db, is_error, on_both, once, take};

on_both! {
    async fn a_missing_table_is_refused_with_how_to_make_it<D: Db>(db: D) {
        is_error(D::connect(&db.url()).await, ErrorKind::InvalidConfig, &["there is no table", "migrate()", "migrate=true"]);
        db.backend().await;
        D::connect(&db.url()).await.unwrap();
    }

    async fn a_table_that_is_something_else_is_left_alone<D: Db>(db: D) {
        db.query("CREATE TABLE dlock (a int)");
        is_error(D::connect(&db.url()).await, ErrorKind::InvalidConfig, &["not a lock table", "another table name"]);
        is_error(D::connect(&format!("{}{}", db.url(), D::MIGRATE)).await, ErrorKind::InvalidConfig, &["not a lock table"]);
        assert_eq!(db.query("SELECT count(*) FROM dlock"), "0");
    }

    async fn a_table_of_another_version_is_refused<D: Db>(db: D) {
        db.backend().await;
        db.query("UPDATE dlock SET holder = 'dlock table, version 2'");
        is_error(D::connect(&db.url()).await, ErrorKind::InvalidConfig, &["another version", "version 2"]);
        db.query("DELETE FROM dlock");
        is_error(D::connect(&db.url()).await, ErrorKind::InvalidConfig, &["lost its mark row"]);
        db.backend().await;
        assert_eq!(db.query("SELECT holder FROM dlock"), "dlock table, version 1");
    }

    async fn processes_may_make_the_table_at_the_same_time<D: Db>(db: D) {
        let url = format!("{}{}", db.url(), D::MIGRATE);
        let connecting: Vec<_> = (0..6).map(|_| { let url = url.clone(); tokio::spawn(async move { D::connect(&url).await }) }).collect();
        for connected in connecting {
            connected.await.unwrap().unwrap();
        }
        assert_eq!(db.query("SELECT count(*) FROM dlock"), "1");
    }

    async fn a_wrong_password_is_denied_and_not_repeated<D: Db>(db: D) {
        db.backend().await;
        db.make_user("shop", "SELECT");
        is_error(D::connect(&db.url_as("shop", "hunter2")).await, ErrorKind::Denied, &["refused the user or the password"]);
        is_error(D::connect(&db.url_as("nobody", "hunter2")).await, ErrorKind::Denied, &["refused the user or the password"]);
    }

    async fn a_database_that_does_not_exist_is_refused<D: Db>(db: D) {
        let url = db.url().replace("/postgres?", "/nothing?").replace("/locks", "/nothing");
        is_error(D::connect(&url).await, ErrorKind::InvalidConfig, &["database does not exist"]);
    }

    async fn a_server_that_is_away_is_unavailable<D: Db>(db: D) {
        let url = db.url();
        drop(db);
        is_error(D::connect(&url).await, ErrorKind::Unavailable, &["no server listens"]);
    }

    async fn the_documented_rights_are_enough_and_fewer_are_not<D: Db>(db: D) {
        db.backend().await;
        db.make_user("reader", "SELECT");
        db.make_user("app", "SELECT, INSERT, UPDATE");
        is_error(D::connect(&db.url_as("reader", "right")).await, ErrorKind::Denied, &["GRANT SELECT, INSERT, UPDATE"]);
        let backend = D::connect(&db.url_as("app", "right")).await.unwrap();
        let lease = std::time::Duration::from_millis(900);
        let locks = Locks::builder(backend.clone()).with_lease(lease).build().unwrap();
        let guard = take(&locks, "a").await;
        crate::support::until("a renewal", || locks.stats().renewals > 0).await;
        assert_eq!(locks.inspect("a").await.unwrap().unwrap().fence, guard.fence());
        assert_eq!(D::holders(&backend).await.unwrap().len(), 1);
        guard.release().await.unwrap();
        db.age("a");
        is_error(D::prune(&backend, std::time::Duration::ZERO).await, ErrorKind::Denied, &["rights"]);
        assert_eq!(locks.inspect("a").await.unwrap(), None);
    }

    async fn a_server_that_can_only_be_read_grants_nothing_until_it_can_be_written<D: Db>(db: D) {
        db.backend().await;
        db.make_user("app", "SELECT, INSERT, UPDATE");
        let url = db.url_as("app", "right");
        let locks = Locks::builder(D::connect(&url).await.unwrap()).build().unwrap();
        take(&locks, "a").await.release().await.unwrap();
        db.read_only(true);
        is_error(once(&locks, "a").acquire().await, ErrorKind::Unavailable, &["can only be read"]);
        is_error(D::connect(&url).await, ErrorKind::Unavailable, &["can only be read"]);
        db.read_only(false);
        take(&locks, "a").await.release().await.unwrap();
    }
}

/// With another engine `SELECT ... FOR UPDATE` locks nothing, and two hold a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_mysql_whose_rows_cannot_be_locked_is_refused() {
    let server = <MysqlServer as Db>::start();
    let (url, all) = (server.url(), ["InnoDB", "another table name", "ALTER TABLE locks.dlock ENGINE"]);
    MysqlOptions::from_url(&url).unwrap().migrate().await.unwrap();
    let pool = server.pool(1);
    let mut connection = pool.acquire().await.unwrap();
    let names = TransactionLocks::<sqlx::MySql>::new("names").unwrap();
    names.migrate(&mut connection).await.unwrap();
    for engine in ["MyISAM", "MEMORY"] {
        server.query(&format!("ALTER TABLE dlock ENGINE = {engine}; ALTER TABLE names ENGINE = {engine}"));
        is_error(Mysql::connect(&url).await, ErrorKind::InvalidConfig, &all);
        is_error(MysqlSessions::connect(&url).await, ErrorKind::InvalidConfig, &all);
        is_error(MysqlRowLocks::connect(&url).await, ErrorKind::InvalidConfig, &all);
        let all = ["InnoDB", "another table name", "ALTER TABLE `names` ENGINE"];
        is_error(names.migrate(&mut connection).await, ErrorKind::InvalidConfig, &all);
    }
    server.query("ALTER TABLE dlock ENGINE = InnoDB");
    MysqlRowLocks::connect(&url).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_mariadb_that_makes_tables_of_another_kind_is_refused() {
    let server = <MysqlServer as Db>::start();
    server.query("SET GLOBAL enforce_storage_engine = MyISAM, GLOBAL sql_mode = ''");
    let options = MysqlOptions::from_url(&server.url()).unwrap();
    is_error(options.migrate().await, ErrorKind::InvalidConfig, &["InnoDB"]);
}

/// As after `CREATE TABLE ... AS SELECT`, or a copy whose indexes failed: two of whom each finds no row insert one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_mysql_in_which_a_key_may_have_two_rows_or_share_one_is_refused() {
    let server = <MysqlServer as Db>::start();
    let url = server.url();
    for (change, why) in [
        ("DROP PRIMARY KEY", "ADD PRIMARY KEY"),
        ("ADD INDEX plain (`key`)", "ADD PRIMARY KEY"),
        ("ADD PRIMARY KEY (`key`, fence)", "ADD PRIMARY KEY"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (`key`(3))", "ADD PRIMARY KEY"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (`key`), MODIFY token CHAR(16)", "collation"),
        ("MODIFY token BINARY(16), MODIFY `key` VARCHAR(200) NOT NULL", "collation"),
    ] {
        if change == "DROP PRIMARY KEY" {
            MysqlOptions::from_url(&url).unwrap().migrate().await.unwrap();
        }
        server.query(&format!("ALTER TABLE dlock {change}"));
        is_error(Mysql::connect(&url).await, ErrorKind::InvalidConfig, &[why]);
        is_error(MysqlSessions::connect(&url).await, ErrorKind::InvalidConfig, &[why]);
        is_error(MysqlRowLocks::connect(&url).await, ErrorKind::InvalidConfig, &[why]);
        let options = MysqlOptions::from_url(&url).unwrap();
        is_error(options.migrate().await, ErrorKind::InvalidConfig, &[why]);
    }
    server.query("ALTER TABLE dlock MODIFY `key` VARBINARY(513) NOT NULL");
    Mysql::connect(&url).await.unwrap();
    // Statements name the index.
    server.query("ALTER TABLE dlock DROP PRIMARY KEY, ADD UNIQUE one (`key`)");
    is_refused::<MysqlServer>(&url, &["table locks.dlock", "another table name", "ADD PRIMARY KEY"]).await;
    server.query("ALTER TABLE dlock DROP INDEX one, ADD PRIMARY KEY (`key`)");
    server.query("RENAME TABLE dlock TO below; CREATE VIEW dlock AS SELECT * FROM below");
    is_refused::<MysqlServer>(&url, &["locks.dlock is a view"]).await;
}

/// By a connect and by `migrate`.
async fn is_refused<D: Db>(url: &str, why: &[&str]) {
    is_error(D::connect(url).await, ErrorKind::InvalidConfig, why);
    is_error(D::connect(&format!("{url}{}", D::MIGRATE)).await, ErrorKind::InvalidConfig, why);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_postgresql_in_which_a_key_may_have_two_rows_or_other_types_is_refused() {
    let server = <PostgresServer as Db>::start();
    let url = server.url();
    PostgresOptions::from_url(&url).unwrap().migrate().await.unwrap();
    server.query("ALTER TABLE dlock DROP CONSTRAINT dlock_pkey");
    let (unkeyed, mistyped) = ("ADD PRIMARY KEY", "other types");
    for (change, why) in [
        ("CREATE INDEX plain ON dlock (key)", unkeyed),
        ("CREATE UNIQUE INDEX partial ON dlock (key) WHERE key < 'a'", unkeyed),
        ("CREATE UNIQUE INDEX of_both ON dlock (key, fence)", unkeyed),
        ("ALTER TABLE dlock ADD CONSTRAINT late UNIQUE (key) DEFERRABLE", unkeyed),
        ("CREATE UNIQUE INDEX one ON dlock (key)", unkeyed),
        ("ALTER TABLE dlock DROP CONSTRAINT late, ALTER fence TYPE numeric", mistyped),
        ("ALTER TABLE dlock ALTER fence TYPE bigint, ALTER expires TYPE timestamp", mistyped),
    ] {
        server.query(change);
        is_error(Postgres::connect(&url).await, ErrorKind::InvalidConfig, &[why]);
        is_error(PostgresSessions::connect(&url).await, ErrorKind::InvalidConfig, &[why]);
        is_error(PostgresRowLocks::connect(&url).await, ErrorKind::InvalidConfig, &[why]);
        let options = PostgresOptions::from_url(&url).unwrap();
        is_error(options.migrate().await, ErrorKind::InvalidConfig, &[why]);
    }
    server.query("ALTER TABLE dlock ALTER expires TYPE timestamptz");
    // A unique index is as good as a primary key.
    let backend = <PostgresServer as Db>::connect(&url).await.unwrap();
    let locks =
        Locks::builder(backend.clone()).with_lease(std::time::Duration::from_secs(6)).build().unwrap();
    let reader = locks.lock("a").read().acquire().await.unwrap();
    let before = locks.stats().renewals;
    crate::support::until("renewals", || locks.stats().renewals >= before + 2).await;
    reader.check().unwrap();
    reader.release().await.unwrap();
    backend.prune(std::time::Duration::ZERO).await.unwrap();
    server.query("ALTER TABLE dlock RENAME TO below; CREATE VIEW dlock AS SELECT * FROM below");
    is_refused::<PostgresServer>(&url, &["public.dlock is a view"]).await;
    for kind in [
        "CREATE MATERIALIZED VIEW dlock AS SELECT * FROM below",
        "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
         CREATE FOREIGN TABLE dlock (key bytea, token bytea, fence bigint, expires timestamptz, awaited boolean,
             holder text) SERVER files OPTIONS (filename '/dev/null')",
    ] {
        server.query(&format!("DROP VIEW IF EXISTS dlock; {kind}"));
        is_error(Postgres::connect(&url).await, ErrorKind::InvalidConfig, &["public.dlock"]);
        if kind.contains("MATERIALIZED") {
            server.query("DROP MATERIALIZED VIEW dlock");
        }
    }
}

/// Two users of one database, each of whom may make tables and gets those of the other: `shop` has a schema of its own
/// name, which comes first in its search path.
fn two_users() -> PostgresServer {
    let server = <PostgresServer as Db>::start();
    server.query(
        "CREATE USER shop PASSWORD 'right'; CREATE USER stock PASSWORD 'right'; CREATE SCHEMA shop AUTHORIZATION shop;
         GRANT USAGE ON SCHEMA shop TO stock; GRANT CREATE ON SCHEMA public TO shop, stock;
         ALTER DEFAULT PRIVILEGES FOR ROLE shop, stock GRANT ALL ON TABLES TO shop, stock",
    );
    server
}

async fn excludes(one: &Locks, other: &Locks) {
    let guard = take(one, "a").await;
    is_error(once(other, "a").acquire().await, ErrorKind::Busy, &[]);
    guard.release().await.unwrap();
    take(other, "a").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_url_of_postgresql_is_one_table_whatever_the_search_path_of_each_user() {
    // In each order, and at the same time.
    for first in ["shop", "stock", ""] {
        let server = two_users();
        let url = |user| format!("{}{}", server.url_as(user, "right"), <PostgresServer as Db>::MIGRATE);
        if !first.is_empty() {
            <PostgresServer as Db>::connect(&url(first)).await.unwrap();
        }
        let (shop, stock) = (url("shop"), url("stock"));
        let (shop, stock) =
            tokio::join!(<PostgresServer as Db>::connect(&shop), <PostgresServer as Db>::connect(&stock));
        let (shop, stock) = (Locks::new(shop.unwrap()), Locks::new(stock.unwrap()));
        assert_eq!(server.query("SELECT count(*) FROM pg_class WHERE relname = 'dlock'"), "1", "{first}");
        excludes(&shop, &stock).await;
        // A search path that leads nowhere, or to a table of a session, leads to it too, or to none where it is another
        // user's.
        server.query("ALTER ROLE stock SET search_path = nothing");
        let owner = server.query("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = 'dlock'");
        let mut of_stock = url("stock");
        if owner == "shop" {
            let all = ["schema public", "belongs to shop", "table=public.dlock"];
            is_error(<PostgresServer as Db>::connect(&of_stock).await, ErrorKind::InvalidConfig, &all);
            of_stock.push_str("&table=public.dlock");
        }
        let elsewhere = Locks::new(<PostgresServer as Db>::connect(&of_stock).await.unwrap());
        excludes(&shop, &elsewhere).await;
        let sessions = async |url: &str| {
            let options = PostgresOptions::from_url(url).unwrap();
            Locks::new(PostgresSessions::with_options(options).await.unwrap())
        };
        excludes(&sessions(&url("shop")).await, &sessions(&of_stock).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_of_postgresql_that_may_mean_several_tables_is_refused_until_it_names_a_schema() {
    let server = two_users();
    for schema in ["shop", "public"] {
        let options = PostgresOptions::from_url(&server.url()).unwrap();
        options.with_table(&format!("{schema}.dlock")).unwrap().migrate().await.unwrap();
    }
    server.query("GRANT ALL ON public.dlock, shop.dlock TO shop, stock");
    let all = ["public, shop", "table=public.dlock"];
    for user in ["shop", "stock"] {
        for migrate in ["", <PostgresServer as Db>::MIGRATE] {
            let url = format!("{}{migrate}", server.url_as(user, "right"));
            is_error(Postgres::connect(&url).await, ErrorKind::InvalidConfig, &all);
            is_error(PostgresSessions::connect(&url).await, ErrorKind::InvalidConfig, &all);
            is_error(PostgresRowLocks::connect(&url).await, ErrorKind::InvalidConfig, &all);
            let named = PostgresOptions::from_url(&format!("{url}&table=shop.dlock")).unwrap();
            take(&Locks::new(named.connect().await.unwrap()), "a").await.release().await.unwrap();
        }
        let options = PostgresOptions::from_url(&server.url_as(user, "right")).unwrap();
        is_error(options.migrate().await, ErrorKind::InvalidConfig, &all);
    }
    assert_eq!(server.query("SELECT count(*) FROM public.dlock"), "1", "only the mark");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_functions_for_other_clients_of_postgresql_are_of_the_table_that_dlock_finds() {
    let server = two_users();
    let options = PostgresOptions::from_url(&server.url()).unwrap();
    options.clone().with_table("shop.dlock").unwrap().migrate().await.unwrap();
    server.query(&options.functions());
    let mine = format!("'\\x{}'", "07".repeat(16));
    server.query(&format!("SELECT dlock_take('a', {mine}, '30 s', 'label=by_hand')"));
    let locks = Locks::new(options.clone().connect().await.unwrap());
    is_error(once(&locks, "a").acquire().await, ErrorKind::Busy, &[]);
    assert_eq!(server.query("SELECT holder FROM shop.dlock WHERE key = 'a'"), "label=by_hand");
    // Whatever the search path of whoever calls them.
    server.query(&format!("SET search_path = pg_catalog; SELECT public.dlock_release('a', {mine})"));
    take(&locks, "a").await.release().await.unwrap();
    options.clone().with_table("public.dlock").unwrap().migrate().await.unwrap();
    assert!(server.try_query(&options.functions()).is_err(), "which table is meant is not known");
}
