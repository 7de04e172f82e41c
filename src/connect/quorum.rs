//! A quorum from a URL.

use dlock_core::backend::UrlParts;
use dlock_core::{Error, Failure, Node, Operation, Result};
use dlock_quorum::Quorum;

use super::{invalid, served, single, take_parameter};

/// Creates the quorum that `url` names.
///
/// `quorum:` is followed by the URLs of the nodes, and a `|` stands between them. No URL has a `|` as it is: in a
/// password it is written `%7C`. In a shell the whole needs quotes. Parameters of the quorum itself come last, after
/// `|?`:
///
/// ```text
/// quorum:redis://a|redis://b|redis://c
/// quorum:redis://:p%7Cw@a|redis://b|redis://c|?longest_lease=2m&name=orders
/// ```
///
/// | parameter | as |
/// |---|---|
/// | `longest_lease` | [`with_longest_lease`](crate::QuorumBuilder::with_longest_lease) |
/// | `node_timeout` | [`with_node_timeout`](crate::QuorumBuilder::with_node_timeout) |
/// | `durable=true` | [`with_durable_nodes`](crate::QuorumBuilder::with_durable_nodes) |
/// | `name` | [`with_name`](crate::QuorumBuilder::with_name) |
/// | `connect=lazy` | no node has to answer now; else a majority has to |
///
/// A time is a whole number with `ms`, `s`, `m` or `h`. Nodes are connected to when they are first used, and one that
/// is away is tried again, so that a minority may be away at the start too. The table of a database therefore needs its
/// schema. [`connect`](crate::connect()) and [`from_url`](crate::from_url) take such a URL as well.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::Error> {
/// let quorum = dlock::quorum_from_url("quorum:memory:|memory:|memory:|?durable=true").await?;
/// let locks = dlock::Locks::new(quorum);
/// locks.lock("room_7").run(async {}).await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when it is not such a URL or a node's is wrong, which
/// is named by its number; [`ErrorKind::QuorumNotReached`](crate::ErrorKind::QuorumNotReached) when no majority
/// answers. No error contains a password.
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn quorum_from_url(url: &str) -> Result<Quorum> {
    match url.split_once(':') {
        Some(("quorum", nodes)) => {
            let nodes = nodes.to_owned();
            served(async move { quorum_of(&nodes).await }).await
        }
        _ => Err(invalid("the URL does not begin with quorum:".into())),
    }
}

pub(super) async fn quorum_of(text: &str) -> Result<Quorum> {
    let form = "write quorum:<URL>|<URL>|<URL>, and parameters last, as in |?longest_lease=2m";
    let mut parts: Vec<&str> = text.split('|').collect();
    let query = parts.pop_if(|last| last.starts_with('?')).map_or("", |query| &query[1..]);
    let mut nodes = Vec::new();
    for (place, part) in parts.into_iter().enumerate() {
        let named = |error: Error| {
            Error::new(
                Operation::Configure,
                Failure::new(error.kind(), format!("node {}: {error}", place + 1)),
            )
        };
        if take_parameter(part, "connect=").1.is_some() {
            return Err(invalid(format!(
                "node {} has the parameter connect; it is one of the quorum, and comes last, as in |?connect=lazy",
                place + 1
            )));
        }
        nodes.push(Node::from(Box::pin(single(part, true)).await.map_err(named)?));
    }
    UrlParts::check_query(query).map_err(|failure| Error::new(Operation::Configure, failure))?;
    let (mut builder, mut is_lazy) = (Quorum::builder(nodes), false);
    for (name, value) in UrlParts::parameters(query) {
        let time = || {
            UrlParts::time(value).ok_or_else(|| {
                invalid(format!("a length of time is no whole number with ms, s, m or h; {form}"))
            })
        };
        match (name, value) {
            ("longest_lease", _) => builder = builder.with_longest_lease(time()?),
            ("node_timeout", _) => builder = builder.with_node_timeout(time()?),
            ("durable", "true") => builder = builder.with_durable_nodes(),
            ("connect", "lazy") => is_lazy = true,
            ("name", name) if !name.is_empty() && name.chars().all(is_plain) => {
                builder = builder.with_name(name);
            }
            // Not repeated: it may be a part of a password with a `|` in it.
            _ => {
                return Err(invalid(format!(
                    "a parameter of the quorum is none of longest_lease, node_timeout, durable=true, name (of letters, \
                     digits, - _ .) and connect=lazy; {form}"
                )));
            }
        }
    }
    let quorum = builder.build()?;
    if !is_lazy {
        quorum.connect().await?;
    }
    Ok(quorum)
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}
