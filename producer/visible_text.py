"""Texts of prompts and models as a terminal may show them: nothing in them moves the cursor, changes colours or turns lines around."""

import re

# Controls but newline and tab, line and paragraph separators, and what changes the direction of writing (Unicode Standard Annex 9).
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

HEAD_LINES, HEAD_CHARACTERS = 24, 1500  # what is left of the beginning of a long text
TAIL_LINES, TAIL_CHARACTERS = 8, 500
WORTH_IT = 200  # characters; so few are not left out


def visible(text: str) -> str:
    r"""The text with its control characters escaped, such as `\x1b` and `\u202e`; its line ends become newlines."""
    return _CONTROLS.sub(lambda match: _escape(match.group()), text.replace("\r\n", "\n"))


def visible_json(text: str) -> str:
    r"""JSON text that says the same with its control characters escaped, such as `\u202e`."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def shortened(text: str) -> str:
    """Beginning and end of a text that is too long for a terminal, and how to see all of it; any other as it is."""
    lines = text.split("\n")
    head = "\n".join(lines[:HEAD_LINES])[:HEAD_CHARACTERS]
    tail = "\n".join(lines[-TAIL_LINES:])[-TAIL_CHARACTERS:]
    left_out = len(text) - len(head) - len(tail)
    if left_out <= WORTH_IT:
        return text
    return f"{head}\n\n[… {left_out:,} characters are left out here; into a pipe, such as `| less`, all are shown …]\n\n{tail}"


def _escape(control: str) -> str:
    code = ord(control)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
