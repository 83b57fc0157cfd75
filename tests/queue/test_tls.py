"""A `rediss://` broker whose certificate nobody vouches for is refused; one that is vouched for is not."""

import shutil
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from kombu.exceptions import OperationalError

from worker.app import make_app
from worker.redis_client import make_client, secured


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rediss://h/0", "rediss://h/0?ssl_cert_reqs=required"),
        ("rediss://h/0?ssl_ca_certs=/ca.pem", "rediss://h/0?ssl_ca_certs=/ca.pem&ssl_cert_reqs=required"),
        ("rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none"),
        ("redis://h/0", "redis://h/0"),
    ],
)
def test_certificates_are_verified_unless_the_address_says_otherwise(url: str, expected: str) -> None:
    assert secured(url) == expected


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        try:
            while line := self.rfile.readline():
                if line.startswith(b"*"):  # a command of so many words, each behind its length
                    words = [(self.rfile.readline(), self.rfile.readline())[1].strip() for _ in range(int(line[1:]))]
                    self.wfile.write(b"+PONG\r\n" if words[0].upper() == b"PING" else b"-ERR unknown command\r\n")
        except (OSError, ssl.SSLError):
            pass  # the client did not like our certificate


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, certificate: Path, key: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, *_: object) -> None:
        """A refused handshake is what the test wants."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A port that answers PING over TLS, and its certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", certificate]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([str(word) for word in words], check=True, capture_output=True)
    with _Server(certificate, key) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_address[1], certificate
        made.shutdown()


def test_a_stranger_with_a_certificate_of_its_own_is_refused(server: tuple[int, Path]) -> None:
    port, certificate = server
    url = f"rediss://127.0.0.1:{port}/0"
    with make_client(url, patient=False) as client, pytest.raises(redis.ConnectionError, match="certificate"):
        client.ping()
    app = make_app(url)
    with app.connection() as connection, pytest.raises((OperationalError, redis.ConnectionError), match="certificate"):
        connection.ensure_connection(max_retries=1, timeout=2)
    app.close()
    with make_client(f"{url}?ssl_ca_certs={certificate}&protocol=2", patient=False) as client:
        assert client.ping()
