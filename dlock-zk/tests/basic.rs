//! What is stored on the server, and that others can work with it.

use std::time::Duration;

use dlock_core::{ErrorKind, Guard, Locks, OnCrash, Wait};
use dlock_rig::expect::until;
use dlock_rig::servers::zookeeper::{NodeKind, ZooKeeperServer};
use dlock_zk::{Acl, AuthId, Permission, Recipe, ZooKeeper};

/// Longer than anything that is to happen by itself takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// The name of a node of Curator's.
const CURATOR: &str = "_c_01234567-89ab-cdef-0123-456789abcdef-lock-";

async fn connect(server: &ZooKeeperServer) -> ZooKeeper {
    ZooKeeper::connect(&server.url()).await.unwrap()
}

async fn locks(server: &ZooKeeperServer) -> Locks {
    Locks::builder(connect(server).await).with_label("basic").build().unwrap()
}

async fn take(locks: &Locks, key: &str) -> Guard {
    locks.lock(key).acquire().await.unwrap()
}

/// Waits in the background for `key`.
fn wait_for(locks: &Locks, key: &str) -> tokio::task::JoinHandle<dlock_core::Result<Guard>> {
    let lock = locks.lock(key).with_wait(Wait::Forever);
    tokio::spawn(async move { lock.acquire().await })
}

/// How many stand in line for `key` on the server.
async fn line_of(server: &ZooKeeperServer, key: &str, count: usize) {
    let path = format!("/dlock/{key}");
    until("the line", || server.admin().children(&path).len() == count).await;
}

#[tokio::test]
async fn what_stays_taken_is_stored_in_the_place_of_its_last_holder_until_somebody_comes_after_its_end() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server).await;
    let least = Duration::from_millis(400);
    let guard = locks.lock("least").with_hold_at_least(least).acquire().await.unwrap();
    let held = server.admin().children("/dlock/least").remove(0);
    let fence = guard.fence().unwrap();
    guard.release().await.unwrap();
    let names = server.admin().children("/dlock/least");
    let [name] = &names[..] else { panic!("{names:?}") };
    let number = held.rsplit_once("-lock-").unwrap().1;
    assert!(name.starts_with("_c_") && name.ends_with(&format!("-lock-{number}")), "{name} after {held}");
    assert_ne!(name[..39], held[..39], "under a token of its own");
    let millis: u64 = name.split("-left-").nth(1).unwrap().split('-').next().unwrap().parse().unwrap();
    assert!((1..=401).contains(&millis), "{name}");
    let node = server.admin().node(&format!("/dlock/least/{name}")).unwrap();
    assert_eq!(node.session, None, "it is nobody's");
    let data = String::from_utf8(node.data).unwrap();
    assert!(data.starts_with(&format!("left=1 fence={fence} host=")), "{data}");
    // The process that left it removes it too.
    until("the end", || server.admin().children("/dlock/least").is_empty()).await;
    assert!(locks.inspect("least").await.unwrap().is_none());
}

#[tokio::test]
async fn a_window_that_is_to_stay_closed_after_a_crash_and_a_key_of_a_leader_latch_are_refused_before_any_request()
 {
    let server = ZooKeeperServer::start().unwrap();
    let minute = Duration::from_secs(60);
    let job = locks(&server).await.once("job").with_window(minute).with_on_crash(OnCrash::Skip);
    let refused = job.run::<(), dlock_core::Error, _>(async { panic!("it runs") }).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("session"), "{refused}");
    let latches = ZooKeeper::builder(&server.url()).with_recipe(Recipe::LeaderLatch).connect().await.unwrap();
    let least = Locks::new(latches).lock("least").with_hold_at_least(minute);
    let refused = least.acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let keys = server.admin().children("/dlock");
    assert!(!keys.iter().any(|key| key == "least" || key == "job"), "{keys:?}");
}

#[tokio::test]
async fn a_lock_is_stored_as_curator_stores_it() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server).await;
    let guard = take(&locks, "room").await;
    let names = server.admin().children("/dlock/room");
    let [name] = &names[..] else { panic!("{names:?}") };
    let parts: Vec<usize> = name.split('-').map(str::len).collect();
    assert_eq!(parts, ["_c_".len() + 8, 4, 4, 4, 12, "lock".len(), 10], "{name}");
    assert!(name.starts_with("_c_") && name.ends_with("-lock-0000000000"), "{name}");
    let node = server.admin().node(&format!("/dlock/room/{name}")).unwrap();
    assert_eq!(node.session.map(|session| vec![session]), Some(server.admin().sessions()));
    assert_eq!(guard.fence().map(|fence| fence.get()), u64::try_from(node.czxid).ok());
    let data = String::from_utf8(node.data).unwrap();
    assert!(data.contains("pid=") && data.contains("label=basic"), "{data}");
    guard.release().await.unwrap();
    assert_eq!(server.admin().children("/dlock/room"), [""; 0]);
}

#[tokio::test]
async fn empty_directories_go_away_and_fences_still_grow() {
    let server = ZooKeeperServer::options().container_check(Duration::from_millis(50)).start().unwrap();
    let locks = locks(&server).await;
    let mut last = 0;
    for _ in 0..3 {
        let guard = take(&locks, "room").await;
        let names = server.admin().children("/dlock/room");
        assert!(names[0].ends_with("-0000000000"), "the numbers begin anew: {names:?}");
        let fence = guard.fence().unwrap().get();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        guard.release().await.unwrap();
        until("the end of the directory", || server.admin().node("/dlock/room").is_none()).await;
    }
}

#[tokio::test]
async fn a_lock_of_curator_is_respected_shown_and_followed() {
    let server = ZooKeeperServer::start().unwrap();
    let zookeeper = ZooKeeper::builder(&server.url()).with_base("/java").connect().await.unwrap();
    let locks = Locks::new(zookeeper.clone());
    for path in ["/java", "/java/room"] {
        server.admin().create(path, b"", NodeKind::Container);
    }
    // What is no lock of Curator's does not count.
    server.admin().create("/java/room/notes", b"", NodeKind::Persistent);
    let theirs = server.admin().create(
        &format!("/java/room/{CURATOR}"),
        b"192.168.1.7",
        NodeKind::PersistentSequential,
    );
    assert!(locks.lock("room").try_acquire().await.unwrap().is_none());
    let holder = locks.inspect("room").await.unwrap().expect("somebody has it");
    assert_eq!(holder.label.as_deref(), Some("192.168.1.7"));
    let waiter = wait_for(&locks, "room");
    until("the second in line", || server.admin().children("/java/room").len() == 3).await;
    let queue = zookeeper.queue("room").await.unwrap();
    assert_eq!(queue.len(), 2);
    assert_eq!((queue[0].label.as_deref(), queue[1].pid), (Some("192.168.1.7"), Some(std::process::id())));
    server.admin().delete(&theirs);
    let guard = waiter.await.unwrap().unwrap();
    assert_eq!(queue[1].fence, guard.fence());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_place_in_line_that_somebody_deletes_is_an_error_of_that_waiter_only() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server).await;
    let guard = take(&locks, "room").await;
    let first = wait_for(&locks, "room");
    line_of(&server, "room", 2).await;
    // Its number depends on whether its first request was in time.
    let number = |name: &String| name.rsplit('-').next().map(str::to_owned);
    let name = server.admin().children("/dlock/room").into_iter().max_by_key(number).unwrap();
    let second = wait_for(&locks, "room");
    line_of(&server, "room", 3).await;
    server.admin().delete(&format!("/dlock/room/{name}"));
    // The next look finds it, at the latest when the holder leaves.
    guard.release().await.unwrap();
    let error = tokio::time::timeout(SOON, first).await.expect("it ends").unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("its node in the queue was deleted"), "{error}");
    let guard = tokio::time::timeout(SOON, second).await.expect("it goes on").unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_outlives_many_session_timeouts_without_a_runtime_of_its_owner() {
    let server = ZooKeeperServer::start().unwrap();
    let zookeeper = ZooKeeper::builder(&server.url()).with_session_timeout(Duration::from_millis(1_000));
    let zookeeper = zookeeper.with_tick_time(Duration::from_millis(100));
    let locks = Locks::new(zookeeper.connect().await.unwrap());
    let guard = take(&locks, "room").await;
    // Nothing of this test's runtime runs meanwhile.
    std::thread::sleep(Duration::from_secs(4));
    // Suspect at most, where the machine stood still for a moment; one that is lost stays so.
    until("trust", || guard.check().is_ok()).await;
    assert_eq!(server.admin().children("/dlock/room").len(), 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_frozen_server_makes_locks_suspect_then_lost_and_short_freezes_lose_nothing() {
    let server = ZooKeeperServer::start().unwrap();
    let zookeeper = ZooKeeper::builder(&server.url()).with_session_timeout(Duration::from_secs(4));
    let locks = Locks::new(zookeeper.connect().await.unwrap());
    let guard = take(&locks, "room").await;
    server.pause();
    until("suspicion", || guard.check().is_err()).await;
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Suspect);
    server.resume();
    until("trust", || guard.check().is_ok()).await;
    server.pause();
    tokio::time::timeout(SOON, guard.lost()).await.expect("the loss is told");
    server.resume();
    guard.check().unwrap_err();
}

#[tokio::test]
async fn a_fenced_write_is_refused_once_the_lock_is_gone() {
    let server = ZooKeeperServer::start().unwrap();
    let zookeeper = connect(&server).await;
    let locks = Locks::new(zookeeper.clone());
    server.admin().create("/limit", b"1", NodeKind::Persistent);
    let guard = take(&locks, "config").await;
    let fence = guard.fence().unwrap();
    let write = || zookeeper.fenced_write(fence).set_data("/limit", "2").create("/note", "x");
    assert!(write().commit().await.unwrap());
    assert_eq!(server.admin().node("/limit").unwrap().data, b"2");
    let error = write().commit().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "the node exists: {error}");
    // The holder does not know yet, and the servers do.
    let name = server.admin().children("/dlock/config").remove(0);
    server.admin().delete(&format!("/dlock/config/{name}"));
    let write = zookeeper.fenced_write(fence).set_data("/limit", "3").delete("/note");
    assert!(!write.commit().await.unwrap());
    assert_eq!(server.admin().node("/limit").unwrap().data, b"2");
    drop(guard);
    assert!(!zookeeper.fenced_write(fence).set_data("/limit", "4").commit().await.unwrap());
}

#[tokio::test]
async fn who_logs_in_keeps_others_out_and_a_list_lets_them_in() {
    let server = ZooKeeperServer::start().unwrap();
    let url = |user: &str| server.url().replacen("zk://", &format!("zk://{user}:secret@"), 1);
    let ours = Locks::new(ZooKeeper::connect(&url("shop")).await.unwrap());
    let guard = take(&ours, "room").await;
    let stranger = Locks::new(ZooKeeper::connect(&url("mall")).await.unwrap());
    let error = stranger.lock("room").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
    guard.release().await.unwrap();

    let all = || [Acl::new(Permission::ALL, AuthId::anyone())];
    let shared = |user: &str| ZooKeeper::builder(&url(user)).with_base("/shared").with_parent_acl(all());
    let (ours, theirs) = (
        Locks::new(shared("shop").connect().await.unwrap()),
        Locks::new(shared("mall").connect().await.unwrap()),
    );
    let guard = take(&ours, "room").await;
    let waiter = wait_for(&theirs, "room");
    until("the second in line", || server.admin().children("/shared/room").len() == 2).await;
    let names = server.admin().children("/shared/room");
    let access = server.admin().access(&format!("/shared/room/{}", names[0]));
    assert!(access[0].1.starts_with("digest:"), "{access:?}");
    assert_eq!(server.admin().access("/shared/room"), [(31, "world:anyone".to_owned())]);
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_chroot_has_to_exist_or_be_asked_for_and_stands_before_all_paths() {
    let server = ZooKeeperServer::start().unwrap();
    let url = format!("{}/app/x?base=/locks", server.url());
    let error = ZooKeeper::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("/app/x"), "{error}");
    assert!(server.admin().node("/app").is_none());
    let zookeeper = ZooKeeper::connect(&format!("{url}&create_chroot=true")).await.unwrap();
    let locks = Locks::new(zookeeper.clone());
    let guard = take(&locks, "a/b").await;
    assert_eq!(server.admin().children("/app/x/locks"), ["%a%2Fb", "%sessions"]);
    let write = zookeeper.fenced_write(guard.fence().unwrap()).create("/data", "1");
    assert!(write.commit().await.unwrap());
    assert_eq!(server.admin().node("/app/x/data").unwrap().data, b"1");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_session_of_less_than_two_ticks_is_refused() {
    let server = ZooKeeperServer::start().unwrap();
    let builder = || ZooKeeper::builder(&server.url()).with_session_timeout(Duration::from_millis(1_500));
    let error = builder().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("tick"), "{error}");
    let locks = Locks::new(builder().with_tick_time(Duration::from_millis(100)).connect().await.unwrap());
    take(&locks, "room").await.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_and_named() {
    let url = "zk://shop:hunter2@127.0.0.1:1";
    let error = ZooKeeper::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1") && !error.to_string().contains("hunter2"), "{error}");
    let locks = Locks::new(ZooKeeper::builder(url).build().unwrap());
    let error = locks.lock("room").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_is_verified_and_never_left_out() {
    let server = ZooKeeperServer::options().tls().start().unwrap();
    let authority = server.certificates().authority().display().to_string();
    let pem = std::fs::read_to_string(&authority).unwrap();
    let with_root = |url: String, pem: &str| ZooKeeper::builder(&url).with_root_certificate(pem).connect();

    let trusting = Locks::new(with_root(server.tls_url(), &pem).await.unwrap());
    let guard = take(&trusting, "room").await;
    assert_eq!(server.admin().children("/dlock/room").len(), 1, "it is the same server");
    guard.release().await.unwrap();
    let by_file = format!("{}/?root_certificate={authority}", server.tls_url());
    take(&Locks::new(ZooKeeper::connect(&by_file).await.unwrap()), "room").await.release().await.unwrap();

    // Nobody to trust, somebody else to trust, and another name than the certificate's.
    let error = ZooKeeper::connect(&server.tls_url()).await.expect_err("the system does not know it");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::InvalidConfig), "{error}");
    let stranger = ZooKeeperServer::options().tls().start().unwrap();
    let other = std::fs::read_to_string(stranger.certificates().authority()).unwrap();
    with_root(server.tls_url(), &other).await.expect_err("signed by somebody else");
    with_root(server.tls_url().replace("localhost", "127.0.0.1"), &pem).await.expect_err("another name");
    // Not talked to without TLS, neither where that is spoken nor where it is not.
    let in_the_open = server.url().replace("zk://", "zk+tls://").replace("127.0.0.1", "localhost");
    with_root(in_the_open, &pem).await.expect_err("no TLS there");
}
