"""The report of a comparison of optimizers: one HTML file that opens offline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fedarena.core.files import write_text
from fedarena.core.version import VERSION
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.style import Style
from fedarena.display.drawing.units import SECONDS, count, listing, quantity
from fedarena.display.hpo.figures import (
    ecdf_figure,
    importance_figure,
    landscape_figure,
    ranks_figure,
    regret_figure,
)
from fedarena.display.hpo.looks import looks_of
from fedarena.display.hpo.tables import (
    best_configurations_on_page,
    costs_on_page,
    failures_on_page,
    finals_on_page,
    signs_on_page,
    test_scores_on_page,
)
from fedarena.display.report.page import Plots, document
from fedarena.display.report.sections.elements import in_pairs
from fedarena.hpo.analysis.importance import Importance, grid_importance
from fedarena.hpo.analysis.landscape import landscape
from fedarena.hpo.analysis.published import published_results
from fedarena.hpo.comparison import OptimizerComparison

REPORT_FILE: Final = "report.html"
_FEWEST_RANKED: Final = 2
_MOST_ALONE: Final = 12  # problems with pictures of their own


def write_comparison(found: OptimizerComparison, path: Path | str, title: str | None = None) -> Path:
    """Writes a comparison of optimizers as a self-contained page; returns `path`."""
    path = Path(path)
    plots = Plots()
    looks = looks_of(found.optimizers)
    sections = {
        "Results": _results(found, looks),
        "Rank over time": _ranks(found, plots),
        "Regret over time": _regrets(found, plots),
    }
    if tests := found.sign_tests():
        sections["Sign tests"] = join([signs_on_page(tests), tag("p", _about_signs(found), class_="note")])
    if found.grids:
        sections["Problems"] = _problems(found, plots)
    sections["Evaluations and overhead"] = _costs(found, looks)
    sections["Settings"] = _settings(found)
    header = [tag("p", headline(found), class_="headline"), tag("p", _facts(found), class_="facts")]
    page = document(
        title or f"Optimizers on {listing(_some(list(found.problems)))}",
        "FedArena comparison",
        header,
        failures_on_page(found),
        sections,
        plots,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def headline(found: OptimizerComparison) -> str:
    """What the comparison comes to in a sentence."""
    ranks = dict(zip(found.labels, found.mean_ranks(shares=[1.0])[:, 0], strict=True))
    known = {label: rank for label, rank in ranks.items() if math.isfinite(rank)}
    if len(known) < _FEWEST_RANKED:
        done = [label for label in found.labels if any(label in finals for finals in found.finals.values())]
        return f"{listing(done)} searched {count(len(found.problems), 'problem')}."
    lowest, highest = min(known.values()), max(known.values())
    best = [label for label, rank in known.items() if math.isclose(rank, lowest)]
    worst = [label for label, rank in known.items() if math.isclose(rank, highest)]
    where = "" if len(found.problems) == 1 else f" over {count(len(found.problems), 'problem')}"
    if len(best) == len(known):
        return f"In the end all {len(known)} optimizers have the same mean rank{where}."
    share = "has" if len(best) == 1 else "share"
    return (
        f"In the end {listing(best)} {share} the best mean rank{where}, {lowest:.2f} of {len(known)}; "
        f"the worst is that of {listing(worst)}, {highest:.2f}."
    )


def _facts(found: OptimizerComparison) -> str:
    budgets = sorted({one.budget_s for made in found.searches.values() for one in made})
    each = " to ".join(quantity(budget, SECONDS) for budget in dict.fromkeys((budgets[0], budgets[-1])))
    modes = listing(list(dict.fromkeys(problem.mode for problem in found.problems.values())))
    return (
        f"{count(len(found.optimizers), 'optimizer')} · {count(len(found.problems), 'problem')} ({modes}) · "
        f"{count(found.repetitions, 'repetition')} · {each} of simulated time each"
    )


def _results(found: OptimizerComparison, looks: Mapping[str, Style]) -> Html:
    objectives = listing(list(dict.fromkeys(problem.objective for problem in found.problems.values())))
    note = (
        f"The {objectives.replace('_', ' ')} of the incumbents in the end, mean ± standard deviation over "
        "repetitions. The incumbent is what was trained longest, and of these the best. "
    )
    if any(published_results(name, problem.mode) for name, problem in found.problems.items()):
        note += (
            "The paper's are those of FedHPO-Bench (Tables 13 to 15), whose tables came from other splits and other "
            "initial weights: orders can be compared, sizes only roughly."
        )
    best = best_configurations_on_page(found)
    tests = (
        [tag("details", tag("summary", "What the incumbents score on test samples"), scores)]
        if (scores := test_scores_on_page(found, looks))
        else []
    )
    parts = [finals_on_page(found, looks), tag("p", note, class_="note"), *tests]
    return join([*parts, tag("h3", "Best configurations"), best])


def _ranks(found: OptimizerComparison, plots: Plots) -> Html:
    caption = (
        "At every moment optimizers are ranked by their incumbents, for every problem and repetition; equal ones share "
        "ranks. Time is the share of the budget of simulated seconds."
    )
    families = {
        "Mean rank of black-box optimizers": found.black_box,
        "Mean rank of multi-fidelity optimizers": found.multi_fidelity,
        "Mean rank of all optimizers": found.labels,
    }
    shown = {title: labels for title, labels in families.items() if len(labels) >= _FEWEST_RANKED}
    if found.labels in (found.black_box, found.multi_fidelity):
        shown = {title: labels for title, labels in shown.items() if title.endswith("all optimizers")}
    figures = [plots(ranks_figure(found, labels, title), caption) for title, labels in shown.items()]
    groups: dict[str, list[str]] = {}
    for name in found.problems:
        groups.setdefault(_family(name), []).append(name)
    if len(groups) > 1 and len(found.labels) >= _FEWEST_RANKED:
        figures += [
            plots(
                ranks_figure(found, found.labels, f"Mean rank on {family}", names), count(len(names), "problem") + "."
            )
            for family, names in groups.items()
        ]
    return in_pairs(figures) if figures else tag("p", "A single optimizer has no rank.")


def _regrets(found: OptimizerComparison, plots: Plots) -> Html:
    figures = []
    for name in list(found.problems)[:_MOST_ALONE]:
        of_what = "of the table" if name in found.grids else "that all searches found"
        caption = f"0 is the best configuration {of_what}, 1 the worst; a mean over repetitions, drawn from 0.0001 on."
        figures.append(plots(regret_figure(found, name), caption))
    return join([in_pairs(figures), _left_out(found)])


def _problems(found: OptimizerComparison, plots: Plots) -> Html:
    caption = (
        "Each line tells which share of all configurations has a regret of at most so much: the higher, the easier."
    )
    parts = [plots(ecdf_figure(found.grids), caption)]
    for name, grid in list(found.grids.items())[:_MOST_ALONE]:
        problem = found.problems[name]
        shares = grid_importance(problem.space, grid)
        figures = [plots(importance_figure(name, shares), _about_importance(shares))]
        if len(problem.space) > 1:
            x, y = sorted(shares.most_important[:2], key=lambda one: -len(problem.space[one].grid()))
            land = landscape(problem.space, grid, x, y)
            fixed = ", ".join(f"{key} = {_text(value)}" for key, value in land.fixed.items())
            note = "The fuller the colour, the better; × diverged." + (
                f" The others are at the best: {fixed}." * bool(fixed)
            )
            figures.append(plots(landscape_figure(land, problem.objective, problem.maximize), note))
        parts.append(in_pairs(figures))
    return join([*parts, _left_out(found)])


def _costs(found: OptimizerComparison, looks: Mapping[str, Style]) -> Html:
    note = (
        "Means over problems and repetitions. A course is one training; multi-fidelity optimizers go on with some of "
        "them. An optimizer's own time is real, and was not taken from its budget, which is simulated time."
    )
    return join([costs_on_page(found, looks), tag("p", note, class_="note")])


def _settings(found: OptimizerComparison) -> Html:
    problems = []
    for name, problem in found.problems.items():
        space = "\n".join(f"  {key}: {value}" for key, value in problem.space.described().items())
        rounds = f"{problem.min_rounds} to {problem.max_rounds} rounds"
        rate = f"{found.client_sample_rates[name]:g} of the clients in each"
        problems.append(f"{name} ({problem.mode}; {rounds}, {rate})\n{space}")
    optimizers = "\n".join(
        f"{one.label}: " + (", ".join(f"{key}={value}" for key, value in one.settings.items() if key != "name") or "–")
        for one in found.optimizers
    )
    command = tag(
        "p", "Every search is a file in ", tag("code", str(found.folder / "searches")), ", with all that was evaluated."
    )
    return join(
        [
            tag("details", tag("summary", "Problems and their spaces"), tag("pre", "\n\n".join(problems))),
            tag("details", tag("summary", "Optimizers and their options"), tag("pre", optimizers)),
            command,
            tag("p", f"FedArena {VERSION}; seeds 0 to {found.repetitions - 1}.", class_="note"),
        ]
    )


def _about_signs(found: OptimizerComparison) -> str:
    return (
        f"Over {count(len(found.problems), 'problem')}: won where the mean over repetitions is better. p is that of "
        "the exact one-sided sign test: how likely as many wins are by chance. The paper's are over its 20 problems "
        "with FedAvg; its p-values differ where counts are equal, so they come from another test."
    )


def _about_importance(shares: Importance) -> str:
    rest = max(0.0, 1 - sum(shares.single.values()) - sum(shares.pairs.values()))
    return (
        "Functional analysis of variance over all configurations, of ranks; pairs: what two do beyond what each does "
        f"alone. {rest:.0%} belong to more than two together."
    )


def _family(name: str) -> str:
    """Problems whose ranks belong together, as in the paper: those of a model with an algorithm."""
    model, _, dataset = name.partition("@")
    algorithm = dataset.partition("-")[2]
    return f"{model} with {algorithm}" if algorithm else model


def _left_out(found: OptimizerComparison) -> Html:
    more = len(found.problems) - _MOST_ALONE
    return (
        tag("p", f"{count(more, 'more problem')} have no pictures of their own.", class_="note")
        if more > 0
        else Html("")
    )


def _some(names: list[str]) -> list[str]:
    return names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more problems"]


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
