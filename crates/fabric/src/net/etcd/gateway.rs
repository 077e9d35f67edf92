//! etcd's JSON gateway, as far as a pool needs it: one range of keys, transactions, leases.
//!
//! Every request has a time limit and goes to one server; after a failure the next request goes to
//! the next one. A request that fails may have been executed: the caller looks before it repeats
//! one. Answers are bounded and checked; 64-bit numbers come as strings.

use std::sync::Mutex;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::sync::locked;

/// Longest answer, bytes.
const MAX_ANSWER: u64 = 16 << 20;
/// Most keys of one answer.
const MAX_KEYS: u64 = 1 << 16;
/// etcd's code for a store that has reached its quota.
const NO_SPACE: u64 = 8;

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    /// The revision of its last change.
    pub(super) changed: u64,
}

/// A condition of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) enum If<'a> {
    /// A key was last changed in this revision; 0: it is not there.
    Unchanged(&'a str, u64),
    /// No key begins with this.
    NoneBelow(&'a str),
}

/// A change of a transaction.
#[derive(Debug)]
pub(super) enum Then<'a> {
    Put(&'a str, Vec<u8>),
    /// A key that ends with a lease.
    PutLeased(&'a str, Vec<u8>, LeaseId),
    Delete(&'a str),
}

/// A lease of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseId(pub(super) i64);

/// The servers of an etcd cluster.
pub(super) struct Gateway {
    agent: ureq::Agent,
    /// `HOST:PORT`, the one that is asked next first.
    servers: Mutex<Vec<String>>,
    names: String,
}

impl Gateway {
    /// Of servers at `HOST:PORT`; a request takes `within` at most.
    pub(super) fn new(servers: Vec<String>, within: Duration) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(within))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .build();
        let names = servers.join(",");
        Self { agent: config.into(), servers: Mutex::new(servers), names }
    }

    /// How many servers there are.
    pub(super) fn servers(&self) -> usize {
        locked(&self.servers).len()
    }

    /// The servers, for messages.
    pub(super) fn names(&self) -> &str {
        &self.names
    }

    /// All keys that begin with a prefix, in their order, as of one revision.
    ///
    /// # Errors
    /// Those of every request: `Unreachable` when no server answers in time; `Incompatible` when
    /// it is no etcd with a gateway of version 3.4 or later; `Full` when the store has reached its
    /// quota; `Corrupt` for an answer that is none.
    pub(super) fn range(&self, prefix: &str) -> Result<Vec<Pair>> {
        let ask = json!({
            "key": encode(prefix), "range_end": encode_bytes(&end_of(prefix)),
            "limit": MAX_KEYS.to_string(),
        });
        pairs(&self.post("kv/range", &ask)?)
    }

    /// Executes changes if all conditions hold; the revision afterwards.
    pub(super) fn transact(&self, when: &[If<'_>], then: &[Then<'_>]) -> Result<Option<u64>> {
        let compare: Vec<Value> = when.iter().map(If::json).collect();
        let success: Vec<Value> = then.iter().map(Then::json).collect();
        let done = self.post("kv/txn", &json!({ "compare": compare, "success": success }))?;
        let revision = number(&done["header"]["revision"])?;
        Ok(done["succeeded"].as_bool().unwrap_or(false).then_some(revision))
    }

    /// A lease of so many seconds at least.
    pub(super) fn grant(&self, seconds: u64) -> Result<LeaseId> {
        let granted = self.post("lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        match number(&granted["TTL"])? {
            n if n >= seconds => Ok(LeaseId(signed(&granted["ID"])?)),
            n => Err(corrupt(&format!("a lease of {n} s where {seconds} s were asked for"))),
        }
    }

    /// Renews a lease; false when it has ended.
    pub(super) fn keep_alive(&self, lease: LeaseId) -> Result<bool> {
        let kept = self.post("lease/keepalive", &json!({ "ID": lease.0.to_string() }))?;
        let left = &kept["result"]["TTL"];
        Ok(!left.is_null() && number(left)? > 0)
    }

    /// Ends a lease, and its keys with it.
    pub(super) fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.post("lease/revoke", &json!({ "ID": lease.0.to_string() })).map(|_| ())
    }

    fn post(&self, what: &str, body: &Value) -> Result<Value> {
        let server = locked(&self.servers)[0].clone();
        let answered = self.post_to(&server, what, body);
        if answered.is_err() {
            let mut servers = locked(&self.servers);
            // Another thread may have passed on meanwhile.
            if servers[0] == server {
                servers.rotate_left(1);
            }
        }
        answered
    }

    fn post_to(&self, server: &str, what: &str, body: &Value) -> Result<Value> {
        let away = |e: ureq::Error| {
            Error::unreachable(format!("etcd at {server} does not answer ({e}): is it up?"))
        };
        let url = format!("http://{server}/v3/{what}");
        let sent = self.agent.post(&url).content_type("application/json").send(body.to_string());
        let mut answer = sent.map_err(away)?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec().map_err(away)?;
        decode(server, status, &text)
    }
}

/// An answer from its status and its bytes.
fn decode(server: &str, status: u16, text: &[u8]) -> Result<Value> {
    let said: Result<Value> =
        serde_json::from_slice(text).map_err(|_| corrupt("bytes that are no JSON"));
    let refusal =
        said.as_ref().ok().and_then(|v| Some((v["code"].as_u64()?, v["message"].as_str()?)));
    match (status, refusal) {
        (404, _) => Err(Error::incompatible(format!(
            "{server} has no JSON gateway for version 3: is it etcd 3.4 or later?"
        ))),
        (_, Some((NO_SPACE, message))) => Err(Error::full(format!(
            "etcd at {server} has reached its quota ({message}): compact it, and disarm the alarm"
        ))),
        (200, None) => said,
        // A server that has no leader, or ends, says so.
        (_, Some((_, message))) => {
            Err(Error::unreachable(format!("etcd at {server} refuses: {}", shortened(message))))
        }
        (status, None) => Err(Error::unreachable(format!("etcd at {server} says status {status}"))),
    }
}

fn shortened(message: &str) -> String {
    message.chars().take(200).collect()
}

impl If<'_> {
    fn json(&self) -> Value {
        match self {
            Self::Unchanged(key, revision) => json!({
                "key": encode(key), "target": "MOD", "result": "EQUAL",
                "mod_revision": revision.to_string(),
            }),
            Self::NoneBelow(prefix) => json!({
                "key": encode(prefix), "range_end": encode_bytes(&end_of(prefix)),
                "target": "CREATE", "result": "EQUAL", "create_revision": "0",
            }),
        }
    }
}

impl Then<'_> {
    fn json(&self) -> Value {
        let put = |key: &str, value: &[u8], lease: i64| {
            json!({ "request_put": {
                "key": encode(key), "value": encode_bytes(value), "lease": lease.to_string(),
            }})
        };
        match self {
            Self::Put(key, value) => put(key, value, 0),
            Self::PutLeased(key, value, lease) => put(key, value, lease.0),
            Self::Delete(key) => json!({ "request_delete_range": { "key": encode(key) } }),
        }
    }
}

/// The pairs of an answer.
fn pairs(answer: &Value) -> Result<Vec<Pair>> {
    if answer["more"].as_bool() == Some(true) {
        return Err(corrupt("more keys than a pool can have"));
    }
    let Some(kvs) = answer["kvs"].as_array() else { return Ok(Vec::new()) };
    let pair = |kv: &Value| {
        let key = String::from_utf8(bytes(&kv["key"])?).map_err(|_| corrupt("a key of no text"))?;
        // An empty value is left out.
        let value = if kv["value"].is_null() { Vec::new() } else { bytes(&kv["value"])? };
        Ok(Pair { key, value, changed: number(&kv["mod_revision"])? })
    };
    kvs.iter().map(pair).collect()
}

fn number(v: &Value) -> Result<u64> {
    let text = v.as_str().ok_or_else(|| corrupt("no number where one belongs"))?;
    text.parse().map_err(|_| corrupt("a number that is none"))
}

fn signed(v: &Value) -> Result<i64> {
    let text = v.as_str().ok_or_else(|| corrupt("no number where one belongs"))?;
    text.parse().map_err(|_| corrupt("a number that is none"))
}

fn bytes(v: &Value) -> Result<Vec<u8>> {
    let text = v.as_str().ok_or_else(|| corrupt("no bytes where some belong"))?;
    BASE64.decode(text).map_err(|_| corrupt("bytes that are not in base64"))
}

fn encode(key: &str) -> String {
    encode_bytes(key.as_bytes())
}

fn encode_bytes(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The first key behind all that begin with a prefix, which ends in `/`.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn corrupt(what: &str) -> Error {
    Error::corrupt(format!("etcd answers {what}"))
}

/// Any bytes as the answer to a range, a transaction, or about a lease.
pub(super) fn fuzz(status: u16, text: &[u8]) {
    if let Ok(answer) = decode("etcd", status, text) {
        let _ = pairs(&answer);
        let _ = (number(&answer["header"]["revision"]), signed(&answer["ID"]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn refusals_have_kinds_and_a_way_out() {
        let says = |status, text: &str| decode("h:1", status, text.as_bytes());
        let kind = |status, text: &str| says(status, text).expect_err("refused").kind();
        assert_eq!(kind(404, "404 page not found"), ErrorKind::Incompatible);
        let full = r#"{"error":"etcdserver: mvcc: database space exceeded","message":"etcdserver: mvcc: database space exceeded","code":8}"#;
        assert_eq!(kind(429, full), ErrorKind::Full);
        assert_eq!(kind(200, "{"), ErrorKind::Corrupt);
        let no_leader =
            r#"{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}"#;
        assert_eq!(kind(503, no_leader), ErrorKind::Unreachable);
        assert_eq!(kind(500, "x"), ErrorKind::Unreachable);
        assert!(says(200, "{}").is_ok());
    }

    #[test]
    fn pairs_are_read_or_refused() {
        let answer = |text: &str| pairs(&serde_json::from_str(text).expect("JSON"));
        assert_eq!(answer(r#"{"header":{}}"#).expect("none"), []);
        let one =
            answer(r#"{"kvs":[{"key":"YQ==","mod_revision":"7"}],"count":"1"}"#).expect("one");
        assert_eq!(one, [Pair { key: "a".into(), value: Vec::new(), changed: 7 }]);
        for bad in [
            r#"{"kvs":[{"key":"!","mod_revision":"7"}]}"#,
            r#"{"kvs":[{"key":"YQ==","mod_revision":"-7"}]}"#,
            r#"{"kvs":[{"key":"YQ==","mod_revision":7}]}"#,
            r#"{"kvs":[{"mod_revision":"7"}]}"#,
            r#"{"kvs":[{"key":"/w==","mod_revision":"7"}]}"#,
            r#"{"more":true}"#,
        ] {
            assert_eq!(answer(bad).expect_err(bad).kind(), ErrorKind::Corrupt, "{bad}");
        }
        assert_eq!(end_of("/a/"), b"/a0");
    }
}
