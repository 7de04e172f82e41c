//! Memory that tells which tokens it saw, which must appear nowhere, and may pass for a server.

use std::sync::{Arc, Mutex, PoisonError};

use dlock::backend::{ClaimRequest, LockId, ServerAddress};
use dlock::{Backend, Capabilities, Clock, Failure, Holder, Key, Memory};

#[derive(Clone, Debug)]
pub(crate) struct Spy {
    memory: Memory,
    tokens: Arc<Mutex<Vec<String>>>,
    server: Option<ServerAddress>,
}

impl Spy {
    pub(crate) fn on(memory: Memory) -> Self {
        Self { memory, tokens: Arc::default(), server: None }
    }

    /// One that says that it is the Redis at this URL.
    pub(crate) fn redis(memory: Memory, url: &str) -> Self {
        Self { server: ServerAddress::in_url(url), ..Self::on(memory) }
    }

    pub(crate) fn tokens(&self) -> Vec<String> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Backend for Spy {
    type Claim = <Memory as Backend>::Claim;

    fn name(&self) -> &'static str {
        if self.server.is_some() { "redis" } else { self.memory.name() }
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn server_address(&self) -> Option<ServerAddress> {
        self.server.clone()
    }

    fn clock(&self) -> Clock {
        self.memory.clock()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.memory.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> Self::Claim {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).push(request.token.to_hex());
        self.memory.claim(request)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.memory.inspect(key).await
    }
}
