"""`specmill show`: the row that was asked for, with colours only where there is a terminal, and nothing that would disturb one."""

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from rich.console import Console
from scripted_dataset import make_dataset

from producer.cli import main
from producer.row_view import row_view, speculation
from producer.token_origins import token_origins
from producer.token_pieces import token_pieces
from producer.visible_text import HEAD_CHARACTERS, HEAD_LINES, TAIL_CHARACTERS, WORTH_IT, shortened, visible
from schemas.errors import ModelError
from schemas.sampler import SamplerConfig
from worker.engine.model_store import SMOLLM2


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    lines = [{"id": f"r{i}", "prompt": f"question [{i}]" + (" BAD" if i == 4 else ""), "topic": "sea"} for i in range(20)]
    lines.append({"id": "m", "messages": [{"role": "system", "content": "be [bold]brief[/]"}, {"role": "user", "content": "hello"}]})
    return make_dataset(tmp_path_factory.mktemp("show"), lines, model="scripted:fail_on=BAD", samples=2, max_tokens=9)


def show(out, *words):
    return CliRunner().invoke(main, ["show", str(out), *map(str, words)])


def on_a_terminal(*words):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "producer.cli", *map(str, words)]
    with subprocess.Popen(command, stdout=theirs) as process, os.fdopen(ours, "rb") as terminal:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # how a terminal says that its other side is closed
            while data := terminal.read1():
                said += data
    assert process.returncode == 0
    return said.decode()


def painted(row, pieces):
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=100)
    console.print(row_view(row, pieces))
    return console.file.getvalue()


def test_a_row_is_found_by_its_number_where_no_record_has_that_id(out, tmp_path):
    by_number = [
        json.loads(line)["record_id"] for line in show(out, "--row", 5, "--row", "r3", "--sample", 0, "--json").output.splitlines()
    ]
    assert by_number == ["r3", "r5"]
    refused = show(out, "--row", 21)
    assert (refused.exit_code, "the dataset has no record '21', and its rows have the numbers 0 to 20" in refused.output) == (1, True)
    named = make_dataset(tmp_path, [{"id": str(9 - i), "prompt": f"p{i}"} for i in range(10)])
    (row,) = map(json.loads, show(named, "--row", 2, "--json").output.splitlines())
    assert (row["record_id"], row["row"]) == ("2", 7), "an id comes before a number"


def test_a_row_is_shown_with_its_prompt_answer_and_columns(out):
    done = show(out, "--row", "r3", "--sample", 1)
    (row,) = (row for row in ds.dataset(out / "data").to_table().to_pylist() if (row["record_id"], row["sample"]) == ("r3", 1))
    for said in ("r3, sample 1", "question [3]", row["completion"][:20], "cycles", "topic: sea", f"seed {row['seed']}"):
        assert said in done.output
    assert "\x1b" not in done.output


def test_all_samples_are_shown_and_messages_are_taken_literally(out):
    done = show(out, "--row", "m")
    assert done.output.count("hello") == 2
    assert "be [bold]brief[/]" in done.output


def test_an_error_row_says_why(out):
    assert "NonFiniteLogitsError: logits" in show(out, "--row", "r4").output


def test_rows_are_found_by_condition_or_at_random(out):
    row = json.loads(show(out, "--where", "completion_tokens > 3", "--json").stdout)
    assert row["completion_tokens"] > 3
    assert show(out).exit_code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--row", "nobody"), "has no record 'nobody'"),
        (("--row", "r1", "--sample", 2), "--sample must be in [0, 1]; received 2"),
        (("--where", "sample = 9"), "no row of"),
        (("--where", "nonsense"), "--where 'nonsense'"),
    ],
)
def test_what_is_not_there_is_one_clear_error(out, words, says):
    done = show(out, *words)
    assert (done.exit_code, says in done.stderr, "Traceback" in done.output) == (1, True, False)


CONTROLS = "a\x1b[31mb\u202ec\x9bd\re\u2066f\u2028g\x7f"
ESCAPED = r"a\x1b[31mb\u202ec\x9bd\x0de\u2066f\u2028g\x7f"


def test_control_characters_are_shown_escaped_wherever_they_stand(tmp_path):
    lines = [{"id": f"i{CONTROLS}", "prompt": CONTROLS, "own": CONTROLS}, {"id": "bad", "prompt": f"BAD {CONTROLS}"}]
    lines += [{"id": f"{CONTROLS}{i}", "prompt": "p"} for i in range(2)]
    out = make_dataset(tmp_path, lines, model="scripted:fail_on=BAD", depth=1, max_tokens=60)
    for done in (show(out, "--row", 0), show(out, "--row", "bad"), show(out, "--row", 0, "--json")):
        assert done.exit_code == 0
        assert not set(CONTROLS) - set("abcdefg[31m") & set(done.output.replace("\n", ""))
    plain = show(out, "--row", 0).output
    assert plain.count(ESCAPED) == 3  # the id, the prompt and the column
    assert json.loads(show(out, "--row", 0, "--json").output)["prompt"] == CONTROLS, "JSON says the same"
    report = CliRunner().invoke(main, ["report", str(out), "--html", str(tmp_path / "page.html")]).output
    assert "\x1b" not in report + (tmp_path / "page.html").read_text()
    assert visible("tab\tfamily 👩\u200d👧 عربي\r\nü") == "tab\tfamily 👩\u200d👧 عربي\nü"
    pieces = painted({**json.loads(show(out, "--row", 0, "--json").output), "logprobs": [0.0, 0.0]}, ["x\u202e", "\x1b[2J"])
    assert r"x\u202e\x1b[2J" in pieces


def test_a_long_prompt_is_shortened_on_a_terminal_only(tmp_path):
    out = make_dataset(tmp_path, [{"id": "long", "prompt": "begin " + "x" * 9000 + " end"}])
    assert show(out, "--row", "long").output.count("x") >= 9000
    said = " ".join(re.sub(r"\x1b\[[0-9;]*m|│", " ", on_a_terminal("show", out, "--row", "long")).split())
    assert ("begin" in said, "end" in said, said.count("x") < 3000) == (True, True, True)
    assert "[… 7,010 characters are left out here; into a pipe, such as `| less`, all are shown …]" in said


@pytest.mark.parametrize("text", ["x" * 100_000, "word\n" * 1000, "\n" * 5000])
def test_what_is_left_of_a_long_text_is_its_beginning_and_end(text):
    short = shortened(text)
    assert len(short) < HEAD_CHARACTERS + TAIL_CHARACTERS + 200
    assert short.count("\n") < 40
    head, between, tail = short.split("\n\n[…")[0], short.partition("[…")[2].partition("…]")[0], short.partition("…]\n\n")[2]
    assert (text.startswith(head), text.endswith(tail)) == (True, True)
    assert int(between.split()[0].replace(",", "")) == len(text) - len(head) - len(tail)


def test_what_is_hardly_too_long_is_shown_whole():
    for text in ("", "x" * (HEAD_CHARACTERS + TAIL_CHARACTERS + WORTH_IT), "line\n" * HEAD_LINES):
        assert shortened(text) == text


def test_tokens_are_coloured_by_their_probability(out):
    row = json.loads(show(out, "--row", "r3", "--sample", 0, "--json").stdout)
    row |= {"token_ids": [1, 2, 3], "completion": "sure maybe never", "logprobs": [-0.01, -1.0, -9.0]}
    text = painted(row, ["sure ", "maybe ", "never"])
    assert "sure \x1b[33mmaybe \x1b[0m\x1b[1;31mnever\x1b[0m" in text
    assert "less than 10 %" in text
    assert "probability of a token" not in painted(row, None)


def test_the_counts_of_speculation_are_said_in_words():
    counts = {"cycles": 5, "accepted": 3, "residual": 1, "bonus": 4, "accepted_by_depth": [2, 1], "drafted_by_depth": [5, 5]}
    assert speculation(counts) == "5 cycles; 3 accepted (75% of 4 drafts judged), 1 residual, 4 bonus; by depth 1: 2/5 2: 1/5"
    assert speculation({**counts, "accepted": 0, "residual": 0}) == "5 cycles"


@pytest.mark.model
def test_pieces_join_to_the_text_that_the_tokenizer_gives(smollm2_folder):
    from mlx_lm.utils import load_tokenizer

    text = "Ein größeres 🦊 jumps!"
    ids = load_tokenizer(smollm2_folder).encode(text)
    pieces = token_pieces(SMOLLM2, ids)
    assert (len(pieces), "".join(pieces)) == (len(ids), text)
    assert token_pieces("no-such-model", ids) is None


def test_origins_are_found_by_decoding_the_row_again(agreeing_pair):
    from engine_support import make_requests, make_spec

    from worker.engine.engine import Timings
    from worker.engine.mtp_engine import MTPEngine

    spec = make_spec(*agreeing_pair, depth=2, max_tokens=30, sampler=SamplerConfig(temperature=1.0))
    for made in MTPEngine.load(spec).complete(spec, make_requests(["Tell me", "why?"]), Timings(), lambda _: None):
        request = made.request
        row = {"sample": request.sample, "seed": request.key, "prompt": request.prompt, "token_ids": made.token_ids}
        origins = token_origins(spec, row)
        counts = (sum(made.acceptance.accepted_by_depth), made.acceptance.residual, made.acceptance.bonus)
        assert tuple(origins.count(name) for name in ("accepted", "residual", "bonus")) == counts
        assert sum(counts) == len(made.token_ids)
        with pytest.raises(ModelError, match="decodes the row to other tokens"):
            token_origins(spec, {**row, "token_ids": [1, 2, 3]})


def test_origins_are_coloured_and_counted(out):
    row = json.loads(show(out, "--row", "r3", "--sample", 0, "--json").stdout)
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=100)
    console.print(row_view(row, ["a", "b", "c"], ["accepted", "residual", "bonus"]))
    assert "\x1b[32ma\x1b[0m\x1b[1;31mb\x1b[0m\x1b[36mc\x1b[0m" in console.file.getvalue()
    assert "1 residual" in console.file.getvalue()
    assert "a scripted row has no tokens" in show(out, "--row", "r3", "--origins").stderr
