//! A peer that begins a connection correctly, for tests of later violations of the protocol. Errors
//! are what the node refuses.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::super::handshake::{Client, Side};
use super::super::key::{self, Key};
use super::super::roles::Badges;
use super::super::wire::{self, Answer, Ask, Credential, Hello, Introduction, PoolId, Welcome};
use crate::addr::{NodeId, Role};
use crate::error::{Error, Result};
use crate::membership::Member;

/// A member of a pool that does not join it.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    pool: PoolId,
    credential: Credential,
}

fn io(e: std::io::Error) -> Error {
    wire::broken("the node", &e)
}

fn greet(stream: &mut TcpStream, key: &Key, hello: &Hello) -> Result<()> {
    let mut side = Client::new(key.clone(), &key::random()?, hello, "the node".into())?;
    loop {
        stream.write_all(&side.out()).map_err(io)?;
        let mut bytes = vec![0; side.wants()];
        let n = stream.read(&mut bytes).map_err(io)?;
        if n == 0 {
            return Err(io(std::io::ErrorKind::UnexpectedEof.into()));
        }
        match side.feed(&bytes[..n])? {
            None => {}
            Some(Welcome::Granted { .. }) => return Ok(()),
            Some(Welcome::Refused(f)) => return Err(f.into()),
        }
    }
}

/// Says hello with questions in mind, as a process that has not registered.
pub fn begin_to_ask(stream: &mut TcpStream, key: &Key) -> Result<()> {
    greet(stream, key, &Hello::Ask { pool: None, credential: None })
}

/// Registers as a compute node, on a connection for questions.
pub fn register(stream: &mut TcpStream) -> Result<Registered> {
    let pool = match ask(stream, &Ask::PoolConfig)? {
        Answer::PoolConfig { pool, .. } => pool,
        other => return Err(Error::corrupt(format!("{other:?}"))),
    };
    let introduction = Introduction {
        role: Role::Compute,
        wanted: None,
        listens: "127.0.0.1:1".into(),
        region_bytes: 4096,
        nonce: u64::from_le_bytes(key::random()?),
        journal: None,
    };
    match ask(stream, &Ask::Register(introduction))? {
        Answer::Registered { me, secret, .. } => {
            Ok(Registered { pool, credential: Badges::of(secret).credential(me) })
        }
        other => Err(Error::corrupt(format!("{other:?}"))),
    }
}

fn ask(stream: &mut TcpStream, ask: &Ask) -> Result<Answer> {
    let body = wire::encode(ask)?;
    stream.write_all(&(body.len() as u32).to_le_bytes()).map_err(io)?;
    stream.write_all(&body).map_err(io)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(io)?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut body).map_err(io)?;
    match wire::decode(&body, "the node")? {
        Answer::Refused(f) => Err(f.into()),
        answer => Ok(answer),
    }
}

/// Says hello as a link to the first memory node.
pub fn begin_a_link(stream: &mut TcpStream, key: &Key, of: &Registered, number: u64) -> Result<()> {
    let Registered { pool, credential } = *of;
    let to = Member { node: NodeId::memory(0), incarnation: 1 };
    greet(stream, key, &Hello::Link { pool, credential, to, number, replaces: 0 })
}
