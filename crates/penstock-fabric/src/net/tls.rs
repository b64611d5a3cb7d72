//! TLS 1.3 by rustls.
//!
//! Identity is settled by the handshake of `penstock_proto::handshake`, which is tied to the TLS connection by its exporter: both
//! ends prove that they know the job's secret. A certificate therefore need not be trusted; where the user names certificate
//! authorities, it must be.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use std::path::Path;
use std::sync::Arc;

/// Why there is no TLS configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file that could not be read, or holds something else.
    #[error("expected {expected} in {path}: {reason}")]
    File {
        /// What it should hold.
        expected: &'static str,
        /// Its path.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// Certificate and key do not belong together, or are of no use.
    #[error("the certificate cannot be used: {reason}")]
    Unusable {
        /// What is wrong.
        reason: String,
    },
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn unusable(error: &dyn std::fmt::Display) -> TlsError {
    TlsError::Unusable { reason: error.to_string() }
}

fn file<'a>(
    expected: &'static str,
    path: &'a Path,
) -> impl Fn(rustls::pki_types::pem::Error) -> TlsError + 'a {
    move |error| TlsError::File { expected, path: path.display().to_string(), reason: error.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let expected = "certificates in PEM";
    let read = CertificateDer::pem_file_iter(path).map_err(file(expected, path))?;
    let read: Vec<_> = read.collect::<Result<_, _>>().map_err(file(expected, path))?;
    if read.is_empty() {
        let reason = "there is none in it".to_owned();
        return Err(TlsError::File { expected, path: path.display().to_string(), reason });
    }
    Ok(read)
}

/// A server's configuration: with the certificate and key in these PEM files, or one that is made now and signed by itself.
pub fn server(files: Option<(&Path, &Path)>) -> Result<Arc<ServerConfig>, TlsError> {
    let (chain, key) = match files {
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(file("a private key in PEM", key))?;
            (chain, key)
        }
        None => {
            let made = rcgen::generate_simple_self_signed(vec!["penstock".to_owned()]);
            let made = made.map_err(|error| unusable(&error))?;
            let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())
                .map_err(|error| unusable(&error))?;
            (vec![made.cert.der().clone()], key)
        }
    };
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| unusable(&error))?;
    // Connections last as long as the job: there is nothing to resume.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// A worker's configuration: it trusts the certificate authorities in this PEM file and checks the server's name, or, without
/// one, leaves it to the handshake that follows to find out who is at the other end.
pub fn client(authorities: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier: Arc<dyn ServerCertVerifier> = match authorities {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| unusable(&error))?;
            }
            let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
            built.map_err(|error| unusable(&error))?
        }
        None => Arc::new(Anyone(provider())),
    };
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unusable(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Accepts any certificate whose key the server holds.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
