//! The certificates of TLS: those that are trusted, and the client's own.

use dlock_core::Failure;

#[cfg(feature = "tls")]
pub(crate) type Tls = zookeeper::TlsOptions;
#[cfg(not(feature = "tls"))]
pub(crate) type Tls = std::convert::Infallible;

/// Certificates in PEM form. They are never shown.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    #[cfg(feature = "tls")]
    pub(super) root: Option<String>,
    #[cfg(feature = "tls")]
    pub(super) client: Option<(String, String)>,
}

impl Certificates {
    #[cfg(not(feature = "tls"))]
    pub(super) fn options(self, _file: Option<String>) -> Result<Tls, Failure> {
        Err(Failure::invalid_config("TLS is not compiled in"))
    }

    #[cfg(feature = "tls")]
    pub(super) fn options(self, file: Option<String>) -> Result<Tls, Failure> {
        let wrong = |error: zookeeper::Error| {
            Failure::invalid_config(format!("a certificate or its key cannot be read as PEM ({error})"))
        };
        choose_crypto();
        let root = match (self.root, file) {
            (Some(pem), _) => pem,
            (None, Some(path)) => std::fs::read_to_string(&path)
                .map_err(|error| Failure::invalid_config(format!("{path:?} cannot be read ({error})")))?,
            (None, None) => of_system()?,
        };
        let mut options = Tls::new().with_pem_ca(&root).map_err(wrong)?;
        if let Some((certificate, key)) = self.client {
            options = options.with_pem_identity(&certificate, &key).map_err(wrong)?;
        }
        Ok(options)
    }
}

/// Installs a default cryptography provider for rustls, which panics if it cannot choose one: a build with two of them
/// has no default. A provider that the program has installed stays.
#[cfg(feature = "tls")]
fn choose_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}

/// Returns the certificates that the operating system trusts.
#[cfg(feature = "tls")]
fn of_system() -> Result<String, Failure> {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(Failure::invalid_config(format!(
            "the operating system has no certificates to trust ({:?}): install them, or give the one that the servers are \
             known by with with_root_certificate or root_certificate=/path.pem in the URL",
            found.errors
        )));
    }
    let pem = found.certs.iter().map(|certificate| {
        let text = BASE64_STANDARD.encode(certificate);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    });
    Ok(pem.collect())
}
