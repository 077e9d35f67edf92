//! Issuing: the authority of a pool, and certificates of its processes.

use std::ops::Range;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, SanType, date_time_ymd,
};
use rustls::pki_types::UnixTime;

use super::NAME;
use super::bundle::{Bundle, MAX_SECONDS};
use crate::error::{Error, Result};
use crate::net::identity::{Identity, KeyRole, KeyRoles};
use crate::net::sockets::random;

/// A certificate is valid from so many seconds before it was made: clocks differ.
const BEFORE_SECONDS: u64 = 3600;
/// Longest validity, days.
const MAX_DAYS: u32 = 36_500;

/// Seconds from 1970 on, in which a certificate is valid.
type Validity = Range<u64>;

impl Bundle {
    pub(in crate::net) fn draw(days: u32) -> Result<String> {
        Self::draw_for(from_now(days)?)
    }

    pub(in crate::net) fn issue(&self, role: KeyRole, days: u32) -> Result<String> {
        self.issue_for(role.into(), from_now(days)?)
    }

    /// Keys that were valid when their process started.
    #[cfg(test)]
    pub(in crate::net) fn lasting(&self, valid: Validity) -> Self {
        let start = UnixTime::since_unix_epoch(Duration::from_secs(valid.start));
        let text = self.issue_for(KeyRoles::ALL, valid).expect("issued");
        Self::of_at(&text, start).expect("valid then")
    }

    pub(super) fn draw_for(valid: Validity) -> Result<String> {
        let pool = u128::from_le_bytes(random()?);
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(failed)?;
        let params = authority(pool);
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        let authority_key = key.serialize_pem();
        let issuer = Issuer::new(params, key);
        let own = signed(&issuer, &Identity { pool, roles: KeyRoles::ALL }, valid)?;
        Ok([certificate, own, authority_key].concat())
    }

    pub(super) fn issue_for(&self, roles: KeyRoles, valid: Validity) -> Result<String> {
        let Some(key) = &self.authority_key else {
            return Err(Error::invalid(
                "these keys issue no others: the file that `dmtree keys new` made does",
            ));
        };
        let key = KeyPair::from_der_and_sign_algo(key, &PKCS_ED25519)
            .map_err(|e| Error::invalid(format!("the authority's private key: {e}")))?;
        let (pool, start) = (self.identity().pool, valid.start);
        let issuer = Issuer::new(authority(pool), key);
        let own = signed(&issuer, &Identity { pool, roles }, valid)?;
        let text = format!("{}\n{own}", self.authority);
        // The private key in the file may be another authority's.
        let valid = UnixTime::since_unix_epoch(Duration::from_secs(start));
        Self::of_at(&text, valid).map(|_| text)
    }
}

fn failed(e: rcgen::Error) -> Error {
    Error::unsupported(format!("no certificate could be made: {e}"))
}

fn from_now(days: u32) -> Result<Validity> {
    if !(1..=MAX_DAYS).contains(&days) {
        return Err(Error::invalid(format!("{days} days: give 1 to {MAX_DAYS}")));
    }
    let now = UnixTime::now().as_secs();
    Ok(now.saturating_sub(BEFORE_SECONDS)..now + u64::from(days) * 86_400)
}

fn named(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}

/// The authority of a pool: its name follows from the pool, so that it can issue without the
/// certificate being parsed. Its validity is never asked for: processes trust it by having it.
fn authority(pool: u128) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("dmtree pool {pool:032x}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// A new private key with its certificate, as PEM.
fn signed(issuer: &Issuer<'_, KeyPair>, identity: &Identity, valid: Validity) -> Result<String> {
    let at =
        |seconds: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds.min(MAX_SECONDS));
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("dmtree {}", identity.roles));
    params.subject_alt_names = vec![
        SanType::DnsName(NAME.try_into().map_err(failed)?),
        SanType::URI(identity.to_string().try_into().map_err(failed)?),
    ];
    (params.not_before, params.not_after) = (at(valid.start), at(valid.end));
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    // Readers and administrators serve nothing: no process connects to them.
    if identity.roles.has(KeyRole::Compute) || identity.roles.has(KeyRole::Memory) {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(failed)?;
    let certificate = params.signed_by(&key, issuer).map_err(failed)?;
    Ok([certificate.pem(), key.serialize_pem()].concat())
}
