//! Certificates for one server.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::ServerError;

pub(super) const AUTHORITY: &str = "authority.pem";
pub(super) const CERTIFICATE: &str = "server.pem";
pub(super) const KEY: &str = "server.key";

/// A certificate for `localhost`, and the authority that signed it and nothing else.
#[derive(Clone, Debug)]
pub struct Certificates {
    authority: PathBuf,
}

impl Certificates {
    pub(super) fn in_directory(directory: &Path) -> Result<Self, ServerError> {
        let make = || -> Result<(String, String, String), rcgen::Error> {
            let mut params = CertificateParams::default();
            // Another name than the server's, or the certificate would look as if it had signed itself.
            params.distinguished_name.push(DnType::CommonName, "authority of a test");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
            let key = KeyPair::generate()?;
            let server = CertificateParams::new(["localhost".to_owned()])?.signed_by(&key, &authority)?;
            Ok((authority.pem(), server.pem(), key.serialize_pem()))
        };
        let (authority, server, key) =
            make().map_err(|error| ServerError::new(format!("no certificate for the server: {error}")))?;
        for (name, text) in [(AUTHORITY, &authority), (CERTIFICATE, &server), (KEY, &key)] {
            fs::write(directory.join(name), text).map_err(|error| ServerError::because(name, &error))?;
        }
        let key = directory.join(KEY);
        // Servers refuse a key that others can read.
        fs::set_permissions(key, fs::Permissions::from_mode(0o600))
            .map_err(|error| ServerError::because(KEY, &error))?;
        Ok(Self { authority: directory.join(AUTHORITY) })
    }

    /// The file with the authority's certificate (PEM), which a client has to trust.
    #[must_use]
    pub fn authority(&self) -> &Path {
        &self.authority
    }
}
