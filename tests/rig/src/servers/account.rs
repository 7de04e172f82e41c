//! Database servers that refuse to run as root.

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{Certificates, Program, ServerError, directory, tls};

/// Who a server runs as: ourselves, unless we are root.
#[derive(Clone, Debug)]
pub(crate) struct Account(Option<Other>);

#[derive(Clone, Debug)]
struct Other {
    name: &'static str,
    uid: u32,
    gid: u32,
}

const SETPRIV: Program = Program { name: "setpriv", package: "util-linux" };

impl Account {
    /// Ourselves; as root, the user `name`, whom the server's package makes.
    pub(crate) fn unprivileged(name: &'static str, package: &'static str) -> Result<Self, ServerError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self(None));
        }
        let id = |what: &str| {
            let number = Program { name: "id", package: "coreutils" }.run([what, name])?;
            number
                .trim()
                .parse::<u32>()
                .map_err(|_| ServerError::new(format!("`id {what} {name}` says {number}")))
        };
        let (uid, gid) = id("-u").and_then(|uid| Ok((uid, id("-g")?))).map_err(|error| {
            ServerError::new(format!("no user {name}, whom the package {package} makes: {error}"))
        })?;
        Ok(Self(Some(Other { name, uid, gid })))
    }

    /// A directory that the server may use.
    pub(crate) fn directory(&self) -> Result<TempDir, ServerError> {
        let made = directory::temporary()?;
        if let Self(Some(other)) = self {
            chown(made.path(), Some(other.uid), Some(other.gid))
                .map_err(|error| ServerError::because("a directory for a server", &error))?;
        }
        Ok(made)
    }

    /// Certificates that the server may use.
    pub(crate) fn certificates(&self, directory: &Path) -> Result<Certificates, ServerError> {
        let certificates = Certificates::in_directory(directory)?;
        if let Self(Some(other)) = self {
            let key = directory.join(tls::KEY);
            chown(key, Some(other.uid), Some(other.gid))
                .map_err(|error| ServerError::because(tls::KEY, &error))?;
        }
        Ok(certificates)
    }

    /// The command line that runs `program` as this user, and stays the same process.
    pub(crate) fn command<'a>(
        &self,
        program: Program,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> (Program, Vec<OsString>) {
        let arguments = arguments.into_iter().map(OsString::from);
        match &self.0 {
            None => (program, arguments.collect()),
            Some(Other { name, .. }) => {
                let mut all: Vec<OsString> =
                    ["--reuid", name, "--regid", name, "--clear-groups", "--", program.name]
                        .into_iter()
                        .map(OsString::from)
                        .collect();
                all.extend(arguments);
                (SETPRIV, all)
            }
        }
    }

    /// Runs `program` as this user to its end.
    pub(crate) fn run<'a>(
        &self,
        program: Program,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<String, ServerError> {
        let (program, arguments) = self.command(program, arguments);
        program.run(arguments)
    }
}

/// Keeps a directory for as long as this process lives; a small helper process removes it afterwards.
pub(crate) fn keep(directory: TempDir) -> Result<PathBuf, ServerError> {
    const SCRIPT: &str = "trap '' INT TERM HUP; read line; rm -rf -- \"$1\"";
    let path = directory.path().to_owned();
    let mut helper = Command::new("sh");
    helper.args(["-c", SCRIPT, "remove"]).arg(&path);
    let helper = helper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    match helper {
        // Our end of its pipe is closed when this process ends, however it does.
        Ok(helper) => std::mem::forget((helper, directory)),
        Err(error) => return Err(ServerError::because("sh cannot be run", &error)),
    }
    Ok(path)
}

/// Copies a directory with its owners and rights.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), ServerError> {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    match copied {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(ServerError::new(format!("cp ended with {status}"))),
        Err(error) => Err(ServerError::because("cp", &error)),
    }
}

/// Where `program` is: in the last by name of the directories that `places` lists, or in `PATH`.
pub(crate) fn find(program: &str, places: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = places.into_iter().collect();
    places.sort();
    let places = places.into_iter().rev().chain(std::env::split_paths(&path));
    places
        .map(|place| place.join(program))
        .find(|file| file.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0))
}
