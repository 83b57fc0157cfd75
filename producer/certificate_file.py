"""The certificate of the last checkup, in the user's cache folder."""

from pathlib import Path

from producer.manifest_file import CERTIFICATE, versions
from schemas.certificate import Certificate
from schemas.errors import DecodeError
from worker.engine.model_store import cache_dir
from worker.landing import written_whole


def certificate_path() -> Path:
    """Where the certificate of this machine is kept."""
    return cache_dir() / "certificate.json"


def write_certificate(certificate: Certificate) -> Path:
    """Replace the certificate, whole or not at all.

    Raises:
        LandingError: the cache cannot be written.
    """
    path = certificate_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(f"{certificate.to_json()}\n".encode())
    return path


def valid_certificate() -> Certificate | None:
    """The certificate, if there is one that was passed with the libraries of this process."""
    try:
        certificate = Certificate.from_json(certificate_path().read_bytes())
    except (OSError, DecodeError):
        return None
    return certificate if certificate.passed and certificate.versions == versions() else None


def certified_versions() -> dict[str, str]:
    """`versions()` and, where this machine has one, the digest of its certificate: what a manifest records."""
    certificate = valid_certificate()
    return versions() | ({CERTIFICATE: f"sha256:{certificate.digest}"} if certificate is not None else {})
