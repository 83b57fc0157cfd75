import io
from dataclasses import replace

from rich.console import Console

from producer.progress_display import Display, LiveDisplay, PlainDisplay, clock, live_view, make_display, plain_line
from producer.run_progress import RunProgress, WorkerView
from schemas.profile import Backend
from schemas.progress import Tally

TALLY = Tally(
    rows=12, failed=0, prompt_tokens=80, completion_tokens=300, cycles=150, drafted_by_depth=(100, 50), accepted_by_depth=(41, 11)
)
PROGRESS = RunProgress(
    rows_total=480,
    rows_ok=300,
    rows_failed=3,
    shards_total=8,
    shards_done=5,
    in_flight=1,
    tally=TALLY,
    tokens_per_second=212.34,
    eta_seconds=83.9,
    elapsed=3999.0,
    workers=(
        WorkerView("host:1", 5, replace(TALLY, rows=9), Backend("cpu", "Zen [2]", "0.32", "openblas Zen", True)),
        WorkerView("host:2", None, Tally(), None),
    ),
    phase="generating",
)


def shown(progress):
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(live_view(progress))
    return console.file.getvalue()


def test_the_plain_line_says_rows_speed_acceptance_and_time_left():
    assert plain_line(PROGRESS) == (
        "generating: 312/480 rows (65%), 3 failed, 212.3 tok/s, acceptance 1: 0.41 2: 0.22, 2.00 tokens/cycle, ETA 1:23"
    )
    start = replace(
        PROGRESS, rows_ok=0, rows_failed=0, tally=Tally(), tokens_per_second=0.0, eta_seconds=None, workers=(), phase="loading model"
    )
    assert plain_line(start) == "loading model: 0/480 rows (0%)"


def test_without_a_head_no_acceptance_is_claimed():
    assert "acceptance" not in plain_line(replace(PROGRESS, tally=replace(TALLY, drafted_by_depth=(), accepted_by_depth=())))


def test_a_rate_over_an_instant_is_not_shown():
    assert "tok/s" not in plain_line(replace(PROGRESS, tokens_per_second=0.0))


def test_the_live_view_has_a_line_per_worker_and_takes_names_as_they_are():
    text = shown(PROGRESS)
    assert "312/480 rows 65%" in text
    assert "3 failed" in text
    assert "acceptance 1: 0.41 2: 0.22" in text
    assert "elapsed 1:06:39" in text
    assert "host:1 on Zen [2], openblas Zen: shard 5, 9 rows, 300 tokens from 80 of prompts so far" in text
    assert "host:2: idle" in text


def test_many_workers_do_not_fill_the_screen():
    text = shown(replace(PROGRESS, workers=tuple(WorkerView(f"w{i}", i, Tally(), None) for i in range(30))))
    assert "… and 22 more workers" in text


def test_without_a_terminal_a_line_comes_every_ten_seconds_and_at_each_phase():
    stream, now = io.StringIO(), [100.0]
    display = PlainDisplay(stream, clock=lambda: now[0])
    for seconds, phase in (
        (0, "loading model"),
        (1, "generating"),
        (5, "generating"),
        (9.9, "generating"),
        (11.1, "generating"),
        (12, "done"),
    ):
        now[0] = 100.0 + seconds
        display.update(replace(PROGRESS, phase=phase))
    assert [line.partition(":")[0] for line in stream.getvalue().splitlines()] == ["loading model", "generating", "generating", "done"]


def test_the_display_suits_the_stream():
    assert isinstance(make_display(quiet=False, stream=io.StringIO()), PlainDisplay)
    assert type(make_display(quiet=True)) is Display


def test_a_live_display_leaves_the_terminal_in_order():
    stream = io.StringIO()
    with LiveDisplay(Console(file=stream, force_terminal=True, width=100)) as display:
        display.note("a note with [brackets]")
        display.update(PROGRESS)
        display.close()
    text = stream.getvalue()
    assert "a note with [brackets]" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0  # the cursor was hidden and is shown again


def test_quiet_is_quiet(capsys):
    with Display() as display:
        display.note("x")
        display.update(PROGRESS)
    assert capsys.readouterr() == ("", "")


def test_clock():
    assert [clock(seconds) for seconds in (0, 59.9, 83, 3600, 4000)] == ["0:00", "0:59", "1:23", "1:00:00", "1:06:40"]
