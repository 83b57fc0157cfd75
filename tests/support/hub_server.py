"""The part of the Hugging Face hub's interface that reading and writing a dataset needs, on the loopback."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """One dataset repository, `someone/prompts`, which may have been made or not."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.made: dict[str, Any] | None = None
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving() -> Iterator[HubServer]:
    """A server, gone at the end."""
    with HubServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._file(body=False)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/datasets/someone/prompts/resolve/"):
            self._file(body=True)
        elif self.server.made is None or not path.startswith("/api/datasets/someone/prompts"):
            self._json({"error": "Repository Not Found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif "/tree/" in path:
            below = path.partition("/tree/")[2].partition("/")[2]
            self._json(self._entries(below, recursive="recursive" in self.path and "recursive=false" not in self.path.lower()))
        else:
            names = [{"rfilename": name} for name in sorted(self.server.files)]
            info = {"id": "someone/prompts", "sha": COMMIT, "siblings": names, "private": False, "tags": [], "disabled": False}
            self._json(info)

    def do_POST(self) -> None:
        data = self._body()
        path = unquote(urlsplit(self.path).path)
        if path == "/api/repos/create":
            self.server.made = json.loads(data)
            self._json({"url": f"{self.server.url}/datasets/someone/prompts", "name": "someone/prompts", "id": "1"})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None} for one in json.loads(data)["files"]
            ]
            self._json({"files": files})
        elif "/paths-info/" in path:
            wanted = json.loads(data)["paths"] if data.startswith(b"{") else parse_qs(data.decode())["paths"]
            self._json([entry for name in wanted for entry in self._info(name)])
        elif "/commit/" in path:
            for line in map(json.loads, data.decode().splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del self.server.files[line["value"]["path"]]
            self._json({"commitUrl": f"{self.server.url}/datasets/someone/prompts/commit/{COMMIT}", "commitOid": COMMIT, "hookOutput": ""})
        else:
            self._json({"error": f"no {path}"}, 404)

    def _info(self, name: str) -> list[dict[str, Any]]:
        if name in self.server.files:
            return [_entry(name, self.server.files[name])]
        below = any(other.startswith(f"{name}/") for other in self.server.files)
        return [{"type": "directory", "path": name, "oid": "0", "size": 0}] if below else []

    def _entries(self, below: str, *, recursive: bool) -> list[dict[str, Any]]:
        prefix = f"{below}/" if below else ""
        found: dict[str, dict[str, Any]] = {}
        for name, data in sorted(self.server.files.items()):
            if name.startswith(prefix):
                parts = name.removeprefix(prefix).split("/")
                for depth in range(1, len(parts)):
                    folder = prefix + "/".join(parts[:depth])
                    found.setdefault(folder, {"type": "directory", "path": folder, "oid": "0", "size": 0})
                found[name] = _entry(name, data)
        return [entry for name, entry in found.items() if recursive or "/" not in name.removeprefix(prefix)]

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _file(self, *, body: bool) -> None:
        name = unquote(urlsplit(self.path).path).partition("/resolve/")[2].partition("/")[2]
        data = self.server.files.get(name)
        if data is None:
            self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"}, body=body)
            return
        self._answer(data if body else b"", 200, {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": COMMIT}, len(data))

    def _json(self, value: object, status: int = 200, headers: dict[str, str] | None = None, *, body: bool = True) -> None:
        data = json.dumps(value).encode()
        self._answer(data if body else b"", status, {"Content-Type": "application/json", **(headers or {})}, len(data))

    def _answer(self, data: bytes, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _entry(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "oid": _oid(data), "size": len(data)}


def _oid(data: bytes) -> str:
    return sha1(b"blob %d\0" % len(data) + data).hexdigest()
