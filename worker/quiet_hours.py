"""`QuietHours`: times of day at which a worker takes no shard, because somebody sits at its machine."""

import re
import time
from dataclasses import dataclass

_SPAN = re.compile(r"(\d{1,2})(?::(\d{2}))?-(\d{1,2})(?::(\d{2}))?")
DAY = 24 * 60


@dataclass(frozen=True)
class QuietHours:
    """Spans of minutes since midnight, local time; the end is not part of a span, and a span may cross midnight."""

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "QuietHours":
        """`9-17`, `22:30-6:15`, or several of these with commas; nothing at all is no quiet hour.

        Raises:
            ValueError: anything else; the message shows what is expected.
        """
        spans = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _SPAN.fullmatch(part)
            if match is None:
                raise ValueError(f"quiet hours look like 9-17 or 22:30-6:15, several with commas; received {part!r}")
            begin, end = (int(match[at]) * 60 + int(match[at + 1] or 0) for at in (1, 3))
            if max(begin, end) > DAY or begin == end or any(int(match[at] or 0) > 59 for at in (2, 4)):
                raise ValueError(f"quiet hours lie between 0:00 and 24:00 and have a length; received {part!r}")
            spans.append((begin, end))
        return cls(tuple(spans))

    def include(self, now: time.struct_time) -> bool:
        """Whether a local time is quiet."""
        minute = now.tm_hour * 60 + now.tm_min
        return any(begin <= minute < end if begin < end else minute >= begin or minute < end for begin, end in self.spans)
