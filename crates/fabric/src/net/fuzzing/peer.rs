//! A peer that begins a connection correctly, for tests of later violations of the protocol. Errors
//! are what the node refuses.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use super::super::access::Keys;
use super::super::handshake::{Client, Side};
use super::super::io::Party;
use super::super::roles::Badges;
use super::super::sockets::random;
use super::super::tls::Session;
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

/// A connection to a node, which blocks. Its bytes travel by TLS once it has begun with keys.
pub struct Peer {
    stream: TcpStream,
    session: Option<Box<Session>>,
}

crate::debug_line!(Peer, it => "Peer({:?})", it.stream);

fn io(e: io::Error) -> Error {
    wire::broken("the node", &e)
}

impl Peer {
    /// A connection on which nothing was said.
    pub fn over(stream: TcpStream) -> Self {
        Self { stream, session: None }
    }

    /// Says hello with questions in mind, as a process that has not registered.
    pub fn begin_to_ask(&mut self, keys: &Keys) -> Result<()> {
        self.greet(keys, &Hello::Ask { pool: None, credential: None })
    }

    /// Says hello as a link to the first memory node.
    pub fn begin_a_link(&mut self, keys: &Keys, of: &Registered, number: u64) -> Result<()> {
        let Registered { pool, credential } = *of;
        let to = Member { node: NodeId::memory(0), incarnation: 1 };
        self.greet(keys, &Hello::Link { pool, credential, to, number, replaces: 0 })
    }

    fn greet(&mut self, keys: &Keys, hello: &Hello) -> Result<()> {
        let mut side = Client::new(keys.is_some(), hello, "the node".into())?;
        loop {
            self.write_all(&side.out()).map_err(io)?;
            let mut bytes = vec![0; side.wants()];
            let n = self.read(&mut bytes).map_err(io)?;
            if n == 0 {
                return Err(io(ErrorKind::UnexpectedEof.into()));
            }
            match side.feed(&bytes[..n])? {
                None => {}
                Some(Welcome::Granted { .. }) => return Ok(()),
                Some(Welcome::Refused(f)) => return Err(f.into()),
            }
            if side.begins_tls() {
                self.begin_tls(keys)?;
            }
        }
    }

    fn begin_tls(&mut self, keys: &Keys) -> Result<()> {
        let bundle = keys.bundle().ok_or_else(|| Error::invalid("no keys"))?;
        let mut session = Session::new(bundle, Party::Connects(None))?;
        session.meet(&mut self.stream).map_err(io)?;
        self.session = Some(Box::new(session));
        Ok(())
    }

    /// Registers as a compute node, on a connection for questions.
    pub fn register(&mut self) -> Result<Registered> {
        let pool = match self.ask(&Ask::PoolConfig)? {
            Answer::PoolConfig { pool, .. } => pool,
            other => return Err(Error::corrupt(format!("{other:?}"))),
        };
        let introduction = Introduction {
            role: Role::Compute,
            wanted: None,
            listens: "127.0.0.1:1".into(),
            region_bytes: 4096,
            nonce: u64::from_le_bytes(random()?),
            journal: None,
        };
        match self.ask(&Ask::Register(introduction))? {
            Answer::Registered { me, issued, .. } => {
                Ok(Registered { pool, credential: Badges::of(issued).credential(me) })
            }
            other => Err(Error::corrupt(format!("{other:?}"))),
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        let body = wire::encode(ask)?;
        self.write_all(&(body.len() as u32).to_le_bytes()).map_err(io)?;
        self.write_all(&body).map_err(io)?;
        let mut length = [0; 4];
        self.read_exact(&mut length).map_err(io)?;
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        self.read_exact(&mut body).map_err(io)?;
        match wire::decode(&body, "the node")? {
            Answer::Refused(f) => Err(f.into()),
            answer => Ok(answer),
        }
    }
}

impl Read for Peer {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(session) => session.read(&mut self.stream, into),
            None => self.stream.read(into),
        }
    }
}

impl Write for Peer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(session) => session.write(&mut self.stream, bytes),
            None => self.stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
