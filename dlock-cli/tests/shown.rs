//! How locks are shown that several hold, or nobody any more, on every store.

mod every_store;
mod support;

use every_store::EveryStore;
use serde_json::Value;
use support::{Running, Store};

/// Somebody who runs a command in this way until told to finish.
fn holding(store: &Store, key: &str, options: &[&str]) -> Running {
    let mut running = store.run(key, options, "echo ready; read end; true").start();
    running.says("ready");
    running
}

/// What is shown of a key: the documents of its holders in the list, as `inspect` has them too, and its lines.
fn shown(store: &Store, key: &str) -> (Vec<Value>, Value, String) {
    let listed = store.dlock(["--json", "ls"]).done().json();
    let of_key = listed["held"].as_array().unwrap().iter().filter(|held| held["key"] == key);
    let listed: Vec<_> = of_key.cloned().collect();
    let document = store.dlock(["--json", "inspect", key]).done().json();
    let holders = document["holders"].as_array().unwrap();
    let sorted = |of: &[Value]| {
        let mut of: Vec<_> =
            of.iter().map(|holder| [&holder["pid"], &holder["mode"]].map(Value::to_string)).collect();
        of.sort();
        of
    };
    assert_eq!(sorted(holders), sorted(&listed), "{}: {document}", store.url());
    let text = store.dlock(["ls"]).done().out;
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with(key)).collect();
    (listed, document, lines.join("\n") + "\n" + &store.dlock(["inspect", key]).done().out)
}

#[test]
fn whoever_reads_has_permits_or_left_a_key_taken_is_shown_as_such() {
    let stores = EveryStore::start();
    for url in stores.urls.iter().filter(|url| !url.contains("mode=session") && !url.contains("mode=row")) {
        let store = Store::at(url);
        let mut running = vec![holding(&store, "alone", &[])];
        let (listed, _, text) = shown(&store, "alone");
        assert_eq!(
            (&listed[0]["mode"], &listed[0]["left_behind"]),
            (&"write".into(), &false.into()),
            "{url}"
        );
        assert!(text.contains("write"), "{url}: {text}");
        running.push(holding(&store, "page", &["--read"]));
        running.push(holding(&store, "page", &["--read"]));
        let (listed, _, text) = shown(&store, "page");
        assert_eq!(listed.len(), 2, "{url}: {text}");
        assert!(listed.iter().all(|holder| holder["mode"] == "read"), "{url}: {listed:?}");
        assert_eq!(text.matches(" read").count(), 4, "{url}: {text}");
        if !url.starts_with("quorum:") {
            running.push(holding(&store, "gpu", &["--permits", "4", "--take", "2"]));
            let (listed, document, text) = shown(&store, "gpu");
            let holder = &listed[0];
            assert_eq!((&holder["mode"], &holder["permits"]), (&"permits".into(), &2.into()), "{url}");
            assert_eq!(holder["permits_of"], 4, "{url}: {holder}");
            assert_eq!(
                (&document["permits"]["of"], &document["permits"]["taken"]),
                (&4.into(), &2.into()),
                "{url}"
            );
            assert!(text.contains("2 of 4 permits") && text.contains("2 of 4 are taken"), "{url}: {text}");
            let done = store.run("job", &["--once", "1h"], "true").done();
            assert_eq!(done.code, 0, "{url}: {}", done.err);
            let (listed, _, text) = shown(&store, "job");
            assert_eq!(listed[0]["left_behind"], true, "{url}: {listed:?}");
            assert!(text.contains(" kept until 2") && text.contains("mode        kept, by"), "{url}: {text}");
            assert!(text.contains("kept until  2") && text.contains("last holder"), "{url}: {text}");
            assert!(text.contains("free in     59m") && !text.contains("held for"), "{url}: {text}");
            let released = store.dlock(["release", "--force", "--yes", "job"]).done();
            assert!(released.out.contains("released job, kept, last held by"), "{url}: {}", released.out);
        }
        for mut one in running {
            one.finish();
            assert_eq!(one.wait().code, 0, "{url}");
        }
    }
}

#[test]
fn the_hash_in_a_log_line_leads_to_the_lock_while_it_is_held() {
    let store = Store::new();
    let mut running = store.holding("room_4");
    let inspected = store.dlock(["inspect", "--hash", "90f5fb40f5f3f42a"]).done();
    assert!(inspected.out.starts_with("key         room_4\n"), "{} {}", inspected.out, inspected.err);
    let document = store.dlock(["--json", "inspect", "--hash", "90F5FB40F5F3F42A"]).done().json();
    assert_eq!(document["key"], "room_4");
    running.finish();
    assert_eq!(running.wait().code, 0);
    let gone = store.dlock(["inspect", "--hash", "90f5fb40f5f3f42a"]).done();
    assert_eq!(gone.code, 70, "{}", gone.out);
    assert!(gone.err.contains("90f5fb40f5f3f42a"), "{}", gone.err);
}
