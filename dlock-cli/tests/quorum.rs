//! `dlock quorum`: the members of a quorum are changed while clients of before and after want its locks.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock::{ErrorKind, Locks};
use dlock_rig::servers::redis::RedisServer;
use support::{Done, Store};

const LEASE: Duration = Duration::from_secs(3);

/// One critical section that all clients want, and what became of it.
#[derive(Debug, Default)]
struct Section {
    inside: AtomicU64,
    overlaps: AtomicU64,
    ends: AtomicBool,
}

/// Clients of one URL.
#[derive(Debug, Default)]
struct Clients {
    done: AtomicU64,
    refused: AtomicU64,
}

impl Section {
    /// Only while both believe in their locks is it an overlap.
    async fn enter(&self, guard: &dlock::Guard, long: Duration) {
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(long).await;
        if others > 0 && guard.check().is_ok() {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn client(locks: Locks, section: Arc<Section>, clients: Arc<Clients>) {
    while !section.ends.load(Ordering::SeqCst) {
        match locks.lock("k").with_wait(Duration::from_millis(300)).acquire().await {
            Ok(guard) => {
                section.enter(&guard, Duration::from_millis(2)).await;
                clients.done.fetch_add(1, Ordering::SeqCst);
                let _ = guard.release().await;
            }
            Err(error) if error.kind() == ErrorKind::InvalidConfig => {
                clients.refused.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

async fn locks(url: &str) -> Locks {
    dlock::from_url(url).await.unwrap().with_lease(LEASE).build().unwrap()
}

fn url(servers: &[&RedisServer]) -> String {
    let nodes: Vec<_> = servers.iter().map(|server| server.url()).collect();
    format!("quorum:{}|?longest_lease=3s&node_timeout=500ms", nodes.join("|"))
}

async fn on_blocking(program: impl FnOnce() -> Done + Send + 'static) -> Done {
    tokio::task::spawn_blocking(program).await.unwrap()
}

async fn reaches(count: &AtomicU64, more: u64) {
    let goal = count.load(Ordering::SeqCst) + more;
    tokio::time::timeout(Duration::from_secs(60), async {
        while count.load(Ordering::SeqCst) < goal {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("clients get on");
}

/// Clients of both URLs run all the time, and somebody holds the lock when it begins.
async fn changed(before: &str, after: &str) {
    let section = Arc::new(Section::default());
    let (old, new) = (Arc::new(Clients::default()), Arc::new(Clients::default()));
    let mut tasks = Vec::new();
    for (url, clients) in [(before, &old), (after, &new)] {
        for _ in 0..4 {
            tasks.push(tokio::spawn(client(locks(url).await, Arc::clone(&section), Arc::clone(clients))));
        }
    }
    reaches(&old.done, 50).await;
    assert_eq!(new.done.load(Ordering::SeqCst), 0, "they are not a quorum yet");
    let long = locks(before).await;
    let guard = long.lock("k").with_wait(Duration::from_secs(30)).acquire().await.unwrap();
    let store = Store::at(before);
    let to = after.to_owned();
    let changing = tokio::spawn(on_blocking(move || store.dlock(["quorum", "change", "--to", &to]).done()));
    // For longer than the longest lease: it is renewed.
    section.enter(&guard, Duration::from_secs(5)).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    let done = changing.await.unwrap();
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert!(done.out.contains("still held"), "{}", done.out);
    reaches(&new.done, 50).await;
    let of_old = old.done.load(Ordering::SeqCst);
    reaches(&old.refused, 20).await;
    assert_eq!(old.done.load(Ordering::SeqCst), of_old, "those of before get nothing");
    section.ends.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(section.overlaps.load(Ordering::SeqCst), 0, "two held it");
    println!(
        "{} before, {} after, {} refused",
        of_old,
        new.done.load(Ordering::SeqCst),
        old.refused.load(Ordering::SeqCst)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_replaced_and_added_under_load_without_a_double_grant() {
    let servers: Vec<_> = (0..5).map(|_| RedisServer::options().start().unwrap()).collect();
    let [a, b, c, d, e] = &servers[..] else { unreachable!("five") };
    let first = url(&[a, b, c]);
    let done = Store::at(&first).dlock(["quorum", "bootstrap", "--yes"]).done();
    assert_eq!(done.code, 0, "{}", done.err);
    let two_others = url(&[a, d, e]);
    changed(&first, &two_others).await;
    let five = url(&[a, b, c, d, e]);
    changed(&two_others, &five).await;
    let shown = Store::at(&five).dlock(["--json", "quorum", "show"]).done();
    assert_eq!((shown.code, shown.json()["voting"].as_u64()), (0, Some(5)), "{}", shown.out);
    let left = Store::at(&first).dlock(["--json", "quorum", "show"]).done();
    assert_eq!((left.code, left.json()["voting"].as_u64()), (78, Some(0)), "{}", left.out);
    assert_eq!(left.json()["nodes"][0]["mark"], "foreign");
}

#[test]
fn a_node_that_is_away_for_ever_is_replaced() {
    let mut servers: Vec<_> = (0..4).map(|_| RedisServer::start().unwrap()).collect();
    let (before, after) = {
        let [a, b, c, d] = &servers[..] else { unreachable!("four") };
        (url(&[a, b, c]), url(&[a, b, d]))
    };
    let store = Store::at(&before);
    assert_eq!(store.dlock(["quorum", "bootstrap", "--yes"]).done().code, 0);
    let lease = ["--lease", "3s"];
    let mut running = store.run("job", &lease, "echo ready; read end; true").start();
    running.says("ready");
    servers[2].kill();
    let mut changing = store.dlock(["quorum", "change", "--to", &after]).start();
    while !changing.line().contains("still held") {}
    assert_eq!(Store::at(&after).run("other", &lease, "true").done().code, 64, "nobody has a vote");
    running.finish();
    running.wait();
    assert_eq!(changing.wait().code, 0);
    assert_eq!(Store::at(&after).run("job", &lease, "true").done().code, 0);
    // What has begun comes to its end, also where nobody reads on.
    let again = url(&[&servers[0], &servers[1], &servers[3]]) + "&name=again";
    let unread = r#""$@" | true; exit 0"#;
    assert_eq!(Store::at(&after).dlock(["quorum", "change", "--to", &again]).by_shell(unread).done().code, 0);
    let shown = Store::at(&again).dlock(["quorum", "show"]).done();
    assert_eq!(shown.code, 0, "{}{}", shown.out, shown.err);
    let after = again;
    // With too few nodes it is not even begun.
    servers[0].kill();
    servers[1].kill();
    let refused = Store::at(&after).dlock(["quorum", "change", "--to", &before]).done();
    assert_eq!(refused.code, 69, "{}{}", refused.out, refused.err);
}

/// Sees that the lock is renewed, and was never lost.
async fn renews(guard: &dlock::Guard) {
    for _ in 0..3 {
        tokio::time::timeout(Duration::from_secs(60), async {
            let mut left = guard.remaining();
            while guard.remaining() <= left {
                left = guard.remaining();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("it renews");
        guard.check().unwrap();
    }
}

async fn has_no_second_holder(url: &str) {
    let theirs = locks(url).await;
    for _ in 0..5 {
        let second = theirs.lock("k").try_acquire().await;
        assert!(!matches!(second, Ok(Some(_))), "a second holder");
    }
}

fn with_longest(servers: &[&RedisServer], longest: &str) -> String {
    url(servers).replace("longest_lease=3s", &format!("longest_lease={longest}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_a_lock_are_vouched_for_by_force_alone() {
    let servers: Vec<_> = (0..7).map(|_| RedisServer::options().start().unwrap()).collect();
    let all: Vec<_> = servers.iter().collect();
    let [a, b, c, d, e, ..] = &servers[..] else { unreachable!("seven") };
    let first = url(&[a, b, c]);
    // What is refused, with which code, and what the message names.
    for (shape, after, code, named) in [
        ("the same", with_longest(&[a, b, c], "4s"), 75, "node 1 and node 2 and node 3"),
        ("a superset", url(&all), 75, "node 1 and node 2 and node 3"),
        ("a subset", url(&[a, b]), 75, "node 1 and node 2"),
        ("one other", url(&[b, c, d]), 75, "node 1 and node 2"),
        ("two others", url(&[c, d, e]), 75, "node 1, by"),
    ] {
        for server in &servers {
            let () = server.command(&["FLUSHALL"]);
        }
        assert_eq!(Store::at(&first).dlock(["quorum", "bootstrap", "--yes"]).done().code, 0);
        let holding = locks(&first).await;
        let guard = holding.lock("k").with_wait(Duration::from_secs(30)).acquire().await.unwrap();
        // The renewals bring it to a node that did not answer in time.
        renews(&guard).await;
        let store = Store::at(&after);
        let refused = store.dlock(["quorum", "bootstrap", "--yes"]).done();
        assert_eq!(refused.code, code, "{shape}: {}{}", refused.out, refused.err);
        for part in [r#""k" on "#, named, "lease ends in", "dlock quorum change", "--force"] {
            assert!(refused.err.contains(part), "{shape}, {part}: {}", refused.err);
        }
        has_no_second_holder(&after).await;
        renews(&guard).await;
        let forced = store.dlock(["--json", "quorum", "bootstrap", "--yes", "--force"]).done();
        assert_eq!(forced.code, 0, "{shape}: {}{}", forced.out, forced.err);
        let told = forced.json();
        assert_eq!(told["held"][0]["key"], "k", "{shape}: {told}");
        assert!(told["forced_over"].as_str().unwrap().contains(named), "{shape}: {told}");
        assert_eq!(store.dlock(["--json", "quorum", "show"]).done().code, 0, "{shape}");
        drop(guard);
        holding.shutdown(Duration::from_secs(20)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_all_others_get_their_votes_when_the_lock_is_released() {
    let servers: Vec<_> = (0..6).map(|_| RedisServer::options().start().unwrap()).collect();
    let [a, b, c, d, e, f] = &servers[..] else { unreachable!("six") };
    let (first, after) = (url(&[a, b, c]), url(&[d, e, f]));
    let store = Store::at(&first);
    assert_eq!(store.dlock(["quorum", "bootstrap", "--yes"]).done().code, 0);
    let guard = locks(&first).await.lock("k").with_wait(Duration::from_secs(30)).acquire().await.unwrap();
    let mut changing = store.dlock(["quorum", "change", "--to", &after]).start();
    while !changing.line().contains("still held") {}
    has_no_second_holder(&after).await;
    renews(&guard).await;
    guard.release().await.unwrap();
    assert_eq!(changing.wait().code, 0);
    assert!(locks(&after).await.lock("k").with_wait(Duration::from_secs(30)).acquire().await.is_ok());
    has_no_second_holder(&first).await;
}

#[test]
fn nodes_of_a_third_quorum_are_not_taken_and_a_name_is_not_used_again() {
    let servers: Vec<_> = (0..6).map(|_| RedisServer::start().unwrap()).collect();
    let [a, b, c, d, e, f] = &servers[..] else { unreachable!("six") };
    let (first, third) = (url(&[a, b, c]), url(&[d, e, f]));
    for url in [&first, &third] {
        assert_eq!(Store::at(url).dlock(["quorum", "bootstrap", "--yes"]).done().code, 0);
    }
    for (from, to, says) in [
        (&first, &url(&[a, b, d]), "node 3 of the new quorum belongs to a third one"),
        (&url(&[a, b, d]), &url(&[a, b]), "node 1 of the old quorum belongs to a third one"),
        (&first, &first, "nothing is to be changed"),
        (&format!("{first}&name=n"), &format!("{}&name=n", url(&[c, d, e])), "another name="),
    ] {
        let refused = Store::at(from).dlock(["quorum", "change", "--to", to]).done();
        assert_eq!(refused.code, 64, "{}{}", refused.out, refused.err);
        assert!(refused.err.contains(says), "{}", refused.err);
    }
    for url in [&first, &third] {
        let shown = Store::at(url).dlock(["quorum", "show"]).done();
        assert_eq!(shown.code, 0, "both have their votes still: {}", shown.out);
    }
    let to = url(&[a, b, d]);
    let done = Store::at(&first).dlock(["quorum", "change", "--force", "--to", &to]).done();
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert!(done.out.contains("by force, over"), "{}", done.out);
}

#[test]
fn a_quorum_of_which_nobody_votes_is_no_well_one_and_one_that_is_away_is_shown() {
    let mut servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
    let url = url(&servers.iter().collect::<Vec<_>>());
    let store = Store::at(&url);
    let fresh = store.dlock(["--json", "doctor"]).done();
    assert_eq!(fresh.code, 78, "{}{}", fresh.out, fresh.err);
    let findings = fresh.json()["findings"].clone();
    assert_eq!(findings[0]["found"], "0 of 3 nodes vote, and 2 have to", "{findings}");
    let warned = |found: &serde_json::Value| found["subject"] == "vote" && found["severity"] == "warning";
    assert_eq!(findings.as_array().unwrap().iter().filter(|found| warned(found)).count(), 3, "{findings}");
    let text = store.dlock(["doctor"]).done().out;
    assert_eq!(text.matches("it votes by itself in time").count(), 1, "advice is given once: {text}");
    let refused = store.run("k", &["--wait", "0", "--lease", "3s"], "true").done();
    assert_eq!(refused.code, 69, "{}", refused.err);
    assert!(refused.err.contains("0 of 3 nodes took part"), "they answered: {}", refused.err);
    assert_eq!(store.dlock(["quorum", "bootstrap", "--yes"]).done().code, 0);
    let well = store.dlock(["doctor"]).done();
    assert_eq!(well.code, 0, "{}{}", well.out, well.err);
    assert!(well.out.contains("fine     votes: 3 of 3 nodes vote"), "{}", well.out);
    servers[0].kill();
    servers[1].kill();
    let plain = url.split("|?").next().unwrap();
    for url in
        [url.clone(), plain.to_owned(), format!("{plain}|?connect=lazy"), format!("{url}&connect=lazy")]
    {
        let shown = Store::at(&url).dlock(["quorum", "show"]).done();
        assert_eq!((shown.code, shown.err.as_str()), (78, ""), "{}", shown.out);
        assert!(shown.out.contains("node 1") && shown.out.contains(" of 3 vote, 2 have to"), "{}", shown.out);
        assert_eq!(shown.out.matches("the backend is unavailable").count(), 2, "said once: {}", shown.out);
    }
}
