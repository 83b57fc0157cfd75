"""The documentation: built without a warning, its commands known and, where it is cheap, run as they stand."""

import contextlib
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import documented_specmill
import pytest
from s3_server import S3Server

from producer.broker import EmbeddedBroker
from producer.cli import main
from schemas import errors, tables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md"])
ALONE = ("README.md", "first-dataset.md", "inputs-and-outputs.md", "forms.md")
WITH_A_BROKER = ("fleet.md", "monitoring.md", "operations.md")
RUN_ELSEWHERE = {
    "depth-and-batch.md": ("tests/verify/test_tune.py",),
    "heads.md": (
        "tests/distill/test_distill_command.py",
        "tests/distill/test_distill_end_to_end.py",
        "tests/distill/test_model_acceptance.py",
    ),
}
DOCUMENTED_BROKER = "redis://specmill:PASSWORD@127.0.0.1:6379/0"
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


class Page:
    """A page's commands as a script, and the folder that it runs in."""

    def __init__(self, page, folder):
        self.folder = folder
        self.blocks = "".join(block for _, block in shell_blocks(page))
        shim = folder / ".venv" / "bin" / "specmill"
        shim.parent.mkdir(parents=True)
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} {documented_specmill.__file__} "$@"\n')
        shim.chmod(0o755)
        (shim.parent / "activate").touch()
        self.environment = {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}", "DOCUMENTED_MODEL": "scripted"}

    def run(self, before=""):
        (self.folder / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
        script = f'set -eu\nssh() {{ true; }}\nmake() {{ grep -q "^$1:" Makefile; }}\n{before}\n{self.blocks}'
        log = self.folder / "said"
        with log.open("wb") as said:
            process = subprocess.Popen(
                ["bash", "-c", script], cwd=self.folder, env=self.environment, stdout=said, stderr=said, start_new_session=True
            )
            try:
                code = process.wait(timeout=300)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # workers that the page has started
        assert (code, "Traceback" in log.read_text()) == (0, False), log.read_text()


@pytest.fixture
def page_named(tmp_path):
    def open_page(name):
        page = Page(ROOT / name if name == "README.md" else DOCS / name, tmp_path)
        lines = [{"id": f"q{i}", "prompt": f"Say {i}."} for i in range(8)]
        (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        turns = [{"question_id": i, "category": "math", "turns": [f"What is {i}?", "And now?"]} for i in range(4)]
        (tmp_path / "question.jsonl").write_text("".join(json.dumps(line) + "\n" for line in turns))
        return page

    return open_page


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_the_commands_of_a_page_run_as_they_stand(name, page_named):
    page_named(name).run()


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_A_BROKER)
def test_the_commands_of_a_page_about_fleets_run_as_they_stand(name, page_named, tmp_path):
    pytest.importorskip("flower")
    with EmbeddedBroker(tmp_path / "broker") as broker, S3Server() as store:
        with contextlib.closing(store.client()) as client:
            client.create_bucket(Bucket="bucket")
        page = page_named(name)
        page.environment |= store.environment
        page.blocks = page.blocks.replace(DOCUMENTED_BROKER, broker.url)
        page.environment["SPECMILL_BROKER"] = broker.url
        page.run("specmill run prompts.jsonl --out my-dataset" if name == "monitoring.md" else "")


@pytest.mark.slow
def test_the_commands_about_proofs_run_as_they_stand(page_named, agreeing_pair):
    page = page_named("verifying.md")
    page.environment["DOCUMENTED_MODEL"] = str(agreeing_pair[0])
    page.run("specmill run prompts.jsonl --out my-dataset --max-tokens 8 --raw")


def test_no_page_with_commands_is_forgotten():
    pages = {page.name for page in PAGES if [*commands_in(page)]}
    assert pages == {*ALONE, *WITH_A_BROKER, "verifying.md", *RUN_ELSEWHERE}


@pytest.mark.parametrize("name", RUN_ELSEWHERE)
def test_what_takes_training_or_measuring_is_run_by_the_tests_of_that(name):
    run_there = "".join((ROOT / test).read_text() for test in RUN_ELSEWHERE[name])
    said = {word for words in commands_in(DOCS / name) for word in words if word in {"distill", "tune", "acceptance", "list"}}
    said |= {word for words in commands_in(DOCS / name) for word in words if word.startswith("--")}
    run_here = {word for page in ALONE for words in commands_in(ROOT / page if page == "README.md" else DOCS / page) for word in words}
    assert {word for word in said - run_here if f'"{word}"' not in run_there} == set()


def test_what_a_page_leaves_out_is_run_by_another_test():
    for command, test in documented_specmill.RUN_ELSEWHERE.items():
        assert f'"{command}"' in (ROOT / test).read_text()


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
    assert not re.search(r'(src|href)="https?://(?!github|arxiv|huggingface|flower|argilla-io|docs\.vllm|squidfunk)', page)
