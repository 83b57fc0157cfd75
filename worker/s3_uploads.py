"""Multipart uploads in S3 that nobody will complete: pyarrow begins them for files over a few megabytes and can neither list nor end them.

boto3 does (`pip install specmill[s3]`); without it they stay, invisible, until the bucket's own rule for incomplete uploads removes them.
"""

import contextlib
import logging

logger = logging.getLogger(__name__)


def drop(key: str) -> list[str]:
    """End the uploads of `bucket/path` and below it.

    Returns:
        Their keys; none where boto3 is missing.

    Raises:
        OSError: the store refuses.
    """
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        logger.debug("boto3 is not installed: incomplete uploads below %s are left to the bucket's own rules", key)
        return []
    bucket, _, prefix = key.partition("/")
    dropped = []
    try:
        with contextlib.closing(boto3.client("s3")) as client:
            for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
                for upload in page.get("Uploads", ()):
                    if f"{upload['Key']}/".startswith(f"{prefix}/"):  # and not of a neighbour whose name goes on
                        client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                        dropped.append(upload["Key"])
    except (BotoCoreError, ClientError) as error:
        raise OSError(f"incomplete uploads below s3://{key}: {error}") from error
    return dropped
