"""The table of attacks: what they did to methods, and whom defences rejected."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedarena.display.drawing.metrics import score_text
from fedarena.display.drawing.units import ABSENT
from fedarena.display.report.attack.judged import (
    NO_ATTACK,
    Judged,
    attack_of,
    defence_of,
    has_attack_or_defence,
    judged,
    last_success,
)
from fedarena.display.report.methods import Method, methods_of
from fedarena.display.report.tables.final_row import Spread
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData


@dataclass(frozen=True)
class AttackRow:
    """A method under attack, or the same without one."""

    label: str
    attack: str
    share: float | None  # of the clients that are corrupted, as it was asked for
    defence: str
    score: Spread | None
    success: Spread | None
    judged: Judged


@dataclass(frozen=True)
class AttackColumn:
    """A title, what it means, and the text of a row's cell."""

    title: str
    explanation: str
    text: Callable[[AttackRow], str]


def attack_columns(rows: Sequence[AttackRow], metric: MetricInfo) -> list[AttackColumn]:
    """The columns that have something to say about these rows."""
    weighs = any(row.judged.weighs for row in rows)
    columns = [
        AttackColumn("attack", "what corrupted clients do", lambda row: row.attack),
        AttackColumn("corrupted", "share of the clients that are corrupted", lambda row: _percent(row.share)),
        AttackColumn("defence", "how the server makes one update of many", lambda row: row.defence),
        AttackColumn(metric.label, "after the last evaluation, over all samples", lambda row: _score(metric, row)),
        AttackColumn(
            "attack success",
            "share of the test samples with a backdoor's trigger that get its label",
            lambda row: ABSENT if row.success is None else _spread(row.success),
        ),
        AttackColumn(
            "corrupted rejected",
            "share of the used updates of corrupted clients of which the defence took nothing: more is better",
            lambda row: _percent(row.judged.rejected_corrupted),
        ),
        AttackColumn(
            "honest rejected",
            "the same of honest clients: less is better",
            lambda row: _percent(row.judged.rejected_honest),
        ),
    ]
    if weighs:
        columns += [
            AttackColumn(
                "corrupted taken",
                "how much of an update of a corrupted client a defence that weighs them took, mean",
                lambda row: _percent(row.judged.counted_corrupted),
            ),
            AttackColumn("honest taken", "the same of honest clients", lambda row: _percent(row.judged.counted_honest)),
        ]
    return [column for column in columns if any(column.text(row) != ABSENT for row in rows)]


def attack_rows(runs: Sequence[RunData], metric: MetricInfo) -> list[AttackRow]:
    """A row for every method; those without an attack and a defence are what the others are compared with."""
    if not any(map(has_attack_or_defence, runs)):
        return []
    return [_row(method, metric) for method in methods_of(runs) if method.counted]


def _row(method: Method, metric: MetricInfo) -> AttackRow:
    first = method.runs[0]
    attack = attack_of(first)
    share = (first.config.get("attack") or {}).get("share")
    known = [run for run in method.counted if metric.name in run.rounds.column_names]
    return AttackRow(
        label=method.label,
        attack=ABSENT if attack == NO_ATTACK else attack,
        share=None if share is None or attack == NO_ATTACK else float(share),
        defence=defence_of(first),
        score=Spread.of([float(Method(method.label, (run,)).mean_final(metric.name)) for run in known]),
        success=Spread.of(last_success(method)),
        judged=judged(method.counted),
    )


def _score(metric: MetricInfo, row: AttackRow) -> str:
    return ABSENT if row.score is None else score_text(metric, row.score.mean, row.score.std)


def _spread(share: Spread) -> str:
    return f"{share.mean:.1%}" + ("" if share.std is None else f" ± {share.std:.1%}")


def _percent(share: float | None) -> str:
    return ABSENT if share is None or not math.isfinite(share) else f"{share:.1%}"
