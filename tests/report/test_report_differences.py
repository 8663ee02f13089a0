"""What a report says about differences: whether they are real, what they are about, and what changes their meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from clocked_runs import fleet_statistics, with_clock
from rich.console import Console
from test_report_page import Page

from fedarena.analysis.comparison import MethodScores, Pair, compare_methods
from fedarena.analysis.paired import over_clients, over_seeds
from fedarena.display import final_table, write_report
from fedarena.display.drawing.style import styles
from fedarena.display.report.cautions import cautions
from fedarena.display.report.figures.cost import traffic_figure
from fedarena.display.report.figures.named_clients import named_clients_figure
from fedarena.display.report.figures.ranks import ranks_figure
from fedarena.display.report.methods import methods_of
from fedarena.display.report.sections.headline import facts, headline
from fedarena.display.report.tables.differences import Differences, conclusions, differences_of, short_lines, verdict
from fedarena.display.report.tables.few_clients import MOST_NAMED, named_clients
from fedarena.display.report.tables.reach import reach_table
from fedarena.display.terminal import caution_lines, clients_tables, difference_lines, scores_tables
from fedarena.metrics.info import ACCURACY
from fedarena.storage.run_data import label_runs


@pytest.fixture(scope="module")
def clear(make_run):
    """Two methods that differ, and one that is a second name of the first, with six seeds each."""
    runs = [make_run(label, seed, every=20) for label in ("fedavg", "fedyogi") for seed in range(6)]
    return [*runs, *(replace(run, label="same") for run in runs[:6])]


def compared(runs):
    (found,) = differences_of(runs, ACCURACY)
    return found


def page_of(runs, tmp_path) -> Page:
    return Page(write_report(runs, tmp_path / "report.html").read_text())


def test_pairs_are_told_apart_where_they_differ_and_nowhere_else(clear):
    found = compared(clear)
    verdicts = {(pair.first, pair.second): verdict(pair, True) for pair in found.found.pairs}
    assert verdicts == {
        ("fedyogi", "fedavg"): "fedyogi is better, over seeds and clients",
        ("fedyogi", "same"): "fedyogi is better, over seeds and clients",
        ("fedavg", "same"): "not told apart over seeds",
    }
    assert found.found.ranking.labels[0] == "fedyogi"
    assert found.found.ranking.cliques == (("fedavg", "same"),)
    (line,) = short_lines(found)
    assert line.startswith("fedyogi is better than fedavg and same, over 6 seeds")
    assert line.endswith("2 of 3 pairs differ")


def test_the_section_shows_every_pair_with_its_interval(clear, tmp_path):
    page = page_of(clear, tmp_path)
    rows = page.tables["pairs"]
    assert len(rows) == 1 + 3
    assert rows[1][0].split() == ["fedyogi", "−", "fedavg"]
    assert rows[1][1] == "fedyogi is better, over seeds and clients"
    first = compared(clear).found.pairs[0]
    assert rows[1][2].startswith(f"+{first.seeds.mean:.4f}")
    assert f"{first.seeds.interval[1]:+.4f}" in rows[1][2]
    assert rows[1][3] == f"{first.p_seeds:.3f}"
    assert rows[1][6] == "< 0.001"
    assert f"{first.clients.higher} higher" in rows[1][4]
    assert "Mean rank over clients" in page.visible
    assert "is larger than the noise between seeds" in page.visible


def test_nobody_is_called_worse_off_where_most_clients_are_as_well_off_as_before():
    seeds = over_seeds(np.array([0.02, 0.03, 0.025, 0.022]))

    def said(better, same, worse):
        clients = over_clients(np.array([0.1] * better + [0.0] * same + [-0.01] * worse))
        return {
            sign: verdict(Pair("a", "b", replace(seeds, mean=sign * seeds.mean), found, 0.01, 0.01, 0.01), sign > 0)
            for sign, found in ((1, clients), (-1, replace(clients, higher=clients.lower, lower=clients.higher)))
        }

    for numbers, words in (
        ((12, 28, 0), "a is better, over seeds and clients"),
        ((30, 0, 10), "a is better, over seeds and clients"),
        ((8, 20, 12), "a is better on average, not better for most"),
        ((10, 0, 30), "a is better on average, worse for most"),
    ):
        assert said(*numbers) == {1: words, -1: words}, "accuracy is to be high, a loss low"


def test_who_is_better_follows_from_the_seeds_that_methods_have_in_common(make_run):
    """The second one has two bad seeds more, so its mean of all is the lower one."""
    first = {0: 0.90, 1: 0.91, 2: 0.92, 3: 0.90}
    second = {0: 0.95, 1: 0.96, 2: 0.975, 3: 0.95, 4: 0.40, 5: 0.42}
    third = {seed: 0.2 + 0.001 * seed for seed in first}

    def among(**methods):
        scores = [MethodScores(label, by_seed, {}) for label, by_seed in methods.items()]
        return Differences(ACCURACY, compare_methods(scores, True), "")

    two = among(first=first, second=second)
    assert two.found.labels == ("first", "second")
    assert short_lines(two)[0].endswith(": second > first")
    assert next(conclusions(two)).endswith(": second > first.")
    assert short_lines(among(first=first, second=second, third=third))[0].endswith(": second > first > third")
    noisy = {0: 0.7, 1: 0.99, 2: 0.8, 3: 0.99}
    (line,) = short_lines(among(first=first, second=second, noisy=noisy))
    assert line.startswith("first is worse than second and not told from noisy, over 4 seeds")
    runs = [
        with_scores(make_run(label, seed), score)
        for label in ("first", "second")
        for seed, score in {"first": first, "second": second}[label].items()
    ]
    said = headline(runs, differences_of(runs, ACCURACY))
    assert said.startswith("first reached 0.907")
    assert "But with the 4 seeds that both have, second, the next, is better, by more than the noise" in said


def with_scores(run, accuracy):
    """A run with another accuracy in the end."""
    values = run.rounds["accuracy"].to_pylist()
    place = run.rounds.column_names.index("accuracy")
    return replace(run, rounds=run.rounds.set_column(place, "accuracy", pa.array([*values[:-1], accuracy])))


def test_one_seed_is_said_to_tell_nothing_about_methods(make_run, tmp_path):
    runs = [make_run("fedavg", every=60), make_run("fedyogi", every=60)]
    found = compared(runs)
    (pair,) = found.found.pairs
    assert pair.differs_over_clients
    assert verdict(pair, True) == "one seed: these two models differ; the methods may not"
    said = " ".join(conclusions(found))
    assert "whether they differ by more than luck cannot be told" in said
    assert "about these trained models, not about the methods" in said
    assert difference_lines(runs) == [
        "One seed: whether methods differ by more than luck cannot be told; run several seeds"
    ]
    page = page_of(runs, tmp_path)
    assert "With one seed, nothing tells whether that is more than luck beside fedavg" in page.visible
    assert "Nothing is bold: with one seed" in page.visible


def test_different_federations_are_compared_each_among_itself(make_run):
    def on(federation, label):
        run = make_run(f"{label} {federation}", every=60)
        return replace(run, config={**run.config, "federation": {"name": federation}})

    runs = [on(federation, label) for federation in ("a", "b") for label in ("fedavg", "fedyogi")]
    found = differences_of([*runs, on("c", "alone")], ACCURACY)
    assert [set(one.found.labels) for one in found] == [{"fedavg a", "fedyogi a"}, {"fedavg b", "fedyogi b"}]
    assert all(one.where for one in found)


def test_a_method_that_broke_is_not_compared(make_run):
    broken = make_run("broken", every=60, stop_after=60, status="diverged")
    assert differences_of([broken, make_run("fedavg", every=60)], ACCURACY) == []


def test_a_single_method_has_no_such_section(make_run, tmp_path):
    page = page_of([make_run()], tmp_path)
    assert "pairs" not in page.tables
    assert "difference real" not in page.visible


def test_the_picture_of_ranks_connects_what_is_not_told_apart(clear):
    ranking = compared(clear).found.ranking
    figure = ranks_figure(ranking, styles(methods_of(clear)))
    dots = {trace.name: trace.x[0] for trace in figure.data if trace.mode == "markers+text"}
    assert dots == pytest.approx(dict(zip(ranking.labels, ranking.mean_ranks, strict=True)))
    bars = {trace.name: list(trace.x) for trace in figure.data if trace.mode == "lines"}
    assert bars["not told apart: fedavg, same"] == sorted([dots["fedavg"], dots["same"]])
    assert bars["critical difference"] == [1, 1 + ranking.critical_difference]


def test_the_last_point_of_a_curve_is_the_end_of_every_seed(make_run):
    """Runs that end by the clock end after different rounds."""
    (method,) = methods_of([make_run("fedavg", 0, rounds=33), make_run("fedavg", 1, rounds=37)])
    curve = method.mean_curve()
    assert curve["round"].tolist() == [*range(0, 31, 5), 35]
    assert curve["accuracy"][-1] == pytest.approx(method.mean_final("accuracy"))
    (same,) = methods_of([make_run("fedavg", 0, rounds=30), make_run("fedavg", 1, rounds=37)])
    assert same.mean_curve()["round"].tolist() == [*range(0, 26, 5), 33.5]
    stopped = [make_run("fedavg", seed, stop_after=end, status="interrupted") for seed, end in ((0, 20), (1, 40))]
    assert methods_of(stopped)[0].mean_curve()["round"].tolist() == [*range(0, 21, 5)]


# What to know before believing it


def test_a_method_that_broke_with_some_seeds_is_called_out(comparison, make_run):
    assert cautions(comparison) == [
        "fedprox diverged with 1 of 3 seeds: its averages are of the others, and better than the method is."
    ]
    assert cautions([make_run(stop_after=9, status="diverged")]) == [], "of which there is a notice anyway"
    assert caution_lines(comparison) == cautions(comparison)


def test_scores_of_other_samples_are_called_out(make_run):
    one, same = make_run("fedavg"), make_run("fedyogi")
    assert not any("different samples" in text for text in cautions([one, same]))
    for setting, words in (
        ({"part": "train"}, "fedyogi on the train data of all clients"),
        ({"max_clients": 5}, "fedyogi on the test data of at most 5 clients"),
    ):
        other = replace(same, config={**same.config, "evaluation": {**same.config["evaluation"], **setting}})
        (said,) = [text for text in cautions([one, other]) if "different samples" in text]
        assert said.endswith(f": fedavg on the test data of all clients; {words}.")


def test_clients_that_were_never_invited_are_called_out(make_run, tmp_path):
    runs = [with_clock(make_run(label)) for label in ("fedavg", "fedyogi")]
    shares = [run.summary["participation"]["never_invited_share"] for run in runs]
    assert all(0 < share < 1 for share in shares)
    (said,) = [text for text in cautions(runs) if "never invited" in text]
    assert said.startswith("Of the 400 training clients, some were never invited")
    assert said.count("%") == len({f"{share:.3f}" for share in shares})
    page = page_of(runs, tmp_path)
    assert page.visible.index(said) < page.visible.index("Results")
    (alone,) = [text for text in cautions(runs[:1]) if "never invited" in text]
    assert "of the 400 training clients were never invited" in alone
    everybody = replace(runs[0], summary={"participation": {"clients": 4, "never_invited_share": 0.0}})
    assert not any("invited" in text for text in cautions([everybody]))


def test_a_day_that_is_too_short_is_called_out(make_run):
    short = with_clock(make_run(rounds=10, every=10))
    (said,) = [text for text in cautions([short]) if "day" in text]
    assert said.startswith("Shorter than a day of virtual time: ")
    always = {**fleet_statistics(400), "shares": {"mean": 1.0}}
    assert not any("day" in text for text in cautions([replace(short, fleet=always)]))
    ends = np.linspace(0, 25 * 3600, short.rounds.num_rows)
    place = short.rounds.column_names.index("end_seconds")
    long = replace(short, rounds=short.rounds.set_column(place, "end_seconds", pa.array(ends)))
    assert not any("day" in text for text in cautions([long]))


def test_rounds_may_differ_where_runs_end_by_the_clock(make_run, tmp_path):
    def runs(**clock):
        return [make_run("fedavg", rounds=30, config=clock), make_run("fedyogi", rounds=60, config=clock)]

    sentence = "The runs have different numbers of rounds"
    assert sentence in page_of(runs(), tmp_path).visible
    by_clock = runs(clock={"hours": 6})
    assert sentence not in page_of(by_clock, tmp_path).visible
    assert "30 to 60 rounds" in facts(by_clock), "the clock did not end them"
    for run in by_clock:
        run.summary["rounds_done"] = 20
    assert " · 6.00 h of virtual time · " in facts(by_clock)


# Few clients


@pytest.fixture(scope="module")
def hospitals(make_run):
    names = {f"client-{i}": name for i, name in enumerate(["Cleveland", "Hungary", "Long Beach", "Zürich <b>"])}
    runs = [make_run(label, seed, clients=4, every=20) for label in ("fedavg", "fedyogi") for seed in (0, 1)]
    return [
        replace(
            run,
            clients=run.clients.set_column(
                run.clients.column_names.index("client"),
                "client",
                pa.array([names[client] for client in run.clients["client"].to_pylist()]),
            ),
        )
        for run in runs
    ]


def by_hand(runs, label):
    """The mean accuracy of every client after the last round."""
    frames = [run.clients.to_pandas() for run in runs if run.label == label]
    last = [frame[frame["round"] == frame["round"].max()].set_index("client")["accuracy"] for frame in frames]
    return sum(last) / len(last)


def test_few_clients_have_names_and_the_worst_is_a_row(hospitals, tmp_path):
    page = page_of(hospitals, tmp_path)
    head, *rows, worst = page.tables["named"]
    assert head == ["client", "samples", "fedavg", "fedyogi"]
    assert {row[0] for row in rows} == {"Cleveland", "Hungary", "Long Beach", "Zürich <b>"}
    for place, label in enumerate(("fedavg", "fedyogi"), start=2):
        expected = by_hand(hospitals, label)
        for row in rows:
            assert row[place].startswith(f"{expected[row[0]]:.3f} ± ")
        assert worst[place] == expected.idxmin()
    assert worst[0] == "worst client"
    assert "Accuracy of every client" in page.visible
    assert "Accuracy over clients" not in page.visible


def test_few_clients_are_on_the_screen(hospitals):
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(*clients_tables(hospitals, 100))
    shown = capture.get()
    assert "Zürich <b>" in shown
    (row,) = [line for line in shown.splitlines() if "worst client" in line]
    assert by_hand(hospitals, "fedavg").idxmin() in row


def test_many_clients_are_not_named(make_run):
    assert named_clients([make_run(clients=MOST_NAMED, every=60)], ACCURACY) is not None
    for number in (1, MOST_NAMED + 1, 238):
        run = make_run(clients=number, every=60)
        assert named_clients([run], ACCURACY) is None
        assert named_clients_figure([run]) is None
        assert clients_tables([run], 80) == []


def test_tests_over_four_clients_are_said_to_tell_nothing(hospitals):
    said = list(conclusions(compared(hospitals)))
    assert said[-1] == (
        "With 4 clients, tests over clients cannot tell anything: even if all agree, p is 0.12. "
        "Look at the clients one by one."
    )
    assert compared(hospitals).found.ranking is None


# What was really sent, and what a federation is called


def test_what_was_really_sent_stands_beside_what_was_planned(make_run):
    run = make_run()
    assert "really sent" not in [column.title for column in final_table([run]).columns]
    planned = run.rounds["bytes_up"].to_pylist()
    really = [None if place % 2 else number // 2 for place, number in enumerate(planned)]
    place = run.rounds.column_names.index("real_bytes_up")
    sparse = replace(run, rounds=run.rounds.set_column(place, "real_bytes_up", pa.array(really, pa.int64())))
    table = final_table([sparse])
    down = sum(run.rounds["bytes_down"].to_pylist())
    assert table.rows[0].bytes.mean == down + sum(planned)
    expected = down + sum(b if r is None else r for b, r in zip(planned, really, strict=True))
    assert table.rows[0].real_bytes.mean == expected
    assert table.column("real_traffic").text(table.rows[0]) == f"{expected / 1e9:.2f} GB"
    assert "really sent" in [column.title for column in table.columns]
    until_reached = [reach_table(methods_of([one]), ACCURACY)[0][-1].bytes for one in (sparse, run)]
    assert until_reached[0] < until_reached[1]
    assert traffic_figure([sparse]).data[0].x[-1] == pytest.approx(expected / 1e9)


def test_a_store_is_called_by_its_own_name(make_run):
    def of(path, **environment):
        run = make_run(config={"federation": {"name": "store", "path": path}})
        return replace(run, environment={**run.environment, **environment})

    assert "federation heart disease ·" in facts([of("stores/h", federation="heart disease")])
    assert "federation sensors ·" in facts([of("stores/sensors")]), "as runs of earlier versions tell it"
    named = label_runs([of("a/x", federation="one"), of("b/x", federation="other")])
    assert [run.label for run in named] == ["fedavg one", "fedavg other"]
    alike = label_runs([of("a/x", federation="one"), of("b/x", federation="one")])
    assert [run.label for run in alike] == ["fedavg a/x", "fedavg b/x"]


def test_levels_reach_the_screen(make_run):
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(*scores_tables([make_run()], 80, [0.3, 0.2]))
    shown = capture.get()
    assert shown.index("to 0.2") < shown.index("to 0.3")
    assert headline([make_run()])


def test_what_is_to_be_known_of_a_federation_is_said_once(make_run, tmp_path):
    runs = [make_run("fedavg", seed) for seed in range(2)]
    note = "A stand-in: the pictures are no photos."
    told = [replace(run, environment={**run.environment, "federation_notes": [note]}) for run in runs]
    assert cautions(told)[0].endswith(f": {note}")
    assert sum(note in line for line in cautions(told)) == 1
    assert sum(note in line for line in caution_lines(told)) == 1
    assert not any(note in line for line in cautions(runs))
