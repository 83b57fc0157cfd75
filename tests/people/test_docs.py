"""The documentation: built without a warning, its commands known and, where it is cheap, run as they stand."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from producer.cli import main
from schemas import errors, tables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md"])
EXECUTED = ("first-dataset.md", "inputs-and-outputs.md", "forms.md")
CHECKOUT = (ROOT / "mkdocs.yml").exists()
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="not a checkout")


def shell_blocks(page):
    return re.findall(r"^( *)```sh\n(.*?)^\1```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands_in(page):
    """Every `specmill …` line of the page's shell blocks, as words."""
    for _, block in shell_blocks(page):
        for line in re.sub(r"<<'END'\n.*?\nEND", "", block, flags=re.DOTALL).splitlines():
            found = re.search(r"(?:^|\s|/)specmill (?!:)(.*)", line.split(" #")[0])
            if found:
                yield shlex.split(found[1].split(" | ")[0].replace("…", ""))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_on_a_page_exists(page):
    for words in commands_in(page):
        command, rest = main, words
        while isinstance(command, click.Group) and rest and rest[0] in command.commands:
            command, rest = command.commands[rest[0]], rest[1:]
        assert command is not main, words
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word.split("=")[0] for word in rest if word.startswith("-") and word != "-"} <= known, words


@pytest.mark.slow
@pytest.mark.parametrize("name", EXECUTED)
def test_the_commands_of_a_page_run_as_they_stand(name, tmp_path):
    shim = tmp_path / "bin" / "specmill"
    shim.parent.mkdir()
    scripted = 'case "$1" in run) set -- "$@" --model scripted;; esac'
    shim.write_text(f'#!/bin/sh\n{scripted}\nexec {sys.executable} -P -m producer.cli "$@"\n')
    shim.chmod(0o755)
    script = "set -eu\n" + "".join(block for _, block in shell_blocks(DOCS / name))
    folder = tmp_path / "work"
    folder.mkdir()
    environment = {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_reference_names_every_column():
    text = (DOCS / "reference.md").read_text()
    names = [*tables.RESERVED_COLUMNS - {"bad_input"}, *(field.name for field in tables.ACCEPTANCE), *tables.ATTEMPTS.names]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_reference_is_filled_from_the_code():
    spec = importlib.util.spec_from_file_location("specmill_docs_hooks", DOCS / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    text = hooks.on_page_markdown((DOCS / "reference.md").read_text())
    assert "<!--" not in text
    assert [name for name in main.commands if f"`specmill {name}`" not in text] == []
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SpecmillError)]
    assert [kind.__name__ for kind in kinds if f"| `{kind.__name__}` |" not in text] == []
    assert "`--max-tokens INTEGER RANGE`" in text


def test_the_shell_completes_commands():
    command = [sys.executable, "-P", "-m", "producer.cli"]
    asked = {**os.environ, "_SPECMILL_COMPLETE": "bash_complete", "COMP_WORDS": "specmill rep", "COMP_CWORD": "1"}
    assert "report" in subprocess.run(command, env=asked, capture_output=True, text=True, check=True).stdout


def test_every_picture_of_a_page_is_there():
    for page in PAGES:
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
            assert (page.parent / target).is_file(), (page.name, target)


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference" / "index.html").read_text()
    assert "specmill report" in page
    assert not re.search(r'(src|href)="https?://(?!github|arxiv|huggingface|flower|mtplx|docs\.vllm|squidfunk)', page)
