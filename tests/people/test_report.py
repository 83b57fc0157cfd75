"""`specmill report`: its numbers against plain loops over the rows, its page as a browser takes it."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow.dataset as ds
import pytest
from browser import needs_chromium, screenshot
from click.testing import CliRunner
from PIL import Image
from scripted_dataset import make_dataset

from producer.attempts_table import Attempts
from producer.cli import main
from producer.dataset import Dataset
from producer.dataset_statistics import LISTED, MIN_JUDGED, DatasetStatistics, quantiles
from producer.report import Report
from producer.report_plots import lengths, speed
from producer.row_detail import excerpt


def specmill(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    lines = [{"id": f"r{i}", "prompt": f"p{i} " * (1 + i % 7) + ("BAD" if i % 20 == 3 else "")} for i in range(90)]
    return make_dataset(tmp_path_factory.mktemp("report"), lines, model="scripted:fail_on=BAD", depth=3, max_tokens=100, samples=2)


@pytest.fixture(scope="module")
def rows(out):
    return [row for row in ds.dataset(out / "data").to_table().to_pylist() if row["error"] is None]


@pytest.fixture(scope="module")
def statistics(out):
    return DatasetStatistics.of_dataset(Dataset.open(out))


def test_every_distribution_is_that_of_the_rows(statistics, rows):
    assert statistics.cycles == sum(row["acceptance"]["cycles"] for row in rows)
    for name in ("prompt", "completion"):
        counts = np.bincount([row[f"{name}_tokens"] for row in rows])
        assert getattr(statistics, f"{name}_lengths").tolist() == counts.tolist()
    for depth, sums in enumerate(statistics.depths):
        drafted = [row["acceptance"]["drafted_by_depth"][depth] for row in rows]
        accepted = [row["acceptance"]["accepted_by_depth"][depth] for row in rows]
        assert (sums.drafted, sums.accepted) == (sum(drafted), sum(accepted))
    expected = sum(row["acceptance"]["expected_accepted"] for row in rows)
    assert statistics.calibration[2].sum() == pytest.approx(expected)


def test_accepted_lengths_add_up_to_cycles_and_drafts(statistics, rows):
    lengths = statistics.accepted_lengths
    assert sum(lengths) == statistics.cycles
    assert sum(length * count for length, count in enumerate(lengths)) == sum(row["acceptance"]["accepted"] for row in rows)


def test_the_error_of_a_share_is_that_of_resampled_rows(statistics, rows):
    random = np.random.default_rng(1)
    drafted, accepted = (np.array([row["acceptance"][f"{what}_by_depth"][0] for row in rows]) for what in ("drafted", "accepted"))
    chosen = random.integers(0, len(rows), (4000, len(rows)))
    spread = np.std(accepted[chosen].sum(axis=1) / drafted[chosen].sum(axis=1))
    assert statistics.depths[0].error == pytest.approx(spread, rel=0.1)


def test_the_lists_hold_the_most_extreme_rows(out, statistics, rows):
    report = Report.of_dataset(out)
    assert [row.cycles for row in report.slowest] == sorted((row["acceptance"]["cycles"] for row in rows), reverse=True)[:LISTED]
    judged = [(row["acceptance"]["accepted"], row["acceptance"]["accepted"] + row["acceptance"]["residual"]) for row in rows]
    shares = sorted(accepted / of for accepted, of in judged if of >= MIN_JUDGED)
    assert [row.share for row in report.lowest] == pytest.approx(shares[:LISTED])
    assert [row.share for row in report.highest] == pytest.approx(shares[::-1][:LISTED])


def test_rows_of_equal_cycles_are_not_called_slow(tmp_path):
    def report(budget):
        (tmp_path / str(budget)).mkdir()
        lines = [{"id": f"r{i}", "prompt": f"p{i}"} for i in range(60)]
        return Report.of_dataset(make_dataset(tmp_path / str(budget), lines, mtp=None, max_tokens=budget))

    cut = report(3)
    counts = cut.statistics.cycle_counts.tolist()
    assert (len(counts), counts[3] > LISTED, sum(counts) > counts[3]) == (4, True, True)
    assert f"most passes of the model. There are {counts[3] - LISTED} more of 3 cycles." in cut.html()
    equal = report(1).html()
    assert "Every row took 1 cycle: none was slower than the others." in equal
    assert "Slowest rows" not in equal


@pytest.mark.parametrize("length", [0, 1, 64, 12_345])
def test_one_length_alone_is_a_bar_over_whole_numbers(length):
    picture = lengths(np.bincount([length] * 30), "completion", 1)
    labels = re.findall(r">([^<>a-z]+)</text>", picture)
    assert f"{length:,}" in labels
    assert all(re.fullmatch(r"\d{1,3}(,\d{3})*", label) for label in labels)


def test_a_speed_begins_and_ends_where_it_was(out):
    attempts = Attempts.of_dataset(out)
    paths = re.findall(r'<path d="([^"]*)"[^>]*fill: none; stroke: var\(--(?:series-\d|ink)\); stroke-width: 1\.[58]', speed(attempts))
    heights = [re.findall(r"[ML] \S+ (\S+)", path) for path in paths]
    curves = [curve for curve in heights if len(curve) > 2]  # two points are those of the legend
    assert len(curves) == 3, "two workers, and together"
    assert all(curve[0] == curve[1] and curve[-1] == curve[-2] for curve in curves), "lines down to nothing"


def test_quantiles_are_those_of_the_sorted_values():
    values = [3, 3, 5, 7, 7, 7, 9, 20, 20, 21]
    assert quantiles(np.bincount(values), (0.1, 0.5, 0.8, 1.0)) == [3, 7, 20, 21]
    assert quantiles(np.zeros(1, np.int64), (0.5,)) == [0]


def test_rates_hold_every_token_of_the_log(out):
    attempts = Attempts.of_dataset(out)
    *_, ends = attempts.busy_time()
    edges = np.linspace(0, ends[-1], 50)
    together = attempts.rates(edges, [*range(len(attempts))])
    assert (together * np.diff(edges)).sum() == pytest.approx(attempts.tokens.sum())
    by_worker = sum(attempts.rates(edges, mine) for mine in attempts.by_worker().values())
    assert by_worker == pytest.approx(together)


def test_the_command_prints_numbers_and_writes_the_page(out, tmp_path):
    done = specmill("report", out, "--html", tmp_path / "page.html")
    assert done.exit_code == 0
    for said in ("170 rows ok, 10 failed", "NonFiniteLogitsError 10", "by depth 1: 0.", "status      complete, 12 of 12 shards", "host:0"):
        assert said in done.output
    page = (tmp_path / "page.html").read_text()
    for said in ("Acceptance by depth", "Accepted length", "Calibration", "Tokens per second", "Errors by kind", "Slowest rows"):
        assert said in page
    assert not (out / "report.html").exists()


def test_json_is_one_object_and_writes_no_page(out):
    done = specmill("report", out, "--json")
    found = json.loads(done.stdout)
    assert (found["rows"], found["failures"], len(found["acceptance_by_depth"])) == (180, {"NonFiniteLogitsError": 10}, 3)
    assert not (out / "report.html").exists()
    assert specmill("report", out, "--no-html", "--html", "x").exit_code == 2


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.addresses = [], []

    def handle_starttag(self, tag, attrs):
        self.open += [tag] if tag not in ("meta", "br") else []
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing(out):
    text = Report.of_dataset(out).html()
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert all(address.startswith("#") for address in page.addresses)
    ids = re.findall(r' id="([^"]+)"', text)
    assert {address[1:] for address in page.addresses} <= set(ids)
    assert not re.search(r"#0[123]0[0-9]0[0-9]", text), "a stand-in for a colour was left"
    assert "<script" not in text
    assert "url(http" not in text


def test_what_models_write_is_never_markup(tmp_path):
    lines = [{"id": "<b>&", "prompt": "p"}] + [{"id": f"<script>{i}", "prompt": "p"} for i in range(4)]
    text = Report.of_dataset(make_dataset(tmp_path, lines, depth=1)).html()
    assert "<script" not in text
    assert "&lt;script&gt;1" in text


def test_an_unfinished_dataset_and_one_without_drafts_are_reported_too(tmp_path):
    lines = [{"prompt": f"p{i}"} for i in range(20)]
    unfinished = make_dataset(tmp_path, lines, landed=1, mtp=None)
    text = Report.of_dataset(unfinished).text()
    assert "stopped, 1 of 3 shards" in text
    assert "acceptance" not in text
    assert "How speculation went" not in Report.of_dataset(unfinished).html()


def test_nothing_but_error_rows_is_no_trouble(tmp_path):
    out = make_dataset(tmp_path, [{"prompt": f"BAD {i}"} for i in range(3)], model="scripted:fail_on=BAD")
    assert "0 rows ok, 3 failed" in Report.of_dataset(out).text()
    page = Report.of_dataset(out).html()
    assert "Errors by kind" in page
    assert "lengths" not in page
    assert "worth a look" not in page


def test_a_folder_without_a_dataset_and_one_without_a_row_are_refused(tmp_path):
    assert "holds no dataset" in specmill("report", tmp_path).stderr
    empty = make_dataset(tmp_path, [{"prompt": "p"}], landed=0)
    assert "nothing of" in specmill("report", empty).stderr


def test_an_excerpt_keeps_beginning_and_end():
    assert excerpt("a\n b") == "a b"
    text = excerpt("x" * 100 + "y" * 100, 50)
    assert (len(text) <= 50, text[0], text[-1]) == (True, "x", "y")


@needs_chromium
def test_a_browser_shows_the_page_dark_where_the_system_is_dark(out, tmp_path):
    (tmp_path / "page.html").write_text(Report.of_dataset(out).html())
    corners = []
    for theme in ("light", "dark"):
        picture = tmp_path / f"{theme}.png"
        screenshot((tmp_path / "page.html").as_uri(), picture, dark=theme == "dark")
        with Image.open(picture) as image:
            colours = image.convert("RGB").getcolors(1 << 24)
            corners.append(image.convert("L").getpixel((2, 2)))
        assert colours is not None
        assert len(colours) > 50
    assert corners[0] > 200
    assert corners[1] < 60


def test_a_page_that_cannot_be_written_says_where_it_may_go(out, tmp_path):
    done = specmill("report", out, "--html", tmp_path / "nowhere" / "page.html")
    assert done.exit_code == 1
    assert "--html FILE writes the page elsewhere, --no-html writes none" in done.output
