"""`EngineProcess`: the engine child as the task sees it. Nothing here imports mlx."""

import collections
import contextlib
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from schemas import errors
from schemas.errors import EngineCrashedError, EngineError, RunCancelledError, SpecmillError
from schemas.profile import Backend
from schemas.progress import Tally
from schemas.run_spec import RunSpec
from worker.engine.protocol import TRUST, read_frame, write_frame

POLL_SECONDS = 0.1
END_SECONDS = 3.0  # patience with a child that was asked to end
STDERR_LINES = 20


def _never() -> bool:
    return False


@dataclass(frozen=True)
class ShardOutcome:
    """What the engine made of one shard.

    Attributes:
        rows: Arrow IPC stream of the shard's dataset rows, by record, then by sample.
        backend: where they were computed.
        tally: counts over them.
        load_seconds: loading the model, 0 when it was loaded already.
        prefill_seconds: prefill.
        draft_seconds: drafting.
        verify_seconds: the target's forward passes.
        commit_seconds: sampling decisions and bookkeeping.
        peak_bytes: peak memory of the engine's arrays in bytes.
    """

    rows: bytes
    backend: Backend
    tally: Tally
    load_seconds: float
    prefill_seconds: float
    draft_seconds: float
    verify_seconds: float
    commit_seconds: float
    peak_bytes: int


class EngineProcess:
    """A persistent child process, started when first needed; used from one thread at a time."""

    def __init__(self, *, trust_remote_code: bool = False) -> None:
        """`trust_remote_code`: code that comes with a model may run in the child."""
        self._words = [TRUST] if trust_remote_code else []
        self._process: subprocess.Popen[bytes] | None = None
        self._frames: queue.Queue[tuple[dict[str, Any], bytes] | None] = queue.Queue()
        self._last_lines: collections.deque[str] = collections.deque(maxlen=STDERR_LINES)
        self._stderr_pump: threading.Thread | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The child's process id while it lives."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def generate(
        self, spec: RunSpec, shard: int, blob: bytes, *, on_tally: Callable[[Tally], None], stopped: Callable[[], bool]
    ) -> ShardOutcome:
        """Complete one shard.

        Args:
            spec: the run's spec; another model than the loaded one is loaded first.
            shard: shard index, for messages only.
            blob: Arrow IPC stream, schema `blob_schema`.
            on_tally: receives the counts so far about once a second.
            stopped: polled several times a second; True gives the shard up.

        Raises:
            RunCancelledError: `stopped` said so; the child lives on with its model.
            EngineCrashedError: the child died; the next call starts another.
            ModelError, HeadError, EngineError: what the child reports of itself; it lives on.
        """
        request = {"op": "generate", "spec": spec.encode(), "shard": shard}
        header, rows = self._ask(request, blob, f"shard {shard}", on_tally=on_tally, stopped=stopped)
        seconds = {f"{name}_seconds": header["timings"][name] for name in ("load", "prefill", "draft", "verify", "commit")}
        return ShardOutcome(
            rows=rows,
            backend=Backend.decode(header["backend"]),
            tally=Tally.decode(header["tally"]),
            peak_bytes=header["timings"]["peak_bytes"],
            **seconds,
        )

    def backend_class(self, spec: RunSpec, *, stopped: Callable[[], bool] = _never) -> str:
        """The class of the backend that a spec's model would run on; the model is not loaded. Errors as in `generate`."""
        header, _ = self._ask({"op": "class", "spec": spec.encode()}, b"", "looking at this machine", stopped=stopped)
        return str(header["class_name"])

    def load(self, spec: RunSpec, *, stopped: Callable[[], bool] = _never) -> Backend:
        """Load what a spec names and say where it will run; errors as in `generate`."""
        header, _ = self._ask({"op": "load", "spec": spec.encode()}, b"", "loading the model", stopped=stopped)
        return Backend.decode(header["backend"])

    def score(
        self, spec: RunSpec, rows: bytes, *, on_tally: Callable[[Tally], None] = lambda _: None, stopped: Callable[[], bool] = _never
    ) -> bytes:
        """What the target says of rows that exist; errors as in `generate`.

        Args:
            spec: the run's spec; its head is not used.
            rows: Arrow IPC stream of a blob with the columns `sample` and `token_ids` (`schemas.scores`).
            on_tally: as in `generate`; only `rows` is counted.
            stopped: as in `generate`.

        Returns:
            Arrow IPC stream of `schemas.scores.SCORES`, in the order of the rows.
        """
        return self._ask({"op": "score", "spec": spec.encode()}, rows, "scoring rows", on_tally=on_tally, stopped=stopped)[1]

    def _ask(
        self,
        request: dict[str, Any],
        payload: bytes,
        what: str,
        *,
        on_tally: Callable[[Tally], None] = lambda _: None,
        stopped: Callable[[], bool],
    ) -> tuple[dict[str, Any], bytes]:
        """The frame that ends a job, unless it is an error, the end of the child, or the answer to giving the job up."""
        process = self._running()
        self._send(process, request, payload)
        dropping = False
        while True:
            if not dropping and stopped():
                dropping = True
                self._send(process, {"op": "drop"})
            try:
                frame = self._frames.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if frame is None:
                raise self._crash(what)
            header, answer = frame
            if header["event"] == "tally":
                on_tally(Tally.decode(header["tally"]))
            elif dropping:
                raise RunCancelledError(f"{what} was given up")
            elif header["event"] == "error":
                raise _reported_error(header)
            else:
                return header, answer

    def close(self) -> None:
        """End the child: by the end of its input, then by SIGTERM, then by SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead already
            process.stdin.close()
        for signal_number in (None, signal.SIGTERM, signal.SIGKILL):
            if signal_number is not None:
                process.send_signal(signal_number)
            try:
                process.wait(END_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        self._join(process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        # -P: the user's folder must not lend us a module named like one of ours.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.engine.child", *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.starts += 1
        self._frames = queue.Queue()
        self._last_lines.clear()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        threading.Thread(target=_pump_frames, args=(self._process.stdout, self._frames), daemon=True).start()
        self._stderr_pump = threading.Thread(target=self._pump_stderr, args=(self._process.stderr,), daemon=True)
        self._stderr_pump.start()
        return self._process

    def _send(self, process: subprocess.Popen[bytes], header: dict[str, Any], payload: bytes = b"") -> None:
        assert process.stdin is not None
        try:
            write_frame(process.stdin, header, payload)
        except BrokenPipeError as error:
            raise self._crash(f"the request {header['op']!r}") from error

    def _crash(self, during: str) -> EngineCrashedError:
        process, self._process = self._process, None
        assert process is not None
        code = process.wait()
        self._join(process)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = "\n".join(self._last_lines)
        return EngineCrashedError(f"the engine process ended with {how} during {during}" + (f"; its last lines:\n{lines}" if lines else ""))

    def _join(self, process: subprocess.Popen[bytes]) -> None:
        if self._stderr_pump is not None:
            self._stderr_pump.join(END_SECONDS)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # unsent bytes to a dead child
                    pipe.close()

    def _pump_stderr(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            print(text, file=sys.stderr, flush=True)


def _pump_frames(pipe: IO[bytes], frames: "queue.Queue[tuple[dict[str, Any], bytes] | None]") -> None:
    while (frame := read_frame(pipe)) is not None:
        frames.put(frame)
    frames.put(None)


def _reported_error(header: dict[str, Any]) -> SpecmillError:
    kind: Any = getattr(errors, header["type"], None)
    known = isinstance(kind, type) and issubclass(kind, SpecmillError) and kind is not errors.NonFiniteLogitsError
    return kind(header["message"]) if known else EngineError(f"{header['type']}: {header['message']}")
