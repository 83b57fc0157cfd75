"""`crash_kind`: what an engine's death most probably was, from its exit status and its last lines."""

import re

# The texts are those of MLX 0.32 (Metal allocator and command buffers), of C++ and of Python.
_BY_TEXT = (
    (
        "out of memory",
        re.compile(r"Insufficient Memory|ErrorOutOfMemory|std::bad_alloc|MemoryError|Unable to allocate|maximum allowed buffer size", re.I),
    ),
    ("Metal fault", re.compile(r"\[METAL\]|kIOGPUCommandBufferCallbackError|MTLCommandBufferError|Command buffer execution failed", re.I)),
)
_BY_STATUS = (
    ("killed, as a system does that runs out of memory", re.compile(r"ended with signal SIGKILL")),
    ("fault in native code", re.compile(r"ended with (signal SIG(SEGV|BUS|ILL|FPE|ABRT|TRAP)|exit code 13[4-9])")),
    ("ended by a signal", re.compile(r"ended with signal SIG\w+")),
)


def crash_kind(message: str) -> str:
    """A few words for people: out of memory, Metal fault, killed …, fault in native code, or just an end.

    Args:
        message: the text of an `EngineCrashedError`: how the process ended, then its last lines.
    """
    for kind, pattern in (*_BY_TEXT, *_BY_STATUS):
        if pattern.search(message):
            return kind
    return "ended by itself"
