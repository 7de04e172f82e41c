//! Tables of the same name that others of the database have made.

use dlock_core::{ErrorKind, Locks};
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Postgres, PostgresOptions, PostgresRowLocks, PostgresSessions};

use crate::support::{Db, is_error, once, take};

const MIGRATE: &str = <PostgresServer as Db>::MIGRATE;

/// A server on which `stranger` has a view that looks like a lock table, and runs his code in whoever reads it. `shop`
/// may make tables in the schema that is in everybody's path.
fn with_a_stranger() -> PostgresServer {
    let server = <PostgresServer as Db>::start();
    server.query(
        "CREATE USER stranger PASSWORD 'right'; CREATE USER shop PASSWORD 'right'; CREATE USER stock PASSWORD 'right';
         GRANT CREATE ON SCHEMA public TO shop; ALTER DEFAULT PRIVILEGES FOR ROLE shop GRANT ALL ON TABLES TO stock;
         CREATE SCHEMA trap AUTHORIZATION stranger; SET ROLE stranger; CREATE TABLE trap.ran (who text);
         CREATE FUNCTION trap.spring() RETURNS text LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO trap.ran VALUES (current_user); RETURN 'dlock table, version 1'; END $$;
         CREATE VIEW trap.dlock AS SELECT ''::bytea AS key, NULL::bytea AS token, 0::bigint AS fence,
             now() AS expires, false AS awaited, trap.spring() AS holder;
         GRANT USAGE ON SCHEMA trap TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA trap TO PUBLIC",
    );
    server
}

fn ran(server: &PostgresServer) -> String {
    server.query("SELECT count(*) FROM trap.ran")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_of_a_stranger_outside_the_search_path_is_refused_and_runs_nothing() {
    let server = with_a_stranger();
    let all = ["outside the search path", "schema trap", "belongs to stranger", "table=trap.dlock"];
    for url in [server.url(), server.url_as("shop", "right")] {
        for url in [url.clone(), format!("{url}{MIGRATE}")] {
            is_error(Postgres::connect(&url).await, ErrorKind::InvalidConfig, &all);
            is_error(PostgresSessions::connect(&url).await, ErrorKind::InvalidConfig, &all);
            is_error(PostgresRowLocks::connect(&url).await, ErrorKind::InvalidConfig, &all);
        }
        let options = PostgresOptions::from_url(&url).unwrap();
        is_error(options.migrate().await, ErrorKind::InvalidConfig, &all);
        assert!(server.try_query(&options.functions()).is_err(), "no table can be trusted");
    }
    assert_eq!(ran(&server), "0", "nothing of the stranger's was carried out");
    assert_eq!(
        server.query("SELECT count(*) FROM pg_class WHERE relname = 'dlock'"),
        "1",
        "none was made beside it"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_of_a_stranger_takes_nobody_down_who_has_another_one() {
    let server = with_a_stranger();
    let shop = server.url_as("shop", "right");
    let named = PostgresOptions::from_url(&shop).unwrap().with_table("public.dlock").unwrap();
    named.migrate().await.unwrap();
    let connect = async |url: &str| {
        let locks = Locks::new(<PostgresServer as Db>::connect(url).await.unwrap());
        take(&locks, "a").await.release().await.unwrap();
        locks
    };
    let (ours, admin) = (connect(&format!("{shop}{MIGRATE}")).await, connect(&server.url()).await);
    let guard = take(&ours, "a").await;
    is_error(once(&admin, "a").acquire().await, ErrorKind::Busy, &[]);
    guard.release().await.unwrap();
    server.query(&PostgresOptions::from_url(&shop).unwrap().functions());
    server.query(&format!("SELECT dlock_take('a', '\\x{}', '30 s', 'label=by_hand')", "07".repeat(16)));
    is_error(once(&ours, "a").acquire().await, ErrorKind::Busy, &[]);
    server.query(&format!("SELECT dlock_release('a', '\\x{}')", "07".repeat(16)));
    // What is not in the path has to be of the user himself, or of one whose rights he has.
    server.query("ALTER ROLE shop SET search_path = nothing; ALTER ROLE stock SET search_path = nothing");
    connect(&shop).await;
    let strange = ["public of shop", "trap of stranger", "table=public.dlock"];
    is_error(Postgres::connect(&server.url_as("stock", "right")).await, ErrorKind::InvalidConfig, &strange);
    server.query("CREATE ROLE team; ALTER TABLE dlock OWNER TO team; GRANT USAGE ON SCHEMA public TO team");
    let all = ["public of team", "trap of stranger"];
    is_error(Postgres::connect(&shop).await, ErrorKind::InvalidConfig, &all);
    server.query("GRANT team TO shop");
    connect(&shop).await;
    // Those of a superuser and of the owner of the database are trusted by all.
    server.query("GRANT ALL ON dlock TO shop, stock; ALTER TABLE dlock OWNER TO postgres");
    connect(&server.url_as("stock", "right")).await;
    server.query("ALTER TABLE dlock OWNER TO team; ALTER DATABASE postgres OWNER TO team");
    connect(&server.url_as("stock", "right")).await;
    assert_eq!(ran(&server), "0", "nothing of the stranger's was carried out");
}
