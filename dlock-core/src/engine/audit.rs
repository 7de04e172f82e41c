//! The sink of one `Locks`, which gets a record of each hold. What the record says: [`hold`](super::hold).

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::audit::{AuditSink, AuditedLocks};
use crate::backend::dynamic::DynBackend;
use crate::error::Failure;
use crate::guarded::{drop_guarded, tell};
use crate::key::Key;

/// The sink of one `Locks`, and what it is handed of them.
pub(crate) struct Audit {
    sink: Option<Box<dyn AuditSink>>,
    locks: Arc<AuditedLocks>,
}

impl Audit {
    /// Makes the audit of locks on `backend`, which has their prefix.
    pub(crate) fn new(
        sink: Box<dyn AuditSink>,
        backend: &dyn DynBackend,
        label: Option<String>,
    ) -> Result<Self, Failure> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        // Of any key: what differs between two places differs in all of their names.
        let id = backend.lock_id(&Key::new("audit")?);
        let locks = AuditedLocks {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            backend: backend.name(),
            store: hash(&format!("{id:?}")),
            in_process: backend.capabilities().in_process,
            label,
            process: std::process::id(),
        };
        Ok(Self { sink: Some(sink), locks: Arc::new(locks) })
    }

    /// Reports to the sink, whose panics change nothing.
    pub(super) fn tell(&self, event: impl FnOnce(&dyn AuditSink, &Arc<AuditedLocks>)) {
        if let Some(sink) = &self.sink {
            tell(|| event(&**sink, &self.locks));
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        // A destructor of others.
        drop_guarded(self.sink.take());
    }
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().take(8).fold(String::with_capacity(16), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
