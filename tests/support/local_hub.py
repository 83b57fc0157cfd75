"""`LocalHub`: what huggingface_hub asks of the hub, answered on loopback from memory; it remembers what was fetched."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

REVISION = "a" * 40


class LocalHub:
    """One repository under any name.

    Args:
        files: path → content.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.fetched: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path.startswith("/api/"):
                    entries = [{"type": "file", "path": name, "size": len(data), "oid": _oid(data)} for name, data in files.items()]
                    siblings = [{"rfilename": name} for name in files]
                    self._send(json.dumps(entries if "/tree/" in path else {"id": "o/n", "sha": REVISION, "siblings": siblings}).encode())
                else:
                    name = path.partition("/resolve/")[2].partition("/")[2]
                    hub.fetched.append(name)
                    self._send(files[name], ETag=f'"{_oid(files[name])}"')

            def do_HEAD(self) -> None:
                name = self.path.partition("?")[0].partition("/resolve/")[2].partition("/")[2]
                self._send(files[name], with_body=False, ETag=f'"{_oid(files[name])}"')

            def log_message(self, *_: object) -> None:
                """Silence."""

            def _send(self, data: bytes, with_body: bool = True, **headers: str) -> None:
                self.send_response(200)
                for name, value in {"X-Repo-Commit": REVISION, "Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if with_body:
                    self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> "LocalHub":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
