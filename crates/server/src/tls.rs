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
    let pem =
        std::fs::read(path).map_err(|error| wrong(path, &format!("it cannot be read: {error}")))?;
    parse(&pem).map_err(|error| {
        let encrypted = String::from_utf8_lossy(&pem).contains("-----BEGIN ENCRYPTED PRIVATE KEY");
        let reason = match error {
            PemError::NoItemsFound if encrypted => {
                "its key is encrypted with a password; decrypt it first: \
                 openssl pkey -in FILE -out key.pem"
                    .to_string()
            }
            PemError::NoItemsFound => {
                "it holds no private key in PEM form; --tls-key takes a file \
                 with '-----BEGIN PRIVATE KEY-----'"
                    .to_string()
            }
            error => format!("it is not a whole PEM file: {error}"),
        };
        wrong(path, &reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBgDCCASWgAwIBAgIUY5Gyk2H9HRitIo/2LPSa6Jd5jl0wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNjEyMTAwMVoYDzIxMjYxMDIz
MTIxMDAxWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATyF9FcN+LtUeuYdXFSd3Q9XHJ6BgbURa24Iva5D1P6qXw/XPD5o2Au
gypctEawmxao7dAYsLz0qE4BWlZ8Kfkeo1MwUTAdBgNVHQ4EFgQUujbH8egGaZoK
fXdIbLG8moBjO3AwHwYDVR0jBBgwFoAUujbH8egGaZoKfXdIbLG8moBjO3AwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEA2lrMtBLjYi+FtIEd9uim
Qpm5dfU10joLJW2XHAotP14CIQDDBOezMHcTXYaH5s17V8vzddkq4A8C5/ORUX0e
FPjm2g==
-----END CERTIFICATE-----
";

    /// A key that no certificate was made with.
    const OTHER_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgKrphiOTAePsO5Y32
/d2ZZDlg+evH9xelMZE9+ale1tKhRANCAARRuF7mUQvvklPKf1MAsWHAokeCaiGK
yuUN2hoEg71QHOwkmtlf8k2sjZuYTI8NPgASfp6buhWYi9vkFQbFBao+
-----END PRIVATE KEY-----
";

    /// Why these files are refused.
    fn refusal(certificate: &str, key: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pianola-tls-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let files = TlsFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
        std::fs::write(&files.certificate, certificate).unwrap();
        std::fs::write(&files.key, key).unwrap();
        let refused = acceptor(&files).err().expect("it is taken").to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        refused
    }

    #[test]
    fn a_refusal_names_the_file_and_the_mistake() {
        let no_certificate = refusal(OTHER_KEY, OTHER_KEY);
        assert!(no_certificate.contains("cert.pem for TLS: it holds no certificate"));
        let no_key = refusal(CERTIFICATE, CERTIFICATE);
        assert!(no_key.contains("key.pem for TLS: it holds no private key"), "{no_key}");
        let encrypted = OTHER_KEY.replace("PRIVATE", "ENCRYPTED PRIVATE");
        let encrypted = refusal(CERTIFICATE, &encrypted);
        assert!(encrypted.contains("key.pem") && encrypted.contains("password"), "{encrypted}");
        let apart = refusal(CERTIFICATE, OTHER_KEY);
        assert!(apart.contains("key.pem for TLS: the key does not belong"), "{apart}");
        let half = refusal(CERTIFICATE, &OTHER_KEY[..100]);
        assert!(half.contains("key.pem for TLS: it is not a whole PEM file"), "{half}");
        let files = TlsFiles { certificate: "/absent.pem".into(), key: "/absent.pem".into() };
        let absent = acceptor(&files).err().expect("it is taken").to_string();
        assert!(absent.contains("/absent.pem for TLS: it cannot be read"), "{absent}");
    }
}
