//! The opener's side of TLS by rustls, without the product's code.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateSec1KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};

pub(super) type Encrypted = StreamOwned<ClientConnection, TcpStream>;

/// The bytes of a private key of P-256 before and after its number (SEC 1, RFC 5915).
const BEFORE_KEY: [u8; 7] = [0x30, 0x31, 0x02, 0x01, 0x01, 0x04, 0x20];
const AFTER_KEY: [u8; 12] = [0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];

/// Runs the handshake with the key pair of a seed.
pub(super) fn open(socket: TcpStream, mut seed: [u8; 32]) -> io::Result<Encrypted> {
    seed[0] &= 0x7f;
    let provider =
        CryptoProvider { kx_groups: vec![&rustls_graviola::kx::X25519], ..rustls_graviola::default_provider() };
    let private = PrivateSec1KeyDer::from([&BEFORE_KEY[..], &seed, &AFTER_KEY].concat());
    let key = provider.key_provider.load_private_key(private.into()).unwrap();
    let public = CertificateDer::from(key.public_key().unwrap().to_vec());
    let key = Arc::new(CertifiedKey::new(vec![public], key));
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key)));
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    let session = ClientConnection::new(Arc::new(config), ServerName::try_from("foe").unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    stream.flush()?;
    Ok(stream)
}

/// Accepts every server.
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
        Err(Error::General("TLS 1.2".into()))
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
