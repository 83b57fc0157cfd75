"""The engine child: a process that loads a model and completes shards until its standard input ends.

One thread reads frames; the main thread does all the work of the model, because mlx streams belong to a thread.
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, BinaryIO

from schemas.errors import DecodeError, EngineError, SpecmillError
from schemas.profile import Backend
from schemas.progress import Tally
from schemas.run_spec import RunSpec
from schemas.tables import table_from_bytes, table_to_bytes
from worker.engine.completion import completions_to_table, requests_from_blob
from worker.engine.engine import Engine, ShardDroppedError, Timings
from worker.engine.protocol import TRUST, read_frame, write_frame
from worker.engine.scripted import ScriptedEngine, is_scripted, scripted_backend

TALLY_INTERVAL = 1.0  # seconds between two tallies on the pipe


class Child:
    """The child's state: the job queue, the drop flag and the engine that is loaded."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, *, trust_remote_code: bool = False) -> None:
        self._trust_remote_code = trust_remote_code
        self._source = source
        self._sink = sink
        self._jobs: queue.Queue[tuple[dict[str, Any], bytes]] = queue.Queue()
        self._dropped = threading.Event()
        self._last_sent = 0.0  # time.perf_counter() of the last tally
        self._engine: Engine | None = None
        self._engine_key: tuple[object, ...] | None = None

    def serve(self) -> None:
        """Answer jobs until the process ends with its input."""
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            header, blob = self._jobs.get()
            try:
                self._work(header["op"], RunSpec.decode(header["spec"]), blob)
            except ShardDroppedError:
                write_frame(self._sink, {"event": "dropped"})
            except SpecmillError as error:
                write_frame(self._sink, {"event": "error", "type": type(error).__name__, "message": str(error)})

    def _read(self) -> None:
        while (frame := read_frame(self._source)) is not None:
            header, payload = frame
            if header["op"] == "drop":
                self._dropped.set()
            else:
                self._dropped.clear()  # here, or a drop that comes while the model still loads would be forgotten
                self._jobs.put((header, payload))
        # The parent is gone or wants us gone: nothing here needs an orderly end.
        os._exit(0)

    def _work(self, op: str, spec: RunSpec, payload: bytes) -> None:
        self._last_sent = 0.0  # a job's first tally is sent at once, however soon after another job it comes
        if op == "generate":
            self._generate(spec, payload)
        elif op == "load":
            write_frame(self._sink, {"event": "loaded", "backend": self._engine_for(spec).backend.encode()})
        elif op == "class":
            write_frame(self._sink, {"event": "class", "class_name": backend_of(spec).class_name})
        elif op == "score":
            self._score(spec, payload)
        else:
            raise EngineError(f"the engine knows the jobs generate, load, class and score; received {op!r}")

    def _generate(self, spec: RunSpec, blob_bytes: bytes) -> None:
        blob = table_from_bytes(blob_bytes)
        timings = Timings()
        started = time.perf_counter()
        engine = self._engine_for(spec)
        timings.load = time.perf_counter() - started
        completions = engine.complete(spec, requests_from_blob(blob, spec), timings, self._on_cycle)
        tally = sum((completion.tally() for completion in completions), Tally())
        header = {"event": "rows", "backend": engine.backend.encode(), "tally": tally.encode(), "timings": asdict(timings)}
        write_frame(self._sink, header, table_to_bytes(completions_to_table(blob, completions, logprobs=spec.logprobs)))

    def _score(self, spec: RunSpec, payload: bytes) -> None:
        rows = 0

        def on_row() -> None:
            nonlocal rows
            self._on_cycle(lambda: Tally(rows=rows))
            rows += 1

        scores = self._engine_for(spec).score(spec, table_from_bytes(payload), on_row)
        write_frame(self._sink, {"event": "scores"}, table_to_bytes(scores))

    def _on_cycle(self, tally: Callable[[], Tally]) -> None:
        """Give the job up if nobody wants it any more; else say now and then how far it is."""
        if self._dropped.is_set():
            raise ShardDroppedError
        if (now := time.perf_counter()) - self._last_sent >= TALLY_INTERVAL:
            self._last_sent = now
            write_frame(self._sink, {"event": "tally", "tally": tally().encode()})

    def _engine_for(self, spec: RunSpec) -> Engine:
        """The loaded engine, replaced when the spec names another model, head or profile."""
        key = (spec.model.name, spec.model.digest, spec.head, spec.draft_model, spec.profile)
        if self._engine is None or self._engine_key != key:
            self._engine = None
            self._engine = load_engine(spec, trust_remote_code=self._trust_remote_code)
            self._engine_key = key
        return self._engine


def backend_of(spec: RunSpec) -> Backend:
    """Where a spec's model would run here, found without loading it, and so without the answer of the invariance probe."""
    if is_scripted(spec.model.name):
        return scripted_backend()
    from worker.engine import blas

    blas.prepare()
    from worker.engine.mtp_engine import backend_here

    return backend_here(row_invariant=False)


def load_engine(spec: RunSpec, *, trust_remote_code: bool = False) -> Engine:
    """The engine for a spec: scripted, or the model and head that it names.

    Args:
        spec: the run.
        trust_remote_code: whether code that comes with the model may run.

    Raises:
        ModelError, HeadError: what the spec names cannot be loaded, or its files have another digest.
    """
    if is_scripted(spec.model.name):
        return ScriptedEngine(spec.model.name)
    # OpenBLAS must be in the process before mlx is, so nothing above this line imports mlx.
    from worker.engine import blas

    blas.prepare()
    from worker.engine.mtp_engine import MTPEngine

    return MTPEngine.load(spec, trust_remote_code=trust_remote_code)


def main() -> None:
    """Entry point of `python -m worker.engine.child`."""
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries that print must not break the frames
    try:
        Child(sys.stdin.buffer, sink, trust_remote_code=TRUST in sys.argv).serve()
    except (DecodeError, KeyError) as error:
        raise EngineError(f"the engine received a frame it cannot read: {error}") from error


if __name__ == "__main__":
    main()
