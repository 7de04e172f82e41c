//! A process with one client, which makes pairs on request.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use dlock_bench::measure::runtime;
use dlock_bench::peers::{Client, Profile, nothing_else};
use dlock_rig::servers::etcd::EtcdServer;

use crate::clients::{self, Bare};

async fn connect(which: &str, url: &str) -> Result<Client<Bare>> {
    Ok(match which {
        "dlock" => Client::Ours(Arc::new(clients::dlock(url).await?)),
        "same" => Client::Bare(Arc::new(Bare::connect(url).await?)),
        other => bail!("no client is called {other}: dlock, same"),
    })
}

/// Answers what standard input asks, until it ends.
pub(crate) fn serve(which: &str, url: &str) -> Result<()> {
    runtime(false)?
        .block_on(async { connect(which, url).await?.serve(async |_, command| nothing_else(command)).await })
}

/// Makes pairs with one client only.
pub(crate) fn profile(profile: &Profile) -> Result<()> {
    let server = if profile.url.is_some() { None } else { Some(EtcdServer::start()?) };
    let url = profile.url.clone().or_else(|| Some(server.as_ref()?.url())).context("no server")?;
    runtime(false)?.block_on(async { profile.look_at(connect(&profile.client, &url).await?).await })
}
