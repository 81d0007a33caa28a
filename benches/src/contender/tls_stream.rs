//! Bytes in one direction over a TLS connection of rustls, with the cipher and the provider of
//! `soft0` between hosts.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateSec1KeyDer, ServerName, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection, SignatureScheme,
    StreamOwned,
};

use super::tcp;
use crate::pair::{Channel, Contender, Role};
use crate::table;

/// Bytes that one call writes.
const WRITE: usize = 64 << 10;
/// Bytes that one call reads at most.
const READ: usize = 256 << 10;

/// A connection over which the leader writes, in calls of 64 KiB, and the follower reads.
#[derive(Debug)]
pub struct TlsWrites {
    stream: Stream,
    /// Bytes of an iteration.
    size: usize,
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum Stream {
    Leader(Box<StreamOwned<ServerConnection, TcpStream>>),
    Follower(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl TlsWrites {
    /// Connects the two sides, where the leader has this address.
    ///
    /// # Errors
    ///
    /// The sockets' error, or that of rustls.
    pub fn connect(role: Role, channel: &mut Channel, leader: IpAddr, size: usize) -> io::Result<Self> {
        let socket = tcp::connect(role, channel, leader)?;
        let stream = match role {
            Role::Leader => Stream::Leader(Box::new(StreamOwned::new(server().map_err(io::Error::other)?, socket))),
            Role::Follower => Stream::Follower(Box::new(StreamOwned::new(client().map_err(io::Error::other)?, socket))),
        };
        Ok(Self { stream, size, bytes: vec![0x5a; READ] })
    }
}

impl Stream {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Leader(stream) => stream.write_all(bytes),
            Self::Follower(stream) => stream.write_all(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Leader(stream) => stream.flush(),
            Self::Follower(stream) => stream.flush(),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = match self {
            Self::Leader(stream) => stream.read(bytes),
            Self::Follower(stream) => stream.read(bytes),
        }?;
        if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(count) }
    }
}

impl Contender for TlsWrites {
    fn name(&self) -> String {
        format!("TLS stream of rustls, writes of {}", table::bytes(WRITE))
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        for _ in 0..iterations {
            let mut left = self.size;
            while left > 0 {
                let len = left.min(WRITE);
                self.stream.write_all(&self.bytes[..len])?;
                left -= len;
            }
        }
        self.stream.flush()?;
        // The other side has read everything.
        self.stream.read(&mut [0])?;
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        let mut left = usize::try_from(iterations).map_err(io::Error::other)? * self.size;
        while left > 0 {
            let len = left.min(READ);
            left -= self.stream.read(&mut self.bytes[..len])?;
        }
        self.stream.write_all(&[0])?;
        self.stream.flush()
    }
}

/// The provider of cryptography, with one cipher.
fn provider() -> Arc<CryptoProvider> {
    let cipher_suites = vec![rustls_graviola::suites::TLS13_AES_128_GCM_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..rustls_graviola::default_provider() })
}

fn server() -> Result<ServerConnection, Error> {
    /// A private key of P-256 that protects nothing (SEC 1, RFC 5915).
    const KEY: ([u8; 7], [u8; 32], [u8; 12]) = (
        [0x30, 0x31, 0x02, 0x01, 0x01, 0x04, 0x20],
        [7; 32],
        [0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
    );
    let private = PrivateSec1KeyDer::from([&KEY.0[..], &KEY.1, &KEY.2].concat());
    let key = provider().key_provider.load_private_key(private.into())?;
    let public = key.public_key().ok_or(Error::General("no public key".into()))?.to_vec();
    let key = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], key));
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    ServerConnection::new(Arc::new(config))
}

fn client() -> Result<ClientConnection, Error> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let name = ServerName::try_from("leader").map_err(|_| Error::General("no name".into()))?;
    ClientConnection::new(Arc::new(config), name)
}

/// Accepts every server: the bench measures the transfer.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _key: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _text: &[u8],
        _key: &CertificateDer<'_>,
        _made: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _text: &[u8],
        _key: &CertificateDer<'_>,
        _made: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
