"""An S3 server for the session, and a bucket of its own for every test."""

from collections.abc import Iterator
from typing import Any

import pytest
from s3_server import BUCKET, S3Server, objects, uploads

from worker import remote_path


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """boto3's client of an empty bucket; processes that the test starts reach the server too."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    remote_path.filesystem_of.cache_clear()
    client = s3_server.client()
    client.create_bucket(Bucket=BUCKET)
    yield client
    for key in objects(client):
        client.delete_object(Bucket=BUCKET, Key=key)
    assert uploads(client) == []
    client.delete_bucket(Bucket=BUCKET)
    client.close()
    remote_path.filesystem_of.cache_clear()
