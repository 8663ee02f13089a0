"""What is said about a round that was evaluated, while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedarena.metrics import PERSONAL
from fedarena.metrics.info import MetricInfo


def round_text(row: Mapping[str, Any], metric: MetricInfo, config: Mapping[str, Any]) -> str | None:
    """The scores of a round's row, the privacy spent and the success of an attack; None if it was not evaluated."""
    value, personal = (row.get(prefix + metric.name) for prefix in ("", PERSONAL))
    if value is None:
        return None
    text = f"{metric.label} {metric.text(value)}"
    if personal is not None:
        text += f", personal {metric.text(personal)}"
    if (epsilon := row.get("epsilon")) is not None:
        text += f", ε {epsilon_text(epsilon)}{' sim.' if is_simulated(config) else ''}"
    if (success := row.get("attack_success")) is not None:
        text += f", attack success {success:.1%}"
    if (entropy := row.get("policy_entropy")) is not None:
        text += f", policy entropy {entropy:.2f}"
    return text


def epsilon_text(epsilon: float) -> str:
    """Privacy spent: "0.84", "8.00", "120"; nothing that is not private is bounded."""
    if epsilon == float("inf"):
        return "∞"
    return f"{epsilon:.0f}" if epsilon >= 99.95 else f"{epsilon:.1f}" if epsilon >= 9.995 else f"{epsilon:.2f}"


def delta_text(delta: float) -> str:
    """ "1e-5"."""
    return f"{delta:.3g}".replace("e-0", "e-")


def is_simulated(config: Mapping[str, Any]) -> bool:
    """Whether a run simulates the noise of another cohort than it has, so that nobody really got its ε."""
    return (config.get("privacy") or {}).get("noise_cohort") is not None
