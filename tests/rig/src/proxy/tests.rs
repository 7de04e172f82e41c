use super::*;

use std::io::ErrorKind;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;

/// A server that answers every line with `+<line>`, and tells what it received.
async fn echo() -> (SocketAddr, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let tell = tell.clone();
            tokio::spawn(async move {
                let (read, mut write) = stream.into_split();
                let mut lines = BufReader::new(read).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    tell.send(line.clone()).unwrap();
                    // The client may be gone; what it sent is received all the same.
                    drop(write.write_all(format!("+{line}\r\n").as_bytes()).await);
                }
            });
        }
    });
    (address, told)
}

async fn send(client: &mut TcpStream, line: &str) {
    client.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
}

async fn receive(client: &mut TcpStream) -> io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        match client.read_u8().await {
            Ok(byte) => line.push(byte),
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8(line).unwrap().trim_end().to_owned())
}

/// Whether nothing arrives for a while. Only ever used where something arriving is the failure.
async fn is_silent(client: &mut TcpStream) -> bool {
    tokio::time::timeout(Duration::from_millis(50), receive(client)).await.is_err()
}

#[tokio::test]
async fn requests_and_replies_pass_and_are_counted() {
    let (server, _told) = echo().await;
    let proxy = Proxy::speaking(Resp, server).unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    for line in ["GET a", "get b", "SET a 1"] {
        send(&mut client, line).await;
        assert_eq!(receive(&mut client).await.unwrap(), format!("+{line}"));
    }
    assert_eq!(proxy.requests(), BTreeMap::from([("GET".to_owned(), 2), ("SET".to_owned(), 1)]));
    let expected = Traffic { connections: 1, open: 1, bytes_to_server: 23, bytes_to_client: 26 };
    assert_eq!(proxy.traffic(), expected);
}

#[tokio::test]
async fn what_is_held_arrives_in_order_when_it_is_released_also_when_the_client_is_gone() {
    let (server, mut told) = echo().await;
    let proxy = Proxy::start(server).unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    send(&mut client, "before").await;
    assert_eq!(told.recv().await.unwrap(), "before");
    proxy.set(Direction::ToServer, Flow::Hold);
    send(&mut client, "one").await;
    send(&mut client, "two").await;
    // A reset may make the proxy's side forget what it has not read yet.
    while proxy.traffic().bytes_to_server < 18 {
        tokio::task::yield_now().await;
    }
    // The answer to `before` was not read: closing now is a reset.
    drop(client);
    assert!(tokio::time::timeout(Duration::from_millis(50), told.recv()).await.is_err());
    proxy.mend();
    assert_eq!(told.recv().await.unwrap(), "one");
    assert_eq!(told.recv().await.unwrap(), "two");
}

#[tokio::test]
async fn a_delay_keeps_the_pace_and_ends_when_it_is_mended() {
    let (server, mut told) = echo().await;
    let proxy = Proxy::start(server).unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    let delay = Duration::from_millis(100);
    proxy.set(Direction::ToServer, Flow::Delay(delay));
    let start = std::time::Instant::now();
    send(&mut client, "one").await;
    assert_eq!(told.recv().await.unwrap(), "one");
    assert!(start.elapsed() >= delay);
    proxy.set(Direction::ToServer, Flow::Delay(Duration::from_secs(3600)));
    send(&mut client, "two").await;
    proxy.mend();
    assert_eq!(told.recv().await.unwrap(), "two");
}

#[tokio::test]
async fn what_is_dropped_never_arrives() {
    let (server, mut told) = echo().await;
    let proxy = Proxy::start(server).unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.set(Direction::ToClient, Flow::Drop);
    send(&mut client, "one").await;
    assert_eq!(told.recv().await.unwrap(), "one");
    // The reply has to be at the proxy before it is mended.
    while proxy.traffic().bytes_to_client < 6 {
        tokio::task::yield_now().await;
    }
    assert!(is_silent(&mut client).await);
    proxy.mend();
    send(&mut client, "two").await;
    assert_eq!(receive(&mut client).await.unwrap(), "+two");
}

#[tokio::test]
async fn cutting_resets_and_closing_does_not() {
    let (server, _told) = echo().await;
    let proxy = Proxy::start(server).unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    send(&mut client, "one").await;
    receive(&mut client).await.unwrap();
    proxy.cut();
    assert_eq!(receive(&mut client).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    send(&mut client, "one").await;
    receive(&mut client).await.unwrap();
    proxy.close();
    assert_eq!(receive(&mut client).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn new_connections_are_swallowed_or_reset() {
    let (server, _told) = echo().await;
    let proxy = Proxy::start(server).unwrap();
    proxy.set_arrivals(Arrivals::BlackHole);
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    while proxy.traffic().connections < 1 {
        tokio::task::yield_now().await;
    }
    send(&mut client, "one").await;
    assert!(is_silent(&mut client).await);
    proxy.mend();
    assert!(is_silent(&mut client).await, "what was swallowed is gone");
    proxy.cut();
    assert_eq!(receive(&mut client).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    proxy.set_arrivals(Arrivals::Reset);
    // The reset may be here before connecting has told of its success.
    let error = match TcpStream::connect(proxy.address()).await {
        Ok(mut client) => receive(&mut client).await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn the_reply_of_one_request_is_lost_after_the_request_was_carried_out() {
    let (server, mut told) = echo().await;
    let proxy = Proxy::speaking(Resp, server).unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.lose_reply(2, "set", Loss::Cut);
    for line in ["SET 1", "GET 2", "SET 3"] {
        send(&mut client, line).await;
        assert_eq!(told.recv().await.unwrap(), line);
    }
    assert_eq!(receive(&mut client).await.unwrap(), "+SET 1");
    assert_eq!(receive(&mut client).await.unwrap(), "+GET 2");
    assert_eq!(receive(&mut client).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    proxy.wait_until_lost(1).await;

    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.lose_reply(1, "", Loss::Silence);
    for line in ["SET 4", "SET 5"] {
        send(&mut client, line).await;
        assert_eq!(told.recv().await.unwrap(), line);
    }
    proxy.wait_until_lost(2).await;
    assert!(is_silent(&mut client).await, "nothing after a lost reply arrives either");
    assert_eq!(proxy.lost(), 2);
}

#[tokio::test]
async fn a_lost_request_is_not_carried_out() {
    let (server, mut told) = echo().await;
    let proxy = Proxy::speaking(Resp, server).unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.lose_request(2, "");
    send(&mut client, "SET 1").await;
    assert_eq!(receive(&mut client).await.unwrap(), "+SET 1");
    send(&mut client, "SET 2").await;
    assert_eq!(receive(&mut client).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    send(&mut client, "SET 3").await;
    assert_eq!(told.recv().await.unwrap(), "SET 1");
    assert_eq!(told.recv().await.unwrap(), "SET 3");
}

#[tokio::test]
async fn new_connections_go_to_the_new_target() {
    let (first, mut told_first) = echo().await;
    let (second, mut told_second) = echo().await;
    let proxy = Proxy::start(first).unwrap();
    let mut old = TcpStream::connect(proxy.address()).await.unwrap();
    send(&mut old, "one").await;
    assert_eq!(told_first.recv().await.unwrap(), "one");
    proxy.retarget(second);
    let mut new = TcpStream::connect(proxy.address()).await.unwrap();
    send(&mut new, "two").await;
    send(&mut old, "three").await;
    assert_eq!(told_second.recv().await.unwrap(), "two");
    assert_eq!(told_first.recv().await.unwrap(), "three");
}
