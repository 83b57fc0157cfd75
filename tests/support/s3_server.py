"""`S3Server`: a server on loopback that speaks S3's protocol (moto's), in a process of its own. As a script it is that process."""

import os
import subprocess
import sys
from typing import Any, Self

ACCESS_KEY, SECRET_KEY = "test-access-key", "test-secret-key-that-nobody-may-see"
BUCKET = "fleet"
READY = "listens on "


class S3Server:
    """A context; `environment` is what a process needs to reach it, and holds the only credentials there are."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(READY), line
        self.environment = {
            "AWS_ENDPOINT_URL": line.removeprefix(READY).strip(),
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Of the server's process."""
        return self._process.pid

    def client(self) -> Any:
        """boto3's own view of it."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )


def objects(client: Any, prefix: str = "") -> dict[str, bytes]:
    """Key → contents of every object of the bucket."""
    found = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
        for entry in page.get("Contents", ()):
            found[entry["Key"]] = client.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read()
    return found


def uploads(client: Any) -> list[str]:
    """Keys of the uploads that are not complete."""
    return [upload["Key"] for upload in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())]


def main() -> None:
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"{READY}http://{host}:{port}", flush=True)
    sys.stdin.read()
    os._exit(0)  # what it holds is gone with it


if __name__ == "__main__":
    main()
