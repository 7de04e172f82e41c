use super::*;

use super::session::{AdminSession, ReplyBody, ZooKeeperRequest};
use crate::proxy::{Jute, Loss, Proxy};

/// A session that has an ephemeral node.
fn ephemeral(server: &ZooKeeperServer, path: &str) -> AdminSession {
    const EPHEMERAL: i32 = 1;
    let mut session = AdminSession::open(server.address()).unwrap();
    let body =
        ReplyBody::default().text(path).bytes(b"").int(1).int(31).text("world").text("anyone").int(EPHEMERAL);
    session.ask(ZooKeeperRequest::Create, &body).unwrap().unwrap();
    session
}

#[test]
fn a_restart_keeps_nodes_and_sessions() {
    let mut server = ZooKeeperServer::start().unwrap();
    server.admin().create("/rooms", b"kept", NodeKind::Persistent);
    let _session = ephemeral(&server, "/mine");
    server.restart().unwrap();
    assert_eq!(server.admin().node("/rooms").unwrap().data, b"kept");
    assert!(server.admin().node("/mine").unwrap().session.is_some());
}

#[test]
fn an_expired_session_loses_its_nodes_and_cannot_be_taken_up_again() {
    let server = ZooKeeperServer::start().unwrap();
    let admin = server.admin();
    let _theirs = ephemeral(&server, "/theirs");
    let owner = admin.node("/theirs").unwrap().session.unwrap();
    assert_eq!(admin.sessions(), [owner]);
    admin.expire(owner);
    assert_eq!(admin.node("/theirs"), None);
    assert!(AdminSession::take_over(server.address(), owner).unwrap().is_none());
}

#[test]
fn the_administrator_sees_and_changes_nodes() {
    let server = ZooKeeperServer::options().container_check(Duration::from_millis(50)).start().unwrap();
    let admin = server.admin();
    admin.create("/rooms", b"", NodeKind::Container);
    let names: Vec<_> =
        (0..2).map(|_| admin.create("/rooms/n-", b"1", NodeKind::PersistentSequential)).collect();
    assert_eq!(names, ["/rooms/n-0000000000", "/rooms/n-0000000001"]);
    assert_eq!(admin.children("/rooms"), ["n-0000000000", "n-0000000001"]);
    assert_eq!(admin.access("/rooms"), [(31, "world:anyone".to_owned())]);
    admin.set_data(&names[0], b"2");
    let (first, second) = (admin.node(&names[0]).unwrap(), admin.node(&names[1]).unwrap());
    assert_eq!((&first.data[..], first.session), (&b"2"[..], None));
    assert!(first.czxid < second.czxid);
    assert_eq!(admin.watches(), 0);
    for name in names {
        admin.delete(&name);
    }
    let end = std::time::Instant::now() + START;
    while admin.node("/rooms").is_some() {
        assert!(std::time::Instant::now() < end, "the empty container stays");
    }
    assert_eq!(admin.children("/rooms"), [""; 0]);
}

#[test]
fn a_frozen_server_answers_once_it_thaws() {
    let server = ZooKeeperServer::start().unwrap();
    let admin = server.admin();
    server.pause();
    assert!(admin.word_within(EARLY_ANSWER, "ruok").is_err());
    server.resume();
    assert_eq!(admin.word("ruok"), "imok");
}

#[test]
fn an_ensemble_survives_its_leader_and_takes_it_back() {
    let mut ensemble = ZooKeeperEnsemble::start().unwrap();
    let first = ensemble.leader().unwrap();
    let _session = ephemeral(&ensemble.servers()[(first + 1) % 3], "/mine");
    ensemble.server_mut(first).kill();
    let second = ensemble.wait_for_leader().unwrap();
    assert_ne!(first, second);
    ensemble.server_mut(second).wait_until_ready(START).unwrap();
    assert!(ensemble.admin().node("/mine").unwrap().session.is_some(), "the session goes on");
    ensemble.server_mut(first).restart().unwrap();
    assert_eq!(ensemble.servers()[first].admin().children("/"), ["mine", "zookeeper"]);
}

#[test]
fn a_proxy_tells_requests_apart_and_loses_the_reply_of_one() {
    let server = ZooKeeperServer::start().unwrap();
    let proxy = Proxy::speaking(Jute::default(), server.address()).unwrap();
    let mut session = AdminSession::open(proxy.address()).unwrap();
    session.authenticate("a", "b").unwrap();
    let list = ReplyBody::default().text("/").bool(false);
    session.ask(ZooKeeperRequest::GetChildren, &list).unwrap().unwrap();
    proxy.lose_reply(1, "CREATE", Loss::Cut);
    let create =
        ReplyBody::default().text("/rooms").bytes(b"").int(1).int(31).text("world").text("anyone").int(0);
    assert!(session.ask(ZooKeeperRequest::Create, &create).is_err());
    assert_eq!(proxy.lost(), 1);
    assert_eq!(server.admin().children("/"), ["rooms", "zookeeper"]);
    let seen = ["AUTH", "CONNECT", "CREATE", "GETCHILDREN"].map(|name| (name.to_owned(), 1));
    assert_eq!(proxy.requests(), seen.into());
}
