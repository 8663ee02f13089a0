from __future__ import annotations

import os
import re
import statistics
from html.parser import HTMLParser

import pytest
from plotly.offline import get_plotlyjs

from fedarena.core.errors import BadInputError
from fedarena.display import final_table, write_report
from fedarena.display.drawing.marks import MAX_LINE_POINTS
from fedarena.display.report.sections.headline import facts


class Page(HTMLParser):
    """What a browser would make of a page: its elements, its text, and its tables by class."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.visible = ""
        self._open: list[str] = []
        self._table: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self._open.append(tag)
        if tag == "table":
            self._table = self.tables[dict(attributes)["class"]] = []
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if "script" in self._open or "style" in self._open:
            return
        self.visible += data
        if "td" in self._open or "th" in self._open:
            self._table[-1][-1] += data


@pytest.fixture(scope="module")
def page(comparison, tmp_path_factory):
    return Page(write_report(comparison, tmp_path_factory.mktemp("report") / "report.html").read_text())


def test_the_results_table_shows_the_numbers_of_the_runs(page, comparison):
    head, *rows = page.tables["results"]
    column = {title: index for index, title in enumerate(head)}
    assert [row[0] for row in rows] == ["fedavg3 seeds", "fedprox2 finished and 1 diverged", "fedyogi3 seeds"]
    for row, label in zip(rows, ("fedavg", "fedprox", "fedyogi"), strict=True):
        seeds = [run for run in comparison if run.label == label and run.status == "finished"]
        frames = [run.clients.to_pandas().query("round == 60") for run in seeds]
        for title, measure in {
            "accuracy": lambda f: (f["accuracy"] * f["samples"]).sum() / f["samples"].sum(),
            "by client": lambda f: f["accuracy"].mean(),
            "p10": lambda f: f["accuracy"].quantile(0.1),
            "p90": lambda f: f["accuracy"].quantile(0.9),
            "worst decile": lambda f: f["accuracy"].nsmallest(24).mean(),
            "loss": lambda f: (f["loss"] * f["samples"]).sum() / f["samples"].sum(),
        }.items():
            values = [measure(frame) for frame in frames]
            assert row[column[title]] == f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
        sent = statistics.mean(sum(r["bytes_down"] + r["bytes_up"] for r in run.rounds.to_pylist()) for run in seeds)
        assert row[column["traffic"]] == f"{sent / 1e9:.2f} GB"


def test_only_the_best_are_bold(comparison, make_run, tmp_path):
    def bold(runs):
        text = write_report(runs, tmp_path / "report.html").read_text()
        return re.findall(r"<strong>([^<]*)</strong>", text.split('class="results"')[1].split("</table>")[0])

    clear = [make_run(label, seed, every=20) for label in ("fedavg", "fedyogi") for seed in range(6)]
    found = final_table(clear)
    best = [
        column.text(row).split(" ± ")[0]
        for row in found.rows
        for column in found.columns
        if row.label in column.best(found.rows)
    ]
    assert bold(clear) == best
    assert len(best) >= 6
    few = final_table(comparison)
    assert few.column("score").text(few.winner).split(" ± ")[0] not in bold(comparison), "seeds do not tell"
    assert bold([make_run()]) == []


def test_the_headline_is_computed(page, comparison):
    seeds = [run.clients.to_pandas().query("round == 60") for run in comparison if run.label == "fedyogi"]
    values = [(f["accuracy"] * f["samples"]).sum() / f["samples"].sum() for f in seeds]
    assert (
        f"fedyogi reached {statistics.mean(values):.3f} ± {statistics.stdev(values):.3f} accuracy over 3 seeds "
        "on the test data of 238 clients after 60 rounds; "
        "the baseline (always the most frequent label, ' ') gives 0.178."
    ) in page.visible
    assert "3 methods · 9 runs · federation chitchat · 60 rounds · 20 clients a round" in page.visible


def test_a_diverged_run_is_called_out_with_its_message(page):
    assert "fedprox-seed2 (seed 2) diverged after 22 rounds. The training loss became nan." in page.visible
    assert [attributes["class"] for _, attributes in page.elements if "notice" in attributes.get("class", "")] == [
        "notice broken",
        "notice unfinished",
    ]
    assert "fedprox diverged with 1 of 3 seeds: its averages are of the others, and better than" in page.visible


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        ("failed", "failed after 10 rounds. disk full", "broken"),
        ("interrupted", "was interrupted after 10 rounds. disk full", "unfinished"),
        ("running", "is still running after 10 rounds. disk full", "unfinished"),
    ],
)
def test_other_unfinished_runs_are_called_out_too(make_run, tmp_path, status, words, kind):
    run = make_run(status=status, stop_after=10, message="disk full")
    text = write_report([run], tmp_path / "report.html").read_text()
    assert words in Page(text).visible
    assert f'class="notice {kind}"' in text


def test_unequal_conditions_are_called_out(make_run, tmp_path):
    runs = [make_run("a"), make_run("b", rounds=30, config={"federation": {"name": "digits"}})]
    visible = Page(write_report(runs, tmp_path / "report.html").read_text()).visible
    assert "different federations" in visible
    assert "different numbers of rounds" in visible
    assert "a and b on chitchat and digits" in visible


def test_the_facts_hold_for_all_runs(make_run):
    longer = make_run("b", rounds=90, config={"cohort": 5})
    assert facts([make_run("a"), make_run("c")]) == (
        "2 methods · 2 runs · federation chitchat · 60 rounds · 20 clients a round"
    )
    assert facts([make_run("a"), longer]) == (
        "2 methods · 2 runs · federation chitchat · 60 to 90 rounds · 5 to 20 clients a round"
    )
    digits = [
        make_run(label, config={"federation": {"name": "digits", "clients": n}}) for label, n in (("d", 3), ("e", 4))
    ]
    assert " · federations chitchat and digits · " in facts([make_run("a"), *digits])
    assert " · federation digits in several settings · " in facts(digits)


def test_runs_with_the_same_seed_are_shown_once(make_run, tmp_path):
    run, again = make_run(), make_run(name="again", stop_after=22, status="diverged")
    twice = Page(write_report([again, run, run], tmp_path / "twice.html").read_text())
    assert [row[0] for row in twice.tables["runs"]] == ["run", "fedavg-seed0"]
    assert "1 method · 1 run · " in twice.visible
    assert "again (runs/again) is left out: there is another run of fedavg with seed 0." in twice.visible
    assert "diverged" not in twice.visible
    same = write_report([run, run], tmp_path / "same.html").read_bytes()
    assert same == write_report([run], tmp_path / "once.html").read_bytes()


def test_settings_are_shown_once_and_differences_in_a_table(page):
    head, *rows = page.tables["settings"]
    assert head == ["setting", "fedavg", "fedprox", "fedyogi"]
    assert {row[0]: row[1:] for row in rows} == {
        "seed": ["0, 1, 2"] * 3,
        "algorithm.name": ["fedavg", "fedprox", "fedyogi"],
        "algorithm.mu": ["–", "0.01", "–"],
    }
    shared = page.visible.split("What all runs share")[1].split("All settings of every run")[0]
    assert "sequence_length: 64" in shared
    assert "algorithm" not in shared


def test_environment_and_the_way_to_reproduce(page, comparison):
    rows = dict(page.tables["environment"][1:])
    assert len(rows) == len(page.tables["environment"][1:])
    assert rows["command"] == "fedarena run 'name=a run'"
    assert rows["versions.torch"] == "2.9.0"
    assert rows["hardware.memory_bytes"] == "8.00 GB"
    assert rows["seed"] == "0, 1, 2"
    assert "fedarena run config.yaml" in page.visible
    assert [row[3] for row in page.tables["runs"][1:]] == [str(run.path) for run in comparison]


def test_reach_table(page):
    head, *rows = page.tables["reach"]
    assert head == ["to reach accuracy", "0.2", "0.3", "0.4"]
    assert rows[0][-1] == "not reached"
    assert re.fullmatch(r"[\d.]+ [MG]B [\d.]+ [GT]FLOP round [\d.]+", rows[2][1])


def test_a_single_run_gets_the_same_report(make_run, tmp_path):
    page = Page(write_report([make_run()], tmp_path / "report.html").read_text())
    assert "settings" not in page.tables
    assert "lr: 0.5" in page.visible
    assert "± " not in page.visible
    assert [a["id"] for tag, a in page.elements if tag == "section"] == [
        "results",
        "learning",
        "clients",
        "cost",
        "speed",
        "settings",
        "environment",
        "reproduce",
    ]


def test_nothing_is_loaded_and_plotly_is_there_once(comparison, tmp_path):
    text = write_report(comparison, tmp_path / "report.html").read_text()
    assert text.count(get_plotlyjs()) == 1
    page = Page(text)
    assert not [tag for tag, _ in page.elements if tag in ("link", "img", "iframe", "object")]
    assert not [(tag, a) for tag, a in page.elements if "src" in a or not a.get("href", "#").startswith("#")]
    assert page._open == []
    (policy,) = [a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


HOSTILE = "<script>alert(1)</script>\"'&</title></pre><img src=x onerror=alert(2)>"


def test_what_users_write_stays_text(make_run, tmp_path):
    runs = [
        make_run(
            HOSTILE + label,
            name=HOSTILE + "name",
            status="diverged",
            message=HOSTILE + "message",
            baseline={"accuracy": 0.1, "rule": HOSTILE + "rule"},
            config={"federation": {"name": HOSTILE + "federation", HOSTILE + "key": label}},
        )
        for label in "ab"
    ]
    for run in runs:
        run.environment[HOSTILE + "key"] = HOSTILE + "value"
    for shown, title in ((runs, None), (runs[:1], HOSTILE + "title")):
        text = write_report(shown, tmp_path / "report.html", title=title).read_text()
        assert HOSTILE not in text
        assert "<script>alert" not in text
        page = Page(text)
        assert not [tag for tag, _ in page.elements if tag == "img"]
        for part in ("a", "name", "message", "rule", "federation", "key", "value", *(["title"] if title else [])):
            assert HOSTILE + part in page.visible, part


def test_the_same_runs_give_the_same_bytes_and_nothing_else_is_left(comparison, tmp_path):
    one = write_report(comparison, tmp_path / "a" / "report.html").read_bytes()
    write_report(comparison[:1], tmp_path / "b.html")
    two = write_report(comparison, tmp_path / "b.html").read_bytes()
    assert one == two
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "b.html", "report.html"]


def test_a_report_that_fails_leaves_the_old_one(comparison, tmp_path, monkeypatch):
    path = write_report(comparison[:1], tmp_path / "report.html")
    before = path.read_bytes()
    with pytest.raises(BadInputError, match="no run"):
        write_report([], path)

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_report(comparison, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_large_comparisons_stay_small_files(make_run, tmp_path):
    long = make_run("x", rounds=MAX_LINE_POINTS + 100, every=1, clients=2)
    wide = make_run("x", rounds=1, every=1, clients=20_000)
    runs = []
    for label in map(str, range(10)):
        for seed in range(3):
            config = {**long.config, "seed": seed}
            changed = {"label": label, "name": f"{label}-{seed}", "clients": wide.clients, "config": config}
            runs.append(type(long)(**{**vars(long), **changed}))
    assert write_report(runs, tmp_path / "report.html").stat().st_size < 8_000_000


def test_reach_table_of_levels_that_were_asked_for(comparison, tmp_path):
    path = write_report(comparison, tmp_path / "report.html", levels=[0.25, 0.99])
    heads, *rows = Page(path.read_text()).tables["reach"]
    assert heads == ["to reach accuracy", "0.25", "0.99"]
    assert all("round" in row[1] and row[2] == "not reached" for row in rows)
