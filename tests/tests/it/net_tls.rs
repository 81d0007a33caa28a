//! TLS by rustls over the byte streams of `rdma_net`.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::io;
use std::sync::Arc;

use rdma::PathOptions;
use rdma_net::{ListenOptions, Node, NodeOptions};
use rdma_tests::cm::{address, any_port, available};
use rdma_tests::{LIMIT, open};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Made by `tls/make`.
const CERTIFICATE: &[u8] = include_bytes!("tls/certificate.pem");
const KEY: &[u8] = include_bytes!("tls/key.pem");
/// The name in the certificate.
const NAME: &str = "peer.test";

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(CERTIFICATE).unwrap()
}

fn connector() -> TlsConnector {
    let provider = Arc::new(rustls_graviola::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

fn acceptor() -> TlsAcceptor {
    let provider = Arc::new(rustls_graviola::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
    let config = builder.with_no_client_auth().with_single_cert(vec![certificate()], key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Whether the processor has the instructions that the cryptography needs.
fn has_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("avx2");
    #[cfg(target_arch = "aarch64")]
    let has = is_aarch64_feature_detected!("aes")
        && is_aarch64_feature_detected!("pmull")
        && is_aarch64_feature_detected!("sha2");
    if !has {
        rdma_tests::skip("the processor lacks instructions for cryptography");
    }
    has
}

/// Connects to a server that sends everything back in upper case, as the peer named `name`; sends
/// `request` and returns the answer.
fn shout(name: &'static str, request: Vec<u8>) -> io::Result<Vec<u8>> {
    let context = open().context;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let options = NodeOptions::new().path(PathOptions::new().rnr_retry_count(0)).timeout(LIMIT).linger(LIMIT);
        let (node, driver) = Node::new(&context, &options)?;
        let readable = rdma::aio::tokio::Readable::new(&driver)?;
        drop(tokio::spawn(driver.run(readable)));
        let mut listener = node.listen(any_port(address(&context)), &ListenOptions::new())?;
        let to = listener.local_addr();
        let serving = tokio::spawn(async move {
            let stream = listener.accept().await?.accept().await?.into_stream();
            let mut stream = acceptor().accept(stream).await?;
            let mut request = Vec::new();
            stream.read_to_end(&mut request).await?;
            stream.write_all(&request.to_ascii_uppercase()).await?;
            stream.shutdown().await
        });
        let stream = node.connect(to).await?.into_stream();
        let stream = connector().connect(ServerName::try_from(name).unwrap(), stream).await?;
        let (mut from, mut to) = tokio::io::split(stream);
        let sending = tokio::spawn(async move {
            to.write_all(&request).await?;
            to.shutdown().await
        });
        let mut answer = Vec::new();
        from.read_to_end(&mut answer).await?;
        sending.await.map_err(io::Error::other)??;
        serving.await.map_err(io::Error::other)??;
        Ok(answer)
    })
}

#[test]
fn tls_carries_a_conversation_and_its_end() {
    if !available(&open().context) || !has_instructions() {
        return;
    }
    for len in [1, 5000, 300_000] {
        assert!(shout(NAME, vec![b'a'; len]).unwrap() == vec![b'A'; len], "{len} bytes");
    }
}

#[test]
fn tls_refuses_a_peer_of_another_name() {
    if !available(&open().context) || !has_instructions() {
        return;
    }
    let error = shout("other.test", vec![b'a']).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}
