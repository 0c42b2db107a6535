//! TLS as the shipped nginx configuration ends it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use flashsale_test_support::temp_dir;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, Stream};

use crate::nginx::before;
use crate::stack::Stack;

/// ECDHE-ECDSA-AES128-GCM-SHA256, and the same in the old way, whose padding has been attacked.
const AUTHENTICATED: [u8; 2] = [0xc0, 0x2b];
const PADDED: [u8; 2] = [0xc0, 0x09];

/// The type of a record that goes on with the handshake, and of one that ends it.
const HANDSHAKE: u8 = 22;
const ALERT: u8 = 21;

fn certificate(name: &str) -> PathBuf {
    let folder = "../order-worker/tests/it/certificates";
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder).join(name)
}

/// A first message of TLS 1.2 that knows one cipher suite.
fn hello(suite: [u8; 2]) -> Vec<u8> {
    let extensions = [
        // The groups x25519 and secp256r1.
        &[0, 10, 0, 6, 0, 4, 0, 0x1d, 0, 0x17][..],
        // Uncompressed points.
        &[0, 11, 0, 2, 1, 0],
        // Signatures by ECDSA or RSA with SHA-256.
        &[0, 13, 0, 6, 0, 4, 4, 3, 4, 1],
    ]
    .concat();
    let short = |length: usize| u8::try_from(length).expect("it is short");
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, suite[0], suite[1], 1, 0, 0, short(extensions.len())]);
    body.extend(extensions);
    let length = short(body.len());
    let mut record = vec![HANDSHAKE, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(body);
    record
}

#[test]
fn tls_is_of_today_and_says_that_it_stays() {
    let stack = Stack::sqlite();
    let gateway = stack.gateway();
    let directory = temp_dir("certificate");
    let file = directory.path().join("both.pem");
    let both: Vec<u8> = ["shop.pem", "shop-key.pem"]
        .iter()
        .flat_map(|name| fs::read(certificate(name)).expect("a readable certificate"))
        .collect();
    fs::write(&file, both).expect("a file can be written");
    let nginx = before(&[&gateway]).certificate(&file).start();

    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(certificate("authority.pem")).expect("is PEM");
    roots.add(authority).expect("is a certificate");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = "127.0.0.1".try_into().expect("an address");
    let mut connection = ClientConnection::new(Arc::new(config), name).expect("is complete");
    let mut socket = TcpStream::connect(("127.0.0.1", nginx.tls_port())).expect("connect");
    let mut stream = Stream::new(&mut connection, &mut socket);
    let request = "GET /api/v1/sales HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("\r\nStrict-Transport-Security: max-age=31536000\r\n"), "{answer}");
    assert_eq!(connection.protocol_version(), Some(ProtocolVersion::TLSv1_3));

    for (suite, expected) in [(AUTHENTICATED, HANDSHAKE), (PADDED, ALERT)] {
        let mut socket = TcpStream::connect(("127.0.0.1", nginx.tls_port())).expect("connect");
        socket.write_all(&hello(suite)).expect("is sent");
        let mut kind = [0];
        socket.read_exact(&mut kind).expect("an answer");
        assert_eq!(kind[0], expected, "{suite:?}");
    }
}
