//! The place of the database.

use std::path::{Path, PathBuf};

use dlock_core::backend::UrlParts;
use dlock_core::{Error, Failure, Operation, Result};
use percent_encoding::percent_decode_str;

use super::statements;
use crate::table::TableName;

pub(super) const NAME: &str = "sqlite";

/// The largest length of a file's path, in bytes.
const LONGEST_PATH: usize = 4096;

/// The place of the locks: a file, and a table in it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("app.db");
/// use dlock_core::Locks;
/// use dlock_sql::SqliteOptions;
///
/// let options = SqliteOptions::new(&path).with_table("shop_locks")?;
/// options.migrate().await?; // once, at deployment
/// let locks = Locks::new(options.open().await?);
/// locks.lock("room_7").run(async {}).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "connect() or open() uses the options"]
pub struct SqliteOptions {
    pub(super) path: PathBuf,
    pub(super) table: TableName,
    /// Is `true` if the file and the table are made where they are missing.
    pub(super) makes: bool,
    /// The path of the boot id.
    pub(super) boot_id: PathBuf,
}

impl SqliteOptions {
    /// Creates options for the table `dlock` in the database at `path`.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let boot_id = "/proc/sys/kernel/random/boot_id".into();
        Self { path: path.as_ref().to_owned(), table: TableName::default(), makes: false, boot_id }
    }

    /// Reads `sqlite:///absolute/path.db` or `sqlite://relative/path.db`, with `?table=name` where it is not `dlock`. A
    /// `?`, `#` or `%` in the path is written as `%3F`, `%23` or `%25`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when it is not such a URL.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::parse(url).map_err(refuse)
    }

    fn parse(url: &str) -> Result<Self, Failure> {
        let wrong = |what: &str| {
            Failure::invalid_config(format!(
                "{what}; write sqlite:///absolute/path.db or sqlite://relative/path.db, and ?table=name where it is not \
                 dlock"
            ))
        };
        let rest = url.strip_prefix("sqlite://").ok_or_else(|| {
            wrong(if url.starts_with("sqlite::memory:") {
                "locks in memory exclude no other process (for tests there is `memory:`)"
            } else {
                "the URL does not begin with sqlite://"
            })
        })?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if path.contains('#') || query.contains('#') {
            return Err(wrong("the URL has a fragment (write %23 for a # in the path)"));
        }
        let path = decode(path).ok_or_else(|| wrong("the path is not UTF-8"))?;
        if path.is_empty() || path.ends_with('/') || path.contains('\0') || path == ":memory:" {
            return Err(wrong("the URL names no file"));
        }
        if path.len() > LONGEST_PATH {
            return Err(wrong("the path is too long"));
        }
        UrlParts::check_query(query)?;
        let mut options = Self::new(path);
        for (name, value) in UrlParts::parameters(query) {
            match (name, decode(value)) {
                ("table", Some(value)) => options = options.table(&value)?,
                ("table", None) => return Err(wrong("the table is not UTF-8")),
                _ => return Err(wrong("the URL has an unknown option")),
            }
        }
        Ok(options)
    }

    /// Sets another table. Each table of a file has its own locks. Default `dlock`; 1 to 63 ASCII letters, digits and
    /// underscores, not starting with a digit or with `sqlite_`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when the name is not allowed.
    pub fn with_table(self, name: &str) -> Result<Self> {
        self.table(name).map_err(refuse)
    }

    fn table(mut self, name: &str) -> Result<Self, Failure> {
        let reserved = name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("sqlite_"));
        if reserved {
            return Err(Failure::invalid_config(format!(
                "the table name {name:?} is not allowed; SQLite keeps names with sqlite_ for itself"
            )));
        }
        self.table = TableName::new(name)?;
        Ok(self)
    }

    /// Returns the script that makes the table, as [`migrate`](Self::migrate) does, for the client `sqlite3`. To run it
    /// again changes nothing.
    ///
    /// ```
    /// let script = dlock_sql::SqliteOptions::new("app.db").schema();
    /// assert!(script.contains("CREATE TABLE IF NOT EXISTS"));
    /// ```
    #[must_use]
    pub fn schema(&self) -> String {
        statements::SCHEMA.replace("{table}", &self.table.to_string())
    }
}

pub(super) fn refuse(failure: Failure) -> Error {
    Error::new(Operation::Configure, failure).on(NAME)
}

fn decode(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ErrorKind;

    #[test]
    fn urls_name_a_path_and_a_table() {
        for (url, path, table) in [
            ("sqlite:///var/lib/shop/locks.db", "/var/lib/shop/locks.db", "dlock"),
            ("sqlite://locks.db", "locks.db", "dlock"),
            ("sqlite://a/b%20c%3F%23%25.db?table=x_1", "a/b c?#%.db", "x_1"),
            ("sqlite:///z%C3%BCrich.db?", "/zürich.db", "dlock"),
            ("sqlite:///a.db?table=%61", "/a.db", "a"),
        ] {
            let options = SqliteOptions::from_url(url).unwrap();
            assert_eq!(
                (options.path.to_str(), options.table.to_string().as_str()),
                (Some(path), table),
                "{url}"
            );
        }
    }

    #[test]
    fn other_urls_are_refused_with_the_right_form() {
        for url in [
            "",
            "sqlite:",
            "sqlite::memory:",
            "sqlite://",
            "sqlite:///",
            "sqlite:///dir/",
            "sqlite:a.db",
            "sqlite://:memory:",
            "postgres:///a",
            "sqlite:///a.db?mode=ro",
            "sqlite:///a.db?table=",
            "sqlite:///a.db?table=a%20b",
            "sqlite:///a.db?table=sqlite_x",
            "sqlite:///a.db#x",
            "sqlite:///%FF.db",
            "sqlite:///a%00.db",
            "sqlite:///a.db?table",
        ] {
            let error = SqliteOptions::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
        }
    }
}
