//! The Maven project beside this crate.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

const INSTALL: &str = "install them with: apt-get install openjdk-17-jdk-headless maven";

/// Builds the worker that locks with Redisson and Curator. Returns the path of its jar.
///
/// # Errors
///
/// When Java or Maven is not installed, or the build fails.
pub async fn build() -> Result<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../java");
    let version =
        Command::new("java").arg("-version").output().await.with_context(|| format!("no java; {INSTALL}"))?;
    ensure!(version.status.success(), "java does not run; {INSTALL}");
    let built = Command::new("mvn")
        .args(["-q", "-B", "-Dstyle.color=never", "package"])
        .current_dir(&project)
        .output()
        .await
        .with_context(|| format!("no mvn; {INSTALL}"))?;
    ensure!(
        built.status.success(),
        "mvn package failed in {}: {}{}",
        project.display(),
        String::from_utf8_lossy(&built.stdout),
        String::from_utf8_lossy(&built.stderr)
    );
    Ok(project.join("target/interop-worker.jar"))
}
