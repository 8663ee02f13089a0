"""The tables against plain computations from the runs' own tables, with loops instead of arrays."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from fedarena.core.errors import BadInputError
from fedarena.display import final_table
from fedarena.display.report.methods import methods_of
from fedarena.display.report.sections.headline import headline
from fedarena.display.report.tables.final_columns import final_columns
from fedarena.display.report.tables.reach import levels_between, reach_table
from fedarena.metrics.info import ACCURACY, LOSS

FINAL_COLUMNS = final_columns(ACCURACY, (LOSS,))
COLUMNS = {column.title: column for column in FINAL_COLUMNS}


def last_clients(run):
    frame = run.clients.to_pandas()
    return frame[frame["round"] == frame["round"].max()]


def by_seed(runs, label, measure):
    return [measure(run) for run in runs if run.label == label and run.status == "finished"]


def over_samples(run):
    frame = last_clients(run)
    return (frame["accuracy"] * frame["samples"]).sum() / frame["samples"].sum()


ORACLES = {
    "score": over_samples,
    "score_by_client": lambda run: last_clients(run)["accuracy"].mean(),
    "score_p10": lambda run: last_clients(run)["accuracy"].quantile(0.1),
    "score_p90": lambda run: last_clients(run)["accuracy"].quantile(0.9),
    "score_worst_decile": lambda run: last_clients(run)["accuracy"].nsmallest(24).mean(),
    "over_baseline": lambda run: over_samples(run) - 0.178,
    "bytes": lambda run: sum(row["bytes_down"] + row["bytes_up"] for row in run.rounds.to_pylist()),
    "flops": lambda run: sum(row["flops"] for row in run.rounds.to_pylist()),
    "wall_seconds": lambda run: run.summary["timing"]["wall_seconds"],
    "clients_per_second": lambda run: run.summary["timing"]["clients_per_second"],
}


@pytest.mark.parametrize("name", ORACLES)
def test_means_and_deviations_over_the_finished_seeds(comparison, name):
    rows = final_table(comparison).rows
    assert [row.label for row in rows] == ["fedavg", "fedprox", "fedyogi"]
    assert [row.seeds for row in rows] == [(0, 1, 2), (0, 1), (0, 1, 2)]
    for row in rows:
        values = by_seed(comparison, row.label, ORACLES[name])
        assert getattr(row, name).mean == pytest.approx(statistics.mean(values))
        assert getattr(row, name).std == pytest.approx(statistics.stdev(values), abs=1e-12)


def test_cells_say_what_they_mean(comparison):
    fedavg, fedprox, fedyogi = final_table(comparison).rows
    accuracies = by_seed(comparison, "fedyogi", over_samples)
    expected = f"{statistics.mean(accuracies):.3f} ± {statistics.stdev(accuracies):.3f}"
    assert COLUMNS["accuracy"].text(fedyogi) == expected
    assert COLUMNS["vs baseline"].text(fedavg).startswith("+0.")
    assert COLUMNS["status"].text(fedprox) == "2 finished and 1 diverged"
    assert COLUMNS["traffic"].text(fedavg) == "3.16 GB"
    assert COLUMNS["compute"].text(fedavg) == "5.21 TFLOP"
    assert COLUMNS["real time"].text(fedavg).endswith(" s")


def scored(make_run, **finals):
    """Runs with these final accuracies, one for every seed."""
    return [
        make_run(label, seed, final_metrics={"accuracy": value})
        for label, values in finals.items()
        for seed, value in enumerate(values)
    ]


NOISE = (0.0, 0.004, -0.003, 0.001)


def test_bold_is_what_a_test_tells_from_others(make_run):
    runs = scored(
        make_run,
        low=[0.3 + noise for noise in NOISE],
        high=[0.5 + noise for noise in reversed(NOISE)],
        as_high=[0.499 - noise for noise in NOISE],
    )
    assert COLUMNS["accuracy"].best(final_table(runs).rows) == {"high", "as_high"}
    assert COLUMNS["traffic"].best(final_table(runs).rows) == frozenset()


def test_the_best_mean_alone_is_not_bold(comparison, make_run):
    rows = final_table(comparison).rows
    assert max(row.score.mean for row in rows) == rows[-1].score.mean
    assert COLUMNS["accuracy"].best(rows) == frozenset(), "two seeds of fedprox cannot tell"
    one_seed = final_table(scored(make_run, low=[0.1], high=[0.9])).rows
    assert COLUMNS["accuracy"].best(one_seed) == frozenset()
    alone = final_table([make_run()]).rows
    assert all(column.best(alone) == frozenset() for column in FINAL_COLUMNS)


def test_scores_on_different_federations_are_not_compared(make_run):
    runs = scored(make_run, low=[0.3 + noise for noise in NOISE], high=[0.5 + noise for noise in reversed(NOISE)])
    assert COLUMNS["accuracy"].best(final_table(runs).rows) == {"high"}
    other = [replace(run, config={**run.config, "federation": {"name": run.label}}) for run in runs]
    assert COLUMNS["accuracy"].best(final_table(other).rows) == frozenset()


def test_an_unfinished_method_is_not_the_best(make_run):
    broken = make_run("broken", stop_after=10, status="diverged", final_metrics={"accuracy": 0.99})
    runs = scored(make_run, whole=[0.5 + noise for noise in NOISE], low=[0.3 - noise for noise in NOISE])
    assert COLUMNS["accuracy"].best(final_table([broken, *runs]).rows) == {"whole"}
    assert headline([broken, make_run("whole")]).startswith("whole reached")
    assert headline([broken]).startswith(
        "broken reached 0.990 accuracy on the test data of 238 clients after 10 rounds"
    )


def test_one_seed_has_no_deviation(make_run):
    (row,) = final_table([make_run()]).rows
    assert row.score.std is None
    assert "±" not in COLUMNS["accuracy"].text(row)


def test_unfinished_runs_stand_in_only_where_none_is_finished(make_run):
    stopped = make_run("fedavg", 1, stop_after=20, status="interrupted")
    (both,) = final_table([make_run("fedavg", 0), stopped]).rows
    assert (both.seeds, both.round, both.finished) == ((0,), 60, True)
    (alone,) = final_table([stopped]).rows
    assert (alone.seeds, alone.round, alone.finished, alone.status) == ((1,), 20, False, "interrupted")


def test_a_seed_counts_once(make_run):
    first = make_run("fedavg", 0, final_metrics={"accuracy": 0.4})
    again = make_run("fedavg", 0, name="again", final_metrics={"accuracy": 0.8})
    for runs in ([first, first], [first, again]):
        (row,) = final_table(runs).rows
        assert (row.seeds, row.status, row.score.mean, row.score.std) == ((0,), "finished", 0.4, None)
        assert "seeds" not in headline(runs)
        assert [reach.runs for reach in reach_table(methods_of(runs), ACCURACY)[0]] == [1, 1, 1]
    (row,) = final_table([first, make_run("fedavg", 1, final_metrics={"accuracy": 0.6}), again]).rows
    assert (row.seeds, row.score.mean) == ((0, 1), pytest.approx(0.5))
    assert [row.seeds for row in final_table([first, make_run("fedprox", 0)]).rows] == [(0,), (0,)]


def test_of_runs_with_the_same_seed_the_finished_one_counts(make_run):
    stopped = make_run("fedavg", 0, name="stopped", stop_after=20, status="interrupted")
    failed = make_run("fedavg", 0, name="failed", stop_after=10, status="failed")
    whole = make_run("fedavg", 0)
    for runs in ([stopped, whole], [whole, stopped], [stopped, failed, whole]):
        (method,) = methods_of(runs)
        assert [run.name for run in method.runs] == ["fedavg-seed0"]
    assert [run.name for run in methods_of([stopped, failed])[0].runs] == ["stopped"]


def test_what_is_not_known_is_a_dash(make_run):
    run = make_run(baseline=None, final_metrics={"loss": math.nan, "accuracy": math.inf})
    run.summary.pop("timing")
    (row,) = final_table([run]).rows
    for title in ("accuracy", "loss", "vs baseline", "real time", "clients/s (real)"):
        assert COLUMNS[title].text(row) == "–"
    assert COLUMNS["p10"].text(row) != "–"


def test_no_runs_get_a_sentence():
    with pytest.raises(BadInputError, match="no run"):
        final_table([])


def test_reaching_a_level_costs_what_was_spent_until_then(comparison):
    table = reach_table(methods_of(comparison), ACCURACY)
    checked = 0
    for row in table:
        for reach in row:
            costs = by_seed(comparison, reach.label, lambda run, level=reach.level: cost_of(run, level))
            found = [cost for cost in costs if cost is not None]
            assert (reach.runs, reach.reached) == (len(costs), len(found))
            if len(found) == len(costs):
                means = [statistics.mean(column) for column in zip(*found, strict=True)]
                assert [reach.round, reach.bytes, reach.flops] == pytest.approx(means)
                checked += 1
            else:
                assert reach.round is reach.bytes is reach.flops is None
    assert checked >= 5


def cost_of(run, level):
    spent_bytes = spent_flops = 0
    for row in run.rounds.to_pylist():
        spent_bytes += row["bytes_down"] + row["bytes_up"]
        spent_flops += row["flops"]
        if row["accuracy"] is not None and row["accuracy"] >= level:
            return row["round"], spent_bytes, spent_flops
    return None


def test_a_level_that_some_seeds_reach_says_so(make_run):
    runs = [make_run("fedavg", seed, final_metrics={"accuracy": value}) for seed, value in ((0, 0.9), (1, 0.35))]
    top = reach_table(methods_of(runs), ACCURACY)[0][-1]
    assert top.level > 0.4
    assert (top.reached, top.partly, top.bytes) == (1, "by 1 of 2 seeds", None)


@pytest.mark.parametrize(("final", "expected"), [(0.95, [0.6, 0.7, 0.8, 0.9]), (0.33, [0.2, 0.25, 0.3]), (0.10, [])])
def test_levels_are_round_numbers_between_baseline_and_best(make_run, final, expected):
    # Two evaluations: the start, near 0.01, and the end.
    run = make_run(rounds=10, every=10, final_metrics={"accuracy": final})
    assert levels_between(methods_of([run]), ACCURACY) == expected
