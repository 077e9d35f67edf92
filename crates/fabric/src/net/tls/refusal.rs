//! Why a certificate is refused, in a line for the operator.

use rustls::{AlertDescription, CertificateError, Error as Tls};

use super::bundle::date;
use crate::error::Error;

/// The side with the certificate that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CertificateOf {
    /// This process, as it says itself.
    Own,
    /// The other end of a connection.
    Peer,
}

/// The error of a connection, or of keys, that TLS refuses.
#[cold]
pub(super) fn refusal(e: &Tls, whose: CertificateOf) -> Error {
    let its = if whose == CertificateOf::Own { "the" } else { "its" };
    let why = match e {
        Tls::InvalidCertificate(why) => certificate(why, its),
        Tls::AlertReceived(alert) => received(*alert),
        Tls::InvalidMessage(_) | Tls::InappropriateMessage { .. } => {
            "it speaks no TLS here: is something on the path that does not belong there?".into()
        }
        e => format!("TLS fails: {e}"),
    };
    match whose {
        CertificateOf::Own => Error::invalid(why),
        CertificateOf::Peer => Error::incompatible(why),
    }
}

/// This side's verdict.
fn certificate(why: &CertificateError, its: &str) -> String {
    match why {
        CertificateError::ExpiredContext { time, not_after } => format!(
            "{its} certificate expired on {}, and this machine's clock says {}: issue another (`dmtree keys issue`), or set the clock",
            date(*not_after),
            date(*time)
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "{its} certificate begins on {}, and this machine's clock says {}: set the clocks of both machines",
            date(*not_before),
            date(*time)
        ),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!(
                "{its} certificate is not of this pool: give all processes keys of one authority (--key-file FILE or DMTREE_KEY_FILE)"
            )
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!(
                "{its} certificate is for no node: compute nodes and memory nodes need their roles"
            )
        }
        why => format!("{its} certificate is refused: {why}"),
    }
}

/// The other side's verdict.
fn received(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateExpired => {
            "it refuses this process's certificate as expired or not valid yet: are the clocks of both machines right? If so, issue another (`dmtree keys issue`)".into()
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it has the keys of another pool than this process: give those of its pool (--key-file FILE or DMTREE_KEY_FILE)".into()
        }
        alert => format!("it refuses this process's certificate ({alert:?})"),
    }
}
