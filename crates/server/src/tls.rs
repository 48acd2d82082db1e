//! TLS by certificate files.

use crate::listen::ServerError;
use crate::options::TlsFiles;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What encrypts connections with a certificate and its key.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ServerError> {
    let wrong = |path: &Path, reason: String| {
        let file = path.display().to_string();
        ServerError::Tls { file, reason }
    };
    let (certificate, key) = (files.certificate.as_path(), files.key.as_path());
    let chain: Result<Vec<CertificateDer<'_>>, _> =
        CertificateDer::pem_file_iter(certificate).and_then(|chain| chain.collect());
    let chain = chain.map_err(|error| wrong(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(wrong(certificate, "it holds no certificate in PEM form".to_string()));
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut config = config.map_err(|error| wrong(key, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
