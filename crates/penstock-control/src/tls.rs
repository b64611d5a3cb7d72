//! TLS 1.3 for both sides, from PEM files. No other version is compiled in.

use crate::error::Error;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What gRPC speaks.
const ALPN: &[u8] = b"h2";

/// The manager's side: shows `certificate`, proves it with `key`.
pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, Error> {
    let chain = certificates(certificate)?;
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|_| wrong(key, "expected a private key as PEM"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("the provider speaks TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| wrong(certificate, &format!("does not go with `{}`: {error}", key.display())))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The client's side: trusts what `ca` has signed, and nothing else.
pub(crate) fn connector(ca: &Path) -> Result<TlsConnector, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| wrong(ca, &error.to_string()))?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("the provider speaks TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = std::fs::read(path).map_err(|error| wrong(path, &error.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(wrong(path, "expected certificates as PEM")),
    }
}

fn wrong(path: &Path, reason: &str) -> Error {
    Error::File { path: path.to_owned(), reason: reason.to_owned() }
}
