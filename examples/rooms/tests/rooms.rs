//! The service as real processes.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::Uri;
use reqwest::blocking::Client;
use reqwest::{Method, StatusCode};

/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);

fn rooms() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rooms"));
    // Whatever is set where the tests run is not meant for them.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("OTEL_") || name.starts_with("DLOCK_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command
}

/// One replica. Dropping it kills it.
struct Replica {
    child: Child,
    output: BufReader<ChildStdout>,
    url: String,
}

impl Replica {
    fn start(directory: &Path, name: &str, envs: &[(&str, &str)]) -> Self {
        let mut command = rooms();
        command.args(["serve", "--name", name, "--data"]).arg(directory.join("bookings.db"));
        command.env("DLOCK_URL", format!("sqlite://{}", directory.join("locks.db").display()));
        command.envs(envs.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("it listens").to_owned();
        Self { child, output, url: format!("http://{address}") }
    }

    fn ask(&self, method: Method, path: &str, body: &str) -> (StatusCode, String) {
        let client = Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
        let request = client.request(method, format!("{}{path}", self.url));
        let response =
            request.header("content-type", "application/json").body(body.to_owned()).send().unwrap();
        (response.status(), response.text().unwrap())
    }

    fn book(&self, room: &str, day: u32) -> StatusCode {
        let booking = format!(r#"{{"day":{day},"guest":"ann"}}"#);
        self.ask(Method::POST, &format!("/rooms/{room}/bookings"), &booking).0
    }

    /// `None` when it listens no more.
    fn try_book(&self, room: &str, day: u32) -> Option<StatusCode> {
        let client = Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
        let request = client.post(format!("{}/rooms/{room}/bookings", self.url));
        let request = request.header("content-type", "application/json");
        match request.body(format!(r#"{{"day":{day},"guest":"ann"}}"#)).send() {
            Ok(response) => Some(response.status()),
            // Nobody took the connection.
            Err(_) => None,
        }
    }

    fn relocate(&self, from: &str, to: &str, day: u32) -> StatusCode {
        let way = format!(r#"{{"from":"{from}","to":"{to}","day":{day}}}"#);
        self.ask(Method::POST, "/bookings/move", &way).0
    }

    fn cancel(&self, room: &str, day: u32) -> StatusCode {
        self.ask(Method::DELETE, &format!("/rooms/{room}/bookings/{day}"), "").0
    }

    fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Whether it ended well, and what it said on its way.
    fn ended(mut self) -> (bool, String, String) {
        let (mut said, mut complained) = (String::new(), String::new());
        self.output.read_to_string(&mut said).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut complained).unwrap();
        (self.child.wait().unwrap().success(), said, complained)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn three_replicas_under_load_book_nothing_twice_and_leave_no_lock() {
    let output = rooms().args(["--replicas", "3", "--requests", "300", "--night", "300"]).output().unwrap();
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for part in
        ["rooms-3 listens on 127.0.0.1:", ", 0 of them double", ", 0 of them twice", "0 locks left behind"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("0 requests failed"), "{text}");
    assert!(text.lines().filter(|line| line.ends_with(": stopped")).count() == 3, "{text}");
    assert!(text.contains("settled "), "{text}");
}

#[test]
fn a_room_is_booked_once_over_all_replicas_and_a_booking_moves() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) =
        (Replica::start(directory.path(), "one", &[]), Replica::start(directory.path(), "two", &[]));
    assert_eq!(one.ask(Method::GET, "/ready", "").0, StatusCode::OK);
    assert_eq!(one.book("blue", 1), StatusCode::CREATED);
    assert_eq!(two.book("blue", 1), StatusCode::CONFLICT);
    assert_eq!(two.book("blue", 2), StatusCode::CREATED);
    assert_eq!(two.relocate("blue", "aqua", 1), StatusCode::NO_CONTENT);
    assert_eq!(one.relocate("blue", "aqua", 1), StatusCode::NOT_FOUND);
    assert_eq!(one.book("aqua", 1), StatusCode::CONFLICT);
    assert_eq!(one.book("blue", 1), StatusCode::CREATED);
    assert_eq!(one.relocate("aqua", "blue", 1), StatusCode::CONFLICT);
    assert_eq!(one.relocate("aqua", "aqua", 1), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(two.cancel("blue", 2), StatusCode::NO_CONTENT);
    assert_eq!(one.cancel("%62lue", 2), StatusCode::NOT_FOUND);
    let (status, settled) = one.ask(Method::POST, "/settlements/7", "");
    assert_eq!((status, settled.as_str()), (StatusCode::OK, r#"{"done":2}"#));
    assert_eq!(two.ask(Method::POST, "/settlements/7", "").1, r#""skipped""#);
    assert_eq!(two.ask(Method::GET, "/locks", "").1, "[]");
}

#[test]
fn a_replica_that_is_told_to_stop_finishes_what_it_began_and_leaves_its_rooms_free() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) =
        (Replica::start(directory.path(), "one", &[]), Replica::start(directory.path(), "two", &[]));
    std::thread::scope(|scope| {
        let bookings: Vec<_> = (1..=40)
            .map(|day| {
                scope.spawn({
                    let one = &one;
                    move || one.try_book("blue", day)
                })
            })
            .collect();
        let end = Instant::now() + LIMIT;
        // One is being booked, and others wait for the room.
        while two.ask(Method::GET, "/locks", "").1 == "[]" {
            assert!(Instant::now() < end, "nobody books anything");
        }
        one.terminate();
        let ended: Vec<_> = bookings.into_iter().map(|booking| booking.join().unwrap()).collect();
        assert!(ended.contains(&Some(StatusCode::CREATED)), "{ended:?}");
        // What it began came to an end.
        let known = [None, Some(StatusCode::CREATED), Some(StatusCode::SERVICE_UNAVAILABLE)];
        assert!(ended.iter().all(|status| known.contains(status)), "{ended:?}");
    });
    let (good, said, complained) = one.ended();
    assert!(good, "{complained}");
    assert!(said.ends_with("stopping\nstopped\n"), "{said}");
    assert_eq!(two.ask(Method::GET, "/locks", "").1, "[]");
    assert_eq!(two.book("blue", 99), StatusCode::CREATED);
}

#[test]
fn a_collector_that_is_away_and_settings_that_are_wrong_stop_no_booking() {
    for envs in [
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), ("OTEL_METRIC_EXPORT_INTERVAL", "100")],
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "not a url"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")],
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "not a url"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon")],
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")],
    ] {
        let directory = tempfile::tempdir().unwrap();
        let replica = Replica::start(directory.path(), "one", &envs);
        assert_eq!(replica.book("blue", 1), StatusCode::CREATED, "{envs:?}");
        replica.terminate();
        let (good, said, complained) = replica.ended();
        assert!(good && said.ends_with("stopped\n"), "{envs:?}: {said}{complained}");
    }
}

#[test]
fn a_collector_that_hangs_does_not_keep_a_replica_that_stopped() {
    // It takes what is sent, and never answers.
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", collector.local_addr().unwrap());
    std::thread::spawn(move || collector.incoming().collect::<Vec<_>>());
    for protocol in ["http/protobuf", "grpc"] {
        let directory = tempfile::tempdir().unwrap();
        let envs = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()), ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)];
        let mut replica = Replica::start(directory.path(), "one", &envs);
        assert_eq!(replica.book("blue", 1), StatusCode::CREATED);
        replica.terminate();
        let mut line = String::new();
        while line != "stopped\n" {
            line.clear();
            assert!(replica.output.read_line(&mut line).unwrap() > 0, "{protocol}: it did not stop");
        }
        let stopped = Instant::now();
        let (good, _, complained) = replica.ended();
        let took = stopped.elapsed();
        assert!(good && took < Duration::from_secs(4), "{protocol}: {took:?}: {complained}");
        println!("{protocol}: {took:?}");
    }
}

/// What was exported: where to, and the message.
type Received = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Takes whatever is exported, and keeps it.
fn receiver(runtime: &tokio::runtime::Runtime) -> (String, Received) {
    let received = Received::default();
    let kept = Arc::clone(&received);
    let keep = move |uri: Uri, body: Bytes| {
        kept.lock().unwrap().push((uri.path().to_owned(), body.to_vec()));
        std::future::ready(())
    };
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = axum::Router::new().fallback(keep);
    runtime.spawn(async move { axum::serve(listener, service).await });
    (url, received)
}

#[test]
fn what_is_exported_names_templates_and_spans_and_no_room_guest_or_password() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (url, received) = receiver(&runtime);
    let directory = tempfile::tempdir().unwrap();
    let replica = Replica::start(directory.path(), "replica-7", &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]);
    assert_eq!(replica.book("canary-room", 1), StatusCode::CREATED);
    assert_eq!(replica.book("canary-room", 1), StatusCode::CONFLICT);
    replica.terminate();
    let (good, _, complained) = replica.ended();
    assert!(good, "{complained}");
    let received = received.lock().unwrap();
    let all = |path: &str| -> String {
        let of_path = received.iter().filter(|(to, _)| to == path);
        of_path.map(|(_, body)| String::from_utf8_lossy(body).into_owned()).collect()
    };
    let (metrics, traces) = (all("/v1/metrics"), all("/v1/traces"));
    for name in ["dlock.acquire.duration", "dlock.hold.duration", "room_<room>", "replica-7", "sqlite"] {
        assert!(metrics.contains(name), "{name} is not among the metrics");
    }
    for name in [
        "POST /rooms/{room}/bookings",
        "acquire room_<room>",
        "hold room_<room>",
        "release room_<room>",
        "replica-7",
    ] {
        assert!(traces.contains(name), "{name} is not among the spans");
    }
    for secret in ["canary-room", "ann"] {
        let leaked = |text: &str| {
            text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|word| word == secret)
        };
        assert!(!leaked(&metrics) && !leaked(&traces), "{secret} was exported");
    }
}

#[test]
fn a_lock_store_that_cannot_be_used_is_said_in_one_line_without_its_password() {
    let directory = tempfile::tempdir().unwrap();
    for url in ["redis://user:hunter2@127.0.0.1:1/", "http://user:hunter2@h/", "nonsense"] {
        let data = directory.path().join("bookings.db");
        let mut command = rooms();
        let output = command.args(["serve", "--data"]).arg(data).env("DLOCK_URL", url).output().unwrap();
        let text = text(&output);
        assert!(!output.status.success());
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("rooms: ") && !text.contains("hunter2"), "{text}");
    }
}
