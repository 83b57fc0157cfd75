"""`scan_file`: the first pass over a prompts file, by as many processes as the file is worth.

A child is `python -m producer.scan_processes`: it receives a pickled `PartScanner`, then `Part` after `Part`, answers each with a `Scan` or
with what it raised, and ends with its input: whatever happens to the parent, none outlives it.
"""

import collections
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

from producer.scan import Part, PartScanner, Scan, WholeScan
from schemas.errors import InputError

BYTES_PER_PROCESS = 16_000_000  # a process that reads less takes longer to start than it saves
MOST_PROCESSES = 8  # the parent joins what they find, and more are faster than it
_GONE = "a process that read prompts ended without an answer; was it killed, or is the memory full?"


def scan_file(scanner: PartScanner, limit: int | None) -> WholeScan:
    """Read the file, or its first `limit` records, once.

    Raises:
        InputError: it cannot be read, or has too many columns.
    """
    whole = WholeScan(scanner.reader)
    processes = min(os.cpu_count() or 1, MOST_PROCESSES, scanner.path.stat().st_size // BYTES_PER_PROCESS)
    with ExitStack() as stack:
        scan = scanner.scan if processes < 2 else stack.enter_context(_Children(scanner, processes)).scan
        for part in _in_order(scan, scanner.parts(limit), processes):
            whole.add(part)
    return whole


def _in_order(scan: Callable[[Part], Scan], parts: Iterator[Part], processes: int) -> Iterator[Scan]:
    """The scans of all parts, a few of them ahead of the one that is asked for."""
    if processes < 2:
        yield from map(scan, parts)
        return
    with ThreadPoolExecutor(processes) as pool:
        ahead: collections.deque[Future[Scan]] = collections.deque()
        for part in parts:
            ahead.append(pool.submit(scan, part))
            if len(ahead) > 2 * processes:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


class _Children:
    """Processes that scan parts; a context, at whose end they are gone. `scan` is for as many threads as there are processes."""

    def __init__(self, scanner: PartScanner, count: int) -> None:
        self._scanner = pickle.dumps(scanner)
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._count = count

    def __enter__(self) -> Self:
        try:
            for _ in range(self._count):
                # -P: the user's folder must not lend us a module named like one of ours.
                command = [sys.executable, "-P", "-m", "producer.scan_processes"]
                self._all.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
                self._tell(self._all[-1], self._scanner)
                self._idle.put(self._all[-1])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._all:
            process.kill()  # it holds nothing
            process.communicate()

    def scan(self, part: Part) -> Scan:
        """What a process finds in a part; errors as in `PartScanner.scan`."""
        process = self._idle.get()
        assert process.stdout is not None
        try:
            self._tell(process, pickle.dumps(part))
            answer: Scan | Exception = pickle.load(process.stdout)
        except (EOFError, pickle.UnpicklingError) as error:
            raise InputError(_GONE) from error
        finally:
            self._idle.put(process)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _tell(self, process: "subprocess.Popen[bytes]", pickled: bytes) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(pickled)
            process.stdin.flush()
        except BrokenPipeError as error:
            raise InputError(_GONE) from error


def main() -> None:
    """Answer parts until standard input ends."""
    scanner: PartScanner = pickle.load(sys.stdin.buffer)
    while True:
        try:
            part = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Scan | Exception = scanner.scan(part)
        except Exception as error:  # the parent raises it
            answer = error
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
