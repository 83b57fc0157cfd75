import io

from rich.console import Console

from producer.head_training_display import LiveTrainingDisplay, PlainTrainingDisplay, TrainingDisplay, make_training_display, point_line
from worker.distill.evaluation_record import LearningPoint

FIRST = LearningPoint(step=0, epoch=0.0, loss=0.0, overlap=(0.05, 0.03), tokens_per_cycle=1.05)
LATER = LearningPoint(step=90, epoch=2.14, loss=1.23, overlap=(0.412, 0.39), tokens_per_cycle=1.62)


def tell(display):
    with display:
        display.note("240 rows")
        display.reading(10, 100)
        display.reading(20, 100)
        display.reading(100, 100)
        display.training([FIRST], 0, 120)
        display.step(1, 8.22)
        display.point(LATER)


def test_a_point_is_one_line():
    assert point_line(FIRST) == "step 0 (0.0 passes): acceptance 1: 0.050 2: 0.030, 1.05 tokens/cycle"
    assert point_line(LATER) == "step 90 (2.1 passes): loss 1.230, acceptance 1: 0.412 2: 0.390, 1.62 tokens/cycle"


def test_plain_lines_come_now_and_then_and_with_every_point():
    now = iter([0.0, 0.0, 5.0, 6.0, 6.0, 17.0, 17.0])
    stream = io.StringIO()
    tell(PlainTrainingDisplay(stream, lambda: next(now)))
    assert stream.getvalue().splitlines() == [
        "240 rows",
        "reading: 10/100 positions",
        "reading: 100/100 positions",
        point_line(FIRST),
        "training: step 1/120, loss 8.220",
        point_line(LATER),
    ]


def test_a_terminal_gets_bars_and_keeps_the_points():
    stream = io.StringIO()
    tell(LiveTrainingDisplay(Console(file=stream, force_terminal=True, width=100)))
    assert all(text in stream.getvalue() for text in ("240 rows", "reading", "training", "0.412"))


def test_the_display_suits_the_stream():
    assert type(make_training_display(quiet=True)) is TrainingDisplay
    assert isinstance(make_training_display(quiet=False, stream=io.StringIO()), PlainTrainingDisplay)
