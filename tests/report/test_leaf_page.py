"""The page that draws LEAF's metrics: what it takes, what it joins, colours, places and budgets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedarena.analysis.leaf_metrics import SYSTEMS, accuracy_curve, read_leaf_metrics, summed_costs
from fedarena.display.drawing.units import BYTES, FLOPS
from fedarena.display.leaf.costs import computations, leaf_budget_figure, traffic
from fedarena.display.leaf.page import leaf_looks, leaf_percentile_figure, write_leaf_page
from fedarena.display.leaf.sources import load_leaf_results

BASELINES = Path(__file__).parents[3] / "shared" / "data" / "leaf_baseline_metrics"
STAT = "client_id,round_number,hierarchy,num_samples,accuracy\nann,0,,10,0.5\nann,4,,10,0.7\n"
SYS = (
    "client_id,round_number,hierarchy,num_samples,bytes_written,bytes_read,local_computations\nann,0,,10,100,200,5000\n"
)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_budget_far_above_another_needs_a_logarithmic_axis(tmp_path: Path) -> None:
    curve = accuracy_curve(read_leaf_metrics(written(tmp_path / "stat.csv", STAT)))
    curves, looks = {"a": curve, "b": curve, "c": curve}, leaf_looks("abc")
    rounds = np.array([1.0, 4.0])
    near = {"a": (rounds, np.array([1.0, 2.0])), "b": (rounds, np.array([1.0, 9.0]))}
    figure = leaf_budget_figure("title", BYTES, curves, near, looks)
    assert figure.layout.xaxis.type is None
    assert [line.x.tolist() for line in figure.data] == [[0, 2], [0, 9]]
    figure = leaf_budget_figure("title", BYTES, curves, {**near, "b": (rounds, np.array([100.0, 200.0]))}, looks)
    assert figure.layout.xaxis.type == "log"
    assert [line.x.tolist() for line in figure.data] == [[2], [200]]


def test_files_are_joined_by_name(tmp_path: Path) -> None:
    """Those that lie together come first; from other folders only what is without doubt."""
    for name in ("one/stat_metrics.csv", "one/stat_metrics_k.csv", "two/stat_metrics_k.csv", "two/x_stat.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        written(tmp_path / name, STAT)
    for name in ("one/sys_metrics_k_2.csv", "one/sys_metrics.csv", "two/sys_metrics_k.csv", "one/x_sys.csv"):
        written(tmp_path / name, SYS)
    results = load_leaf_results([tmp_path / "one", tmp_path / "two", tmp_path / "one" / SYSTEMS], pytest.fail)
    parts = {
        result.name: [table.folder.name for table in (result.accuracies, result.costs) if table is not None]
        for result in results
    }
    assert parts == {"one": ["one", "one"], "k": ["one"], "k_2": ["one"], "x": ["two", "one"], "k (2)": ["two", "two"]}


def test_a_name_has_one_colour_in_all_figures(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"stat_metrics_{name}.csv", STAT) for name in "ab"]
    results = load_leaf_results([*paths, written(tmp_path / "sys_metrics_b.csv", SYS)], pytest.fail)
    page = write_leaf_page(results, tmp_path / "page.html").read_text()
    figures = re.findall(r'<script type="application/json" id="figure-\d+">(.*?)</script>', page)
    traces = [trace for figure in figures for trace in json.loads(figure)["data"]]
    colours = {(trace["name"], trace["line"]["color"]) for trace in traces if "line" in trace}
    assert len(figures) == 7
    assert len(colours) == 2


def test_rows_of_panels_lie_close_together(tmp_path: Path) -> None:
    """However many there are, as many pixels lie between them."""
    curve = accuracy_curve(read_leaf_metrics(written(tmp_path / "stat.csv", STAT)))
    gaps = []
    for names in ("abc", "abcdefghijk"):
        figure = leaf_percentile_figure(dict.fromkeys(names, curve), leaf_looks(names))
        gap = figure.layout.yaxis.domain[0] - figure.layout.yaxis3.domain[1]
        gaps.append(gap * (figure.layout.height - 64))
    np.testing.assert_allclose(gaps, [80, 80])


@pytest.mark.skipif(not BASELINES.is_dir(), reason="LEAF's own files are not here")
def test_budgets_of_leafs_own_files() -> None:
    costs = pd.read_csv(BASELINES / "sys_metrics_minibatch_c_3_mb_1.csv").groupby("round_number").sum(numeric_only=True)
    evaluated = pd.read_csv(BASELINES / "stat_metrics_minibatch_c_3_mb_1.csv")["round_number"].unique()
    result = load_leaf_results([BASELINES], pytest.fail)[-1]
    assert result.accuracies is not None
    assert result.costs is not None
    curves, systems = {"c_3": accuracy_curve(result.accuracies)}, {"c_3": summed_costs(result.costs)}
    (line,) = leaf_budget_figure("title", FLOPS, curves, computations(systems), leaf_looks(["c_3"])).data
    tera = costs["local_computations"].cumsum() / 1e12
    np.testing.assert_allclose(line.x, [0, *tera.loc[evaluated[1:]]])
    (line,) = leaf_budget_figure("title", BYTES, curves, traffic(systems), leaf_looks(["c_3"])).data
    giga = (costs["bytes_written"] + costs["bytes_read"]).cumsum() / 1e9
    np.testing.assert_allclose(line.x, [0, *giga.loc[evaluated[1:]]])
    np.testing.assert_allclose(line.y, curves["c_3"].weighted)
