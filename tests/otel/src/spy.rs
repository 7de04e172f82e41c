//! Memory that tells which tokens it saw: they must appear nowhere.

use std::sync::{Arc, Mutex, PoisonError};

use dlock::backend::{ClaimRequest, LockId, ServerAddress};
use dlock::{Backend, Capabilities, Clock, Failure, Holder, Key, Memory};

#[derive(Clone, Debug)]
pub(crate) struct Spy {
    memory: Memory,
    tokens: Arc<Mutex<Vec<String>>>,
}

impl Spy {
    pub(crate) fn on(memory: Memory) -> Self {
        Self { memory, tokens: Arc::default() }
    }

    pub(crate) fn tokens(&self) -> Vec<String> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Backend for Spy {
    type Claim = <Memory as Backend>::Claim;

    fn name(&self) -> &'static str {
        self.memory.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn server_address(&self) -> Option<ServerAddress> {
        self.memory.server_address()
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
