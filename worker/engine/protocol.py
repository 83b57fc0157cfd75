"""How the task and the engine child talk: frames over pipes.

A frame is two big-endian uint32 (bytes of the JSON header, bytes of the payload), the header, the payload.

Parent to child: `{"op": "generate", "spec": …, "shard": n}` with the shard blob as payload; `{"op": "load", "spec": …}`;
`{"op": "score", "spec": …}` with rows of `schemas.scores` as payload; `{"op": "drop"}` gives the running job up; the end of the stream ends
the child. The child's one option, `TRUST`, lets code that comes with a model run.
Child to parent: `{"event": "tally", "tally": …}` about once a second; then one of `{"event": "rows", …}` with the rows as payload,
`{"event": "loaded", "backend": …}`, `{"event": "scores"}` with the scores as payload, `{"event": "dropped"}`,
`{"event": "error", "type": …, "message": …}`.
"""

import json
import struct
from typing import IO, Any

TRUST = "--trust-remote-code"
_LENGTHS = struct.Struct(">II")


def write_frame(stream: IO[bytes], header: dict[str, Any], payload: bytes = b"") -> None:
    """Write one frame and flush it."""
    encoded = json.dumps(header).encode()
    stream.write(_LENGTHS.pack(len(encoded), len(payload)) + encoded)
    stream.write(payload)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next frame, or None when the stream ended, also in the middle of a frame."""
    lengths = _read_exactly(stream, _LENGTHS.size)
    if lengths is None:
        return None
    header_bytes, payload_bytes = _LENGTHS.unpack(lengths)
    header = _read_exactly(stream, header_bytes)
    payload = _read_exactly(stream, payload_bytes)
    if header is None or payload is None:
        return None
    return json.loads(header), payload


def _read_exactly(stream: IO[bytes], size: int) -> bytes | None:
    data = stream.read(size)
    return data if len(data) == size else None
