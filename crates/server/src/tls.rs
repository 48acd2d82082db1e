//! TLS by certificate files.

use crate::listen::ServerError;
use crate::options::TlsFiles;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error as TlsError, ServerConfig};

/// Encrypts connections with a certificate and its key.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ServerError> {
    let (certificate, key) = (files.certificate.as_path(), files.key.as_path());
    let chain = read(certificate, |pem| {
        CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()
    })?;
    if chain.is_empty() {
        let reason = "it holds no certificate in PEM form; --tls-cert takes a file with \
                      '-----BEGIN CERTIFICATE-----', the server's own certificate first";
        return Err(wrong(certificate, reason));
    }
    let private = read(key, PrivateKeyDer::from_pem_slice)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut config = config.map_err(|error| match error {
        TlsError::InconsistentKeys(_) => {
            let certificate = certificate.display();
            let reason = format!(
                "the key does not belong to the first certificate of {certificate}; give the key that \
                 the certificate was made with, and the server's own certificate first"
            );
            wrong(key, &reason)
        }
        TlsError::InvalidCertificate(_) => wrong(certificate, &error.to_string()),
        error => wrong(key, &error.to_string()),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn wrong(path: &Path, reason: &str) -> ServerError {
    ServerError::Tls { file: path.display().to_string(), reason: reason.to_string() }
}

/// Reads a PEM file.
fn read<T>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<T, PemError>,
) -> Result<T, ServerError> {
    let pem = std::fs::read(path)
        .map_err(|error| wrong(path, &format!("it cannot be read: {error}")))?;
    parse(&pem).map_err(|error| {
        let encrypted = String::from_utf8_lossy(&pem).contains("-----BEGIN ENCRYPTED PRIVATE KEY");
        let reason = match error {
            PemError::NoItemsFound if encrypted => {
                "its key is encrypted with a password; decrypt it first: \
                 openssl pkey -in FILE -out key.pem"
                    .to_string()
            }
            PemError::NoItemsFound => "it holds no private key in PEM form; --tls-key takes a file \
                 with '-----BEGIN PRIVATE KEY-----'"
                .to_string(),
            error => format!("it is not a whole PEM file: {error}"),
        };
        wrong(path, &reason)
    })
}
