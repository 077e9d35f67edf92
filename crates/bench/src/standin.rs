//! Stands in for the simulated fabric until it is here: the same calls, executed by the in-process fabric.
#![allow(missing_docs)]

use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::local::LocalFabric;
use dmtree_fabric::*;

#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: String,
    read: f64,
}

impl Profile {
    pub fn names() -> Vec<&'static str> {
        vec!["dmtree-artifact-100g"]
    }
    pub fn named(name: &str) -> Result<Self> {
        if name == "dmtree-artifact-100g" {
            return Ok(Self { name: name.to_owned(), read: 19.8 });
        }
        Err(Error::invalid(format!("unknown profile {name:?}: give one of dmtree-artifact-100g")))
    }
    pub fn parse(from: &str, text: &str) -> Result<Self> {
        let read = text.trim().parse().map_err(|_| Error::invalid(format!("{from}: no number")))?;
        Ok(Self { name: "dmtree-artifact-100g".to_owned(), read })
    }
    pub fn set(&mut self, path: &str, value: &str) -> Result<()> {
        let bad = || Error::invalid("responder_ns.read: give 0 to 1e7");
        if path != "responder_ns.read" {
            return Err(bad());
        }
        self.read = value.parse::<f64>().ok().filter(|v| *v >= 0.0).ok_or_else(bad)?;
        Ok(())
    }
    pub fn get(&self, _: &str) -> Option<f64> {
        Some(self.read)
    }
    pub fn to_toml(&self) -> String {
        format!("{:?}\n", self.read)
    }
}

#[derive(Clone, Debug)]
pub struct NodeUsage {
    pub node: NodeId,
    pub in_wire_ns: u64,
    pub out_wire_ns: u64,
    pub responder_ns: u64,
    pub initiator_ns: u64,
    pub same_word_ns: u64,
    pub rpc_ns: u64,
    pub in_bytes: u64,
    pub out_bytes: u64,
    pub reads: u64,
    pub writes: u64,
    pub atomics: u64,
    pub rpcs: u64,
}

#[derive(Clone, Debug)]
pub struct ThreadUsage {
    pub node: NodeId,
    pub number: u32,
    pub cpu_ns: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Usage {
    pub since_ns: u64,
    pub until_ns: u64,
    pub nodes: Vec<NodeUsage>,
    pub threads: Vec<ThreadUsage>,
}

#[derive(Clone, Debug)]
pub struct SimFabric(LocalFabric);

impl SimFabric {
    pub fn new(_: &Profile, _: u64) -> Result<Self> {
        Ok(Self(LocalFabric::new()))
    }
    pub fn add_node(&self, node: NodeId, bytes: u64) -> Result<()> {
        self.0.add_node(node, bytes)
    }
    pub fn set_timed(&self, _: bool) {}
    pub fn trace_hash(&self) -> u64 {
        0
    }
    pub fn usage(&self) -> Usage {
        Usage::default()
    }
    pub fn reset_usage(&self) {}
}

impl Fabric for SimFabric {
    fn name(&self) -> &'static str {
        "sim"
    }
    fn nodes(&self) -> Vec<NodeId> {
        self.0.nodes()
    }
    fn region_bytes(&self, node: NodeId) -> Option<u64> {
        self.0.region_bytes(node)
    }
    fn attach(&self, node: NodeId) -> Result<Rc<dyn Transport>> {
        self.0.attach(node)
    }
    fn caps(&self) -> Capabilities {
        self.0.caps()
    }
    fn serve(&self, node: NodeId, service: ServiceId, handler: Arc<dyn RpcHandler>) -> Result<()> {
        self.0.serve(node, service, handler)
    }
    fn fence(&self, host: NodeId, node: NodeId, incarnation: u32) -> Result<()> {
        self.0.fence(host, node, incarnation)
    }
    fn incarnation(&self, node: NodeId) -> Option<u32> {
        self.0.incarnation(node)
    }
    fn events(&self, since: u64) -> Vec<MemberEvent> {
        self.0.events(since)
    }
}
