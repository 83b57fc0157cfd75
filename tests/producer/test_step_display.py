import io

from rich.console import Console

from producer.step_display import LiveStepDisplay, PlainStepDisplay, StepDisplay, make_step_display


def test_without_a_terminal_a_line_comes_every_ten_seconds_and_at_the_end_of_each_step():
    stream, now = io.StringIO(), [0.0]
    display = PlainStepDisplay(stream, clock=lambda: now[0])
    for seconds, what, done, total in (
        (0, "checking files", 0, 3),
        (1, "checking files", 3, 3),
        (2, "verifying rows", 0, 100),
        (8, "verifying rows", 20, 100),
        (12, "verifying rows", 25, 100),
        (13, "verifying rows", 26, 100),
        (32, "verifying rows", 100, 100),
        (33, "scanning", 5, None),
        (50, "scanning", 1000, None),
    ):
        now[0] = float(seconds)
        display.step(what, done, total)
    assert stream.getvalue().splitlines() == [
        "checking files: 3 of 3 (100%)",
        "verifying rows: 25 of 100 (25%), about 30 s left",
        "verifying rows: 100 of 100 (100%)",
        "scanning: 1,000",
    ]


def test_a_step_that_goes_on_is_as_fast_as_what_was_seen_of_it():
    stream, now = io.StringIO(), [0.0]
    display = PlainStepDisplay(stream, clock=lambda: now[0])
    display.step("training", 90, 120)
    now[0] = 20.0
    display.step("training", 100, 120, "loss 1.230")
    assert stream.getvalue() == "training: 100 of 120 (83%), loss 1.230, about 40 s left\n"


def test_a_terminal_gets_a_bar_and_is_left_in_order():
    stream = io.StringIO()
    with LiveStepDisplay(Console(file=stream, force_terminal=True, width=100)) as display:
        display.note("a note with [brackets]")
        display.step("verifying rows", 3, 9)
        display.step("other", 1, None, "loss 8.220")
    text = stream.getvalue()
    assert "a note with [brackets]" in text
    assert "verifying rows" in text
    assert "other, loss 8.220" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0


def test_the_display_suits_the_stream(capsys):
    assert isinstance(make_step_display(quiet=False, stream=io.StringIO()), PlainStepDisplay)
    with make_step_display(quiet=True) as display:
        display.note("x")
        display.step("y", 1, 2)
    assert type(display) is StepDisplay
    assert capsys.readouterr() == ("", "")
