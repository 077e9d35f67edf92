//! The keys of a process: the certificate of its pool's authority, its own certificate with the
//! private key, and, in the file that the pool began with, the authority's private key. The text is
//! PEM, in this order:
//!
//! | block | what |
//! |---|---|
//! | CERTIFICATE | the authority |
//! | CERTIFICATE | the process |
//! | PRIVATE KEY | of the process |
//! | PRIVATE KEY | of the authority, where others are issued |
//!
//! All keys are Ed25519. An authority signs certificates of processes and no other authorities.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{self, cipher_suite, kx_group};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::refusal::{CertificateOf, refusal};
use crate::error::{Error, Result};
use crate::net::identity::Identity;

/// The keys of a process, ready for connections.
pub(in crate::net) struct Bundle {
    identity: Identity,
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    /// The authority's certificate, as PEM.
    pub(super) authority: String,
    /// Where others are issued.
    pub(super) authority_key: Option<PrivateKeyDer<'static>>,
}

/// What a text has.
struct Parts {
    authority: CertificateDer<'static>,
    own: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    authority_key: Option<PrivateKeyDer<'static>>,
}

impl Parts {
    fn of(text: &str) -> Result<Self> {
        let unreadable = |e: rustls::pki_types::pem::Error| {
            Error::invalid(format!("these are no keys: {e}; `dmtree keys new FILE` makes some"))
        };
        let certificates = CertificateDer::pem_slice_iter(text.as_bytes());
        let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(unreadable)?;
        let keys = PrivateKeyDer::pem_slice_iter(text.as_bytes());
        let keys: Vec<_> = keys.collect::<Result<_, _>>().map_err(unreadable)?;
        let (most, counts) = (keys.len() <= 2, (certificates.len(), keys.len()));
        let mut keys = keys.into_iter();
        match (<[_; 2]>::try_from(certificates), keys.next()) {
            (Ok([authority, own]), Some(key)) if most => {
                Ok(Self { authority, own, key, authority_key: keys.next() })
            }
            _ => Err(Error::invalid(format!(
                "these are no keys: {} certificates and {} private keys, and there must be 2, and 1 or 2; `dmtree keys new FILE` makes some",
                counts.0, counts.1
            ))),
        }
    }
}

/// What is negotiated: the newest version, one group, and two ciphers.
fn provider() -> Arc<CryptoProvider> {
    let cipher_suites =
        vec![cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
    let kx_groups = vec![kx_group::X25519];
    Arc::new(CryptoProvider { cipher_suites, kx_groups, ..ring::default_provider() })
}

impl Bundle {
    pub(in crate::net) fn of(text: &str) -> Result<Self> {
        Self::of_at(text, UnixTime::now())
    }

    /// The keys of a text, if they are valid at a time.
    pub(in crate::net) fn of_at(text: &str, now: UnixTime) -> Result<Self> {
        let Parts { authority, own, key, authority_key } = Parts::of(text)?;
        let bad = |e: rustls::Error| Error::invalid(format!("these are no keys: {e}"));
        let identity = identity_of(&own)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(bad)?;
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider());
        let verifier = verifier.build().map_err(|e| Error::invalid(e.to_string()))?;
        verifier.verify_client_cert(&own, &[], now).map_err(|e| refusal(&e, CertificateOf::Own))?;
        let newest = [&rustls::version::TLS13];
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&newest)
            .map_err(bad)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![own.clone()], key.clone_key())
            .map_err(bad)?;
        // A connection lasts; nothing is resumed, and nothing is kept for that.
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&newest)
            .map_err(bad)?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![own], key)
            .map_err(bad)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let (client, server) = (Arc::new(client), Arc::new(server));
        let authority = first_certificate(text).to_owned();
        Ok(Self { identity, client, server, authority, authority_key })
    }

    pub(in crate::net) fn identity(&self) -> Identity {
        self.identity
    }
}

/// The first certificate of a text that has one.
fn first_certificate(text: &str) -> &str {
    const END: &str = "-----END CERTIFICATE-----";
    let begin = text.find("-----BEGIN CERTIFICATE-----").unwrap_or(0);
    let end = text.find(END).map_or(text.len(), |at| at + END.len());
    text.get(begin..end).unwrap_or_default()
}

/// What the names of a certificate say.
pub(in crate::net) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity> {
    let parsed = webpki::EndEntityCert::try_from(certificate)
        .map_err(|e| Error::corrupt(format!("a certificate that cannot be read: {e}")))?;
    Identity::of_names(parsed.valid_uri_names())
}

/// A time as a date, `YYYY-MM-DD`.
pub(super) fn date(at: UnixTime) -> String {
    let at = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(at.as_secs().min(MAX_SECONDS));
    at.date().to_string()
}

/// The last second that certificates can name, from 1970 on: the end of the year 9999.
pub(super) const MAX_SECONDS: u64 = 253_402_300_799;
