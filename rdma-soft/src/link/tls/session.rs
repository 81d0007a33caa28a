//! The handshake of TLS 1.3, by rustls, over a connection whose hello is over.

use std::sync::Arc;
use std::time::Instant;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ClientConnectionData, Resumption, UnbufferedClientConnection};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::kernel::KernelConnection;
use rustls::pki_types::{CertificateDer, PrivateSec1KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ServerConnectionData, UnbufferedServerConnection};
use rustls::sign::CertifiedKey;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ExtractedSecrets, ServerConfig,
    SignatureScheme,
};
use rustls_graviola::kx::X25519;
use rustls_graviola::suites::TLS13_AES_128_GCM_SHA256;

use super::records::{NextSecrets, Records};
use super::{SEED, TlsError};
use crate::log::log;
use crate::os::tcp::Tcp;

/// The most bytes of a record, after its head.
const MAX_RECORD: usize = (1 << 14) + 256;
/// The bytes of a private key of P-256 before and after its number (SEC 1, RFC 5915).
const BEFORE_KEY: [u8; 7] = [0x30, 0x31, 0x02, 0x01, 0x01, 0x04, 0x20];
const AFTER_KEY: [u8; 12] = [0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];

/// Runs the handshake as the side that has opened the connection.
pub(crate) fn open(socket: &Tcp, seed: [u8; SEED], deadline: Instant) -> Result<Records, TlsError> {
    let start = |pair: Pair| {
        let mut config = ClientConfig::builder_with_provider(pair.provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(pair.verifier())
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(pair.key)));
        config.enable_secret_extraction = true;
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        // The name is not sent, and the verifier does not look at it.
        let name = ServerName::try_from("soft0").map_err(|_| Error::General("no name".into()))?;
        UnbufferedClientConnection::new(Arc::new(config), name)
    };
    let session = Pair::new(seed).and_then(start).map_err(failed)?;
    run(session, socket, deadline)
}

/// Runs the handshake as the side that has accepted the connection.
pub(crate) fn accept(socket: &Tcp, seed: [u8; SEED], deadline: Instant) -> Result<Records, TlsError> {
    let start = |pair: Pair| {
        let mut config = ServerConfig::builder_with_provider(pair.provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(pair.verifier())
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(pair.key)));
        config.enable_secret_extraction = true;
        config.send_tls13_tickets = 0;
        UnbufferedServerConnection::new(Arc::new(config))
    };
    let session = Pair::new(seed).and_then(start).map_err(failed)?;
    run(session, socket, deadline)
}

/// The error of a handshake that fails after both sides have proved that they hold the key.
fn failed(error: Error) -> TlsError {
    log!(DEBUG, "the handshake of TLS has failed: {error}");
    TlsError::Refused
}

/// The key pair that both sides hold.
#[derive(Debug)]
struct Pair {
    key: Arc<CertifiedKey>,
    public: SubjectPublicKeyInfoDer<'static>,
}

impl Pair {
    /// The key of a seed. It signs one handshake, so its bytes are worth nothing afterwards.
    fn new(mut seed: [u8; SEED]) -> Result<Self, Error> {
        // So that the number is less than the order of the curve.
        seed[0] &= 0x7f;
        let private = PrivateSec1KeyDer::from([&BEFORE_KEY[..], &seed, &AFTER_KEY].concat());
        let key = rustls_graviola::default_provider().key_provider.load_private_key(private.into())?;
        let public = key.public_key().ok_or(Error::General("no public key".into()))?.into_owned();
        let certificate = CertificateDer::from(public.to_vec());
        Ok(Self { key: Arc::new(CertifiedKey::new(vec![certificate], key)), public })
    }

    /// The algorithms: one of each kind, which `records` knows.
    fn provider(&self) -> Arc<CryptoProvider> {
        Arc::new(CryptoProvider {
            cipher_suites: vec![TLS13_AES_128_GCM_SHA256],
            kx_groups: vec![&X25519],
            ..rustls_graviola::default_provider()
        })
    }

    fn verifier(&self) -> Arc<Verifier> {
        Arc::new(Verifier { public: self.public.clone(), provider: self.provider() })
    }
}

/// Accepts one public key.
#[derive(Debug)]
struct Verifier {
    public: SubjectPublicKeyInfoDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn check(&self, key: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        if key.as_ref() == self.public.as_ref() && others.is_empty() {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    /// Checks a signature of the peer with the one public key.
    fn check_signature(&self, text: &[u8], made: &DigitallySignedStruct) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(text, &self.public, made, algorithms)
    }
}

/// The error of a signature of TLS 1.2, which is not offered.
fn no_tls12() -> Error {
    Error::General("TLS 1.2".into())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key, others).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _text: &[u8],
        _key: &CertificateDer<'_>,
        _made: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        text: &[u8],
        _key: &CertificateDer<'_>,
        made: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(text, made)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key, others).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _text: &[u8],
        _key: &CertificateDer<'_>,
        _made: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        text: &[u8],
        _key: &CertificateDer<'_>,
        made: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(text, made)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// What both sides' connections of rustls do.
trait Session: Sized {
    type Data: Send + Sync + 'static;
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn secrets(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), Error>;
}

impl Session for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }

    fn secrets(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), Error> {
        self.dangerous_into_kernel_connection()
    }
}

impl Session for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }

    fn secrets(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), Error> {
        self.dangerous_into_kernel_connection()
    }
}

/// Runs a handshake. Takes no byte after it from the socket.
fn run<S: Session>(mut session: S, socket: &Tcp, deadline: Instant) -> Result<Records, TlsError> {
    let (mut inbound, mut outbound) = (Vec::new(), Vec::new());
    loop {
        let UnbufferedStatus { discard, state, .. } = session.process(&mut inbound);
        let mut is_over = false;
        let mut needs_more = false;
        match state {
            Ok(ConnectionState::EncodeTlsData(mut message)) => {
                let at = outbound.len();
                outbound.resize(at + 2 * MAX_RECORD, 0);
                let count = message.encode(&mut outbound[at..]).map_err(|_| TlsError::Refused)?;
                outbound.truncate(at + count);
            }
            Ok(ConnectionState::TransmitTlsData(messages)) => {
                socket.write_all(&outbound, deadline)?;
                outbound.clear();
                messages.done();
            }
            Ok(ConnectionState::BlockedHandshake) => needs_more = true,
            Ok(ConnectionState::WriteTraffic(_)) => is_over = true,
            Ok(_) => return Err(TlsError::Refused),
            Err(error) => return Err(failed(error)),
        }
        inbound.drain(..discard);
        if is_over {
            break;
        }
        if needs_more {
            append_record(&mut inbound, socket, deadline)?;
        }
    }
    if !inbound.is_empty() {
        return Err(TlsError::Refused);
    }
    let (secrets, next) = session.secrets().map_err(failed)?;
    let next: Box<dyn NextSecrets> = Box::new(next);
    Ok(Records::new(secrets.tx, secrets.rx, next)?)
}

/// Reads one record, and no more.
fn append_record(records: &mut Vec<u8>, socket: &Tcp, deadline: Instant) -> Result<(), TlsError> {
    let mut head = [0; 5];
    socket.read_exact(&mut head, deadline)?;
    let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
    if len > MAX_RECORD {
        return Err(TlsError::Refused);
    }
    records.extend_from_slice(&head);
    let at = records.len();
    records.resize(at + len, 0);
    socket.read_exact(&mut records[at..], deadline)?;
    Ok(())
}
