//! The workers in Python and Go, in the projects beside this crate: those that lock with kazoo, go-zookeeper and etcd's
//! own client, and those that hand locks on.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tokio::process::Command;

use crate::collector::{of_the_project, said};

/// The programs of the workers.
#[derive(Debug)]
pub struct OtherClients {
    /// A Python that has what they need.
    pub python: PathBuf,
    /// What it is to run.
    pub script: PathBuf,
    /// The worker in Go.
    pub go: PathBuf,
}

impl OtherClients {
    /// Installs kazoo into an environment of its own, and builds the worker with go-zookeeper.
    ///
    /// # Errors
    ///
    /// When Python or Go is missing, or an installation or the build fails.
    pub async fn build() -> Result<Self> {
        let ((python, script), go) = (python("worker.py").await?, go("go", ".").await?);
        Ok(Self { python, script, go })
    }

    /// The same of the workers that hand locks on.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    pub async fn of_rings() -> Result<Self> {
        let ((python, script), go) = (python("ring.py").await?, go("go", "./ring").await?);
        Ok(Self { python, script, go })
    }
}

/// Builds the worker with etcd's own client. Returns the path of the program.
///
/// # Errors
///
/// When Go is missing or too old, or the build fails.
pub async fn etcd() -> Result<PathBuf> {
    go("etcd", ".").await
}

/// Builds a program of a project in Go.
async fn go(project: &str, package: &str) -> Result<PathBuf> {
    let project = of_the_project("tests/interop").join(project);
    let program = project.join("target").join(if package == "." { "worker" } else { "ring" });
    run(Command::new("go").args(["build", "-o"]).arg(&program).arg(package), &project).await?;
    Ok(program)
}

/// Installs the clients for Python into an environment of their own: the Python that has them, and the path of a
/// script.
///
/// # Errors
///
/// When Python is missing, or the installation fails.
pub async fn python(script: &str) -> Result<(PathBuf, PathBuf)> {
    let project = of_the_project("tests/interop/python");
    let environment = project.join("target/venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment), &project).await?;
    let python = environment.join("bin/python");
    let install = ["-m", "pip", "install", "--quiet", "--requirement", "requirements.txt"];
    run(Command::new(&python).args(install), &project).await?;
    Ok((python, project.join(script)))
}

async fn run(command: &mut Command, directory: &Path) -> Result<()> {
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    let output = command.current_dir(directory).output().await.with_context(|| format!("no {name}"))?;
    said(&output, &name).map(drop)
}
