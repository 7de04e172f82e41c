//! ZooKeeper in a child made by `fork`. One program without a test runner, since only the thread that forks lives on in
//! the child.

use dlock_core::{Error, ErrorKind, Locks, Result};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use dlock_zk::ZooKeeper;
use fork::{Fork, WEXITSTATUS, WIFEXITED};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Takes a lock over a session of its own, and gives it back.
async fn whole_life(url: &str) -> Result<()> {
    let locks = Locks::new(ZooKeeper::connect(url).await?);
    locks.lock("of the child").acquire().await?.release().await
}

/// Whether what the child found is as it should be.
fn in_a_child(found: impl FnOnce() -> bool) -> bool {
    match fork::fork().expect("a child") {
        Fork::Child => {
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(found));
            std::process::exit(i32::from(!found.unwrap_or(false)))
        }
        Fork::Parent(child) => {
            let status = fork::waitpid(child).expect("it ends");
            WIFEXITED(status) && WEXITSTATUS(status) == 0
        }
    }
}

fn main() {
    let server = ZooKeeperServer::start().expect("a server");
    let url = server.url();
    // Of a parent that has opened no session yet.
    assert!(in_a_child(|| runtime().block_on(whole_life(&url)).is_ok()));
    let parents = runtime();
    let zookeeper = parents.block_on(ZooKeeper::connect(&url)).expect("a session");
    let locks = Locks::new(zookeeper.clone());
    let guard = parents.block_on(locks.lock("k").acquire()).expect("it is free");
    let is_refused =
        |error: Error| error.kind() == ErrorKind::Unsupported && error.to_string().contains("fork before");
    assert!(in_a_child(|| {
        is_refused(runtime().block_on(whole_life(&url)).expect_err("the reactor is the parent's"))
    }));
    // What the parent has open.
    let fence = guard.fence().expect("each grant has one");
    assert!(in_a_child(|| is_refused(runtime().block_on(zookeeper.prune()).expect_err("the same"))));
    assert!(in_a_child(|| {
        let write = zookeeper.fenced_write(fence).create("/written", "by the child");
        is_refused(runtime().block_on(write.commit()).expect_err("the same"))
    }));
    guard.check().expect("it is held");
    parents.block_on(guard.release()).expect("it was held all the time");
}
