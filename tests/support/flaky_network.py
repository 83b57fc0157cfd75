"""`FlakyNetwork`: a TCP proxy on loopback that resets, swallows or refuses when told to."""

import contextlib
import socket
import struct
import threading
from typing import Self


class FlakyNetwork:
    """Forwards to one port of this machine; `port` is where its clients connect. A context."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._closing = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closing = True
        self._open.set()
        self._listener.close()
        self.reset()

    def reset(self) -> None:
        """Answer everybody with a TCP reset; new connections work."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it
                with contextlib.suppress(OSError):
                    end.close()

    def blackhole(self) -> None:
        """From now on nothing arrives and nobody is told."""
        self._open.clear()

    def heal(self) -> None:
        """End the blackhole; what was swallowed arrives late, as it does after a change of networks."""
        self._open.set()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._pairs.add((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._open.wait()
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
