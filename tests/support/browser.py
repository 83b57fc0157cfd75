"""A real browser without a screen: Debian's Chromium."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")

# No sandbox: tests run as root in containers. The rest keeps it from asking anybody but us.
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
_FLAGS += ("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars")
SECONDS = 120


def screenshot(url: str, picture: Path, *, width: int = 1000, height: int = 1200, dark: bool = False, settle_seconds: float = 0.0) -> None:
    """Write what the browser shows of a page as PNG.

    Args:
        url: of the page.
        picture: the file.
        width: of the window, in pixels.
        height: likewise.
        dark: whether the system is.
        settle_seconds: what the page's own timers are given before the picture is taken.
    """
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    _run(scheme, f"--window-size={width},{height}", *_settle(settle_seconds), f"--screenshot={picture}", url)


def page_html(url: str, *, settle_seconds: float = 0.0) -> str:
    """The page as its scripts have left it; arguments as for `screenshot`."""
    return _run(*_settle(settle_seconds), "--dump-dom", url)


def _settle(seconds: float) -> tuple[str, ...]:
    return (f"--virtual-time-budget={int(seconds * 1000)}",) if seconds else ()


def _run(*words: str) -> str:
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="specmill-browser-") as profile:
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", *words]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=SECONDS).stdout
