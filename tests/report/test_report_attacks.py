"""What people see of attacks and defences: the section, the matrix, the table of results; bytes saved beside costs."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from guarded_runs import Flip, LargestAreWrong, real_run, with_attack

from fedarena.core.errors import BadInputError
from fedarena.display import (
    attack_success_figure,
    attack_tradeoff_figure,
    corrupted_figure,
    final_table,
    rejected_figure,
    robustness_figure,
    saved_bytes_figure,
    success_matrix_figure,
    write_report,
)
from fedarena.display.report.attack.judged import judged, told_attacks
from fedarena.display.report.attack.matrix import UNDISTURBED, robustness_matrix
from fedarena.display.report.attack.table import attack_columns, attack_rows
from fedarena.display.report.methods import methods_of
from fedarena.display.report.tables.saved import saved_table
from fedarena.metrics.info import ACCURACY
from fedarena.results import Comparison, Result
from fedarena.storage.run_data import label_runs

ATTACKS = ("none", "sign_flip", "gaussian")
DEFENCES = ("mean", "median", "krum")


@pytest.fixture(scope="module")
def matrix_runs(make_run):
    """Three attacks, one of them none, three defences, two shares; the mean diverges under noise."""
    runs = []
    for attack in ATTACKS:
        for place, defence in enumerate(DEFENCES):
            for share in (0.1, 0.3) if attack != "none" else (0.0,):
                broken = (attack, defence, share) == ("gaussian", "mean", 0.3)
                run = make_run(
                    f"{attack} {defence} {share}",
                    algorithm="fedavg",
                    rounds=10,
                    clients=12,
                    final_metrics={"accuracy": 0.8 - share - 0.01 * place},
                    **({"status": "diverged", "stop_after": 6} if broken else {}),
                )
                run = with_attack(run, attack, share, defence, success=None)
                options = {"corrupted_share": share} if defence == "krum" and attack != "none" else {}
                runs.append(replace(run, config=run.config | {"aggregator": {"name": defence, **options}}))
    return runs


def test_shares_of_rejected_updates_are_those_of_their_kind(make_run):
    run = with_attack(make_run(), share=0.3, defence="krum", caught=0.8, false_alarms=0.1)
    rows = run.rounds.to_pylist()[1:]
    corrupted = sum(row["corrupted"] for row in rows)
    honest = sum(row["clients"] for row in rows) - corrupted
    caught = sum(row["rejected_corrupted"] for row in rows)
    alarms = sum(row["rejected"] for row in rows) - caught
    found = judged([run])
    assert found.corrupted == pytest.approx(corrupted / (corrupted + honest))
    assert (found.rejected_corrupted, found.rejected_honest) == pytest.approx((caught / corrupted, alarms / honest))
    (bar,) = rejected_figure([run]).data
    assert list(bar.x) == pytest.approx([caught / corrupted, alarms / honest])


def test_many_methods_are_told_by_the_table_alone(make_run):
    runs = [with_attack(make_run(str(number), rounds=5, clients=8), defence="krum", caught=0.5) for number in range(25)]
    assert corrupted_figure(runs) is None
    assert corrupted_figure(runs[:12]) is not None
    assert rejected_figure(runs) is None
    assert rejected_figure(runs[:24]) is not None


def test_a_defence_without_an_attack_has_false_alarms_alone(make_run):
    run = with_attack(make_run(), "none", defence="krum", caught=0.0, false_alarms=0.5)
    found = judged([run])
    assert math.isnan(found.rejected_corrupted)
    assert 0.3 < found.rejected_honest < 0.7
    assert corrupted_figure([run]) is None
    (bar,) = rejected_figure([run]).data
    assert len(bar.x) == 1


def test_real_runs_tell_whom_a_defence_rejected(tmp_path):
    attack = {"name": Flip, "share": 0.3}
    run = real_run(tmp_path, name="a", attack=attack, aggregator=LargestAreWrong)
    jobs = run.jobs.to_pandas()
    used = jobs[jobs["outcome"] == "used"]
    rejected = used[used["counted"] == 0]
    found = run.judged
    assert len(rejected) == 2 * 4
    assert found.corrupted == pytest.approx(used["corrupted"].mean())
    assert found.rejected_corrupted == pytest.approx(rejected["corrupted"].sum() / used["corrupted"].sum())
    assert found.rejected_honest == pytest.approx((~rejected["corrupted"]).sum() / (~used["corrupted"]).sum())
    assert found.counted_corrupted == pytest.approx(used.loc[used["corrupted"], "counted"].mean())
    assert not found.weighs
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert 'id="attacks-and-defences"' in page
    assert "Flip" in page


def test_what_a_weighing_defence_did_not_take_counts_as_left_out(make_run):
    run = with_attack(make_run(), defence="foolsgold", caught=0.0, false_alarms=0.0)
    jobs = [
        {"round": 1, "outcome": "used", "corrupted": place < 2, "counted": 0.25 if place < 2 else 0.75}
        for place in range(8)
    ]
    found = judged([replace(run, jobs=pa.Table.from_pylist(jobs, schema=run.jobs.schema))])
    assert found.left_out == pytest.approx({"corrupted": 0.75, "honest": 0.25})
    assert found.weighs
    assert judged([run]).left_out == {"corrupted": 0.0, "honest": 0.0}  # jobs are not known
    assert judged([make_run()]).left_out == {}


def test_the_table_has_what_attacked_and_what_defended(make_run):
    runs = [
        with_attack(make_run("fedavg"), success=0.9),
        with_attack(make_run("fedprox"), defence="krum", success=0.1, caught=0.9),
        with_attack(make_run("fedyogi"), "none"),
    ]
    rows = attack_rows(runs, ACCURACY)
    texts = {column.title: [column.text(row) for row in rows] for column in attack_columns(rows, ACCURACY)}
    assert texts["attack"] == ["backdoor", "backdoor", "–"]
    assert texts["corrupted"] == ["20.0%", "20.0%", "–"]
    assert texts["defence"] == ["mean", "krum", "mean"]
    assert texts["attack success"] == ["89.8%", "10.0%", "–"]
    assert texts["honest rejected"][0] == "–"
    assert texts["honest rejected"][1] != "–"
    assert "corrupted taken" not in texts
    success = final_table(runs).column("attack_success")
    assert [success.text(row) for row in final_table(runs).rows] == texts["attack success"]


def test_what_attacks_do_and_see_is_said(make_run, tmp_path):
    told = {"corrupted_clients": 48, "clients": 238, "from_round": 5, "they": "send noise", "they_see": "everything"}
    run = with_attack(make_run())
    run = replace(run, summary=run.summary | {"attack": told})
    said = "48 of 238 clients corrupted, from round 5 on; they send noise; they see everything."
    assert told_attacks([run, run]) == {"backdoor": said}
    page = write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<strong>backdoor</strong>: {said}" in page
    fewer = replace(run, summary=run.summary | {"attack": told | {"corrupted_clients": 24}})
    assert told_attacks([run, fewer]) == {"backdoor": "they send noise; they see everything."}


def test_success_is_drawn_over_rounds_and_against_the_main_metric(make_run):
    runs = [with_attack(make_run("fedavg", seed), success=0.9) for seed in (0, 1)]
    runs += [with_attack(make_run("fedprox"), success=0.1), with_attack(make_run("fedyogi"), "none")]
    thick = [trace for trace in attack_success_figure(runs).data if trace.showlegend is not False]
    assert [trace.name for trace in thick] == ["fedavg", "fedprox"]
    assert thick[0].y[-1] == pytest.approx(0.9 * (1 - math.exp(-6)))
    seeds, mean, other = attack_tradeoff_figure(runs).data
    finals = [run.rounds["accuracy"][-1].as_py() for run in runs[:2]]
    assert list(seeds.y) == pytest.approx(finals)
    assert (mean.x[0], mean.y[0]) == pytest.approx((thick[0].y[-1], np.mean(finals)))
    assert other.name == "fedprox"
    assert attack_success_figure(runs[3:]) is None
    assert attack_tradeoff_figure(runs[2:]) is None  # of one method alone


def test_the_matrix_has_a_cell_for_every_attack_defence_and_share(matrix_runs):
    found = robustness_matrix(matrix_runs, "accuracy")
    assert found.shares == [0.1, 0.3]
    assert sorted(found.attacks) == ["gaussian", UNDISTURBED, "sign_flip"]
    # What a defence expects differs between shares alone, and is in no name.
    assert found.defences == ["mean", "median", "krum"]
    assert found.cells[0.1, "sign_flip", "median"].score.mean == pytest.approx(0.8 - 0.1 - 0.01)
    assert found.cells[0.3, "gaussian", "krum"].score.mean == pytest.approx(0.8 - 0.3 - 0.02)
    assert found.cells[0.3, "gaussian", "mean"].score is None
    assert found.cells[0.3, UNDISTURBED, "mean"].score.mean == pytest.approx(0.8)
    assert (0.3, UNDISTURBED, "krum") not in found.cells  # it expected nobody there


def test_the_matrix_is_drawn_with_its_numbers(matrix_runs):
    first, second = robustness_figure(matrix_runs).data
    attacks = robustness_matrix(matrix_runs, "accuracy").attacks
    row = 2 * attacks.index("gaussian") + 1
    assert list(first.text[row]) == ["0.70", "0.69", "0.68"]
    assert list(second.text[row]) == ["×", "0.49", "0.48"]
    assert np.isnan(second.z[row][0])
    assert not any(first.text[row - 1])  # where its name is
    assert success_matrix_figure(matrix_runs) is None


def test_options_of_attacks_and_transforms_name_rows_and_columns(make_run):
    runs = []
    for scale in (1.0, 10.0):
        for transforms in ([], [{"name": "clip", "bound": 1.0}], [{"name": "clip", "bound": 2.0}]):
            run = make_run(f"{scale} {transforms}", algorithm="fedavg", rounds=10, clients=12)
            run = with_attack(run, "scaling", 0.2, success=0.5, factor=scale)
            runs.append(replace(run, config=run.config | {"transforms": transforms}))
    found = robustness_matrix(runs, "accuracy")
    assert found.attacks == ["scaling factor=1.0", "scaling factor=10.0"]
    assert found.defences == ["mean", "mean clip bound=1.0", "mean clip bound=2.0"]
    assert success_matrix_figure(runs) is not None


def test_runs_that_are_no_matrix_have_none(matrix_runs, make_run):
    assert robustness_matrix(matrix_runs[:3], "accuracy") is None  # no attack
    one_defence = [run for run in matrix_runs if run.config["aggregator"]["name"] == "mean"]
    assert robustness_matrix(one_defence, "accuracy") is None
    one_attack = [with_attack(make_run(name), defence=name) for name in ("fedavg", "fedprox")]
    assert robustness_figure(one_attack) is None
    with pytest.raises(BadInputError, match="no matrix"):
        as_results(one_attack).robustness()


def as_results(runs) -> Comparison:
    return Comparison([Result(**vars(run)) for run in runs])


def test_the_matrix_is_a_table_from_python(matrix_runs):
    table = as_results(matrix_runs).robustness().to_pandas()
    assert list(table.columns) == ["attack", "defence", "share", "accuracy", "accuracy_std"]
    cell = table[(table["attack"] == "sign_flip") & (table["defence"] == "median") & (table["share"] == 0.3)]
    assert cell["accuracy"].item() == pytest.approx(0.49)
    assert table["accuracy"].isna().sum() == 1


def test_a_page_shows_the_matrix_and_nothing_without_attacks(matrix_runs, make_run, tmp_path):
    page = write_report(matrix_runs, tmp_path / "a.html").read_text(encoding="utf-8")
    assert "Accuracy by attack and defence" in page
    assert "The fuller its colour, the better a defence is." in page
    assert '<details class="above"><summary>All 15 methods' in page
    page = write_report([make_run()], tmp_path / "b.html").read_text(encoding="utf-8")
    assert 'id="attacks-and-defences"' not in page


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    """A run that sends a tenth of its update, and one that sends all of it."""
    folder = tmp_path_factory.mktemp("compressed")
    few = real_run(folder, name="few", transforms=[{"name": "top_k", "share": 0.1}])
    return label_runs([few, real_run(folder, name="all")])


def test_bytes_saved_are_those_of_the_model_as_raw_numbers(compressed):
    model = 4 * sum(p.numel() for p in compressed[0].model().parameters())
    few, whole = saved_table(methods_of(compressed))
    assert (few.direction, whole.direction) == ("upload", "upload")
    assert few.raw_bytes == whole.raw_bytes == whole.sent_bytes == model * 4 * 10
    really = compressed[0].jobs.to_pandas()["real_bytes_up"].sum()
    assert few.sent_bytes == really
    assert 0.1 < few.sent_share < 0.25
    assert saved_table(methods_of(compressed[1:])) == []


def test_bytes_saved_are_beside_the_costs(compressed, tmp_path):
    texts = {bar.name: bar.text[0] for bar in saved_bytes_figure(compressed).data}
    assert texts["fedavg"].startswith("100.0%, ")
    assert re.match(r"(1\d|20)\.\d%, [\d.]+ kB", texts["fedavg top_k"])
    page = write_report(compressed, tmp_path / "a.html").read_text(encoding="utf-8")
    assert "Bytes sent, of what raw numbers take" in page
    page = write_report(compressed[1:], tmp_path / "b.html").read_text(encoding="utf-8")
    assert "Bytes sent, of what raw numbers take" not in page
    assert saved_bytes_figure([replace(compressed[0], environment={})]) is None  # of an earlier version


def test_labels_name_transforms_and_classes(compressed, make_run):
    assert [run.label for run in compressed] == ["fedavg top_k", "fedavg"]
    configs = [
        {"transforms": [{"name": "clip", "bound": 1.0}, {"name": "top_k", "share": share}]} for share in (0.1, 0.2)
    ]
    runs = label_runs([make_run(config=config) for config in configs])
    assert [run.label for run in runs] == ["fedavg share=0.1", "fedavg share=0.2"]
    attacks = ("none", "mine:Flip", "mine:Turn")
    runs = label_runs([make_run(config={"attack": {"name": name}}) for name in attacks])
    assert [run.label for run in runs] == ["fedavg", "fedavg Flip", "fedavg Turn"]
    compressed = ({"transforms": [{"name": "sign"}]}, {"download": {"name": "sign"}}, {"download": {"name": "none"}})
    runs = label_runs([make_run(config=config) for config in compressed])
    assert [run.label for run in runs] == ["fedavg transforms=sign", "fedavg download=sign", "fedavg"]
    noises = ({"noise": 0.68139712341}, {"noise": 1.00112345})
    runs = label_runs([make_run(config={"privacy": {"name": "gaussian", **noise}}) for noise in noises])
    assert [run.label for run in runs] == ["fedavg noise=0.6814", "fedavg noise=1.001"]
    close = ({"noise": 0.68139712341}, {"noise": 0.68139712342})
    runs = label_runs([make_run(config={"privacy": {"name": "gaussian", **noise}}) for noise in close])
    assert [run.label for run in runs] == ["fedavg noise=0.68139712341", "fedavg noise=0.68139712342"]
    runs = label_runs([make_run(config={"transforms": [{"name": name}]}) for name in ("a:Mine", "b:Mine")])
    assert [run.label for run in runs] == ["fedavg a:Mine", "fedavg b:Mine"]
