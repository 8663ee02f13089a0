"""A plan of private training in one picture: how ε grows over the rounds."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import add_line
from fedarena.display.drawing.style import SERIES_LIGHT, Style, empty_figure
from fedarena.display.drawing.units import count, significant
from fedarena.privacy.accounting import BOUNDS, NEIGHBOURS
from fedarena.privacy.solving import PrivacyPlan


def privacy_figure(plan: PrivacyPlan) -> go.Figure:
    """ε for δ after every round of the plan."""
    title = (
        f"<b>ε = {significant(plan.epsilon)} for δ = {plan.delta:.3g} after {count(plan.rounds, 'round')}</b><br>"
        f"noise multiplier {significant(plan.noise_multiplier)}, cohorts of {plan.cohort:,} out of "
        f"{plan.population:,} clients, sampling {plan.sampling}<br>"
        f"upper bound by {BOUNDS[plan.accountant]}; protected: {NEIGHBOURS[plan.sampling]}"
    )
    figure = empty_figure(title, "round", "ε", height=460)
    rounds, spent = np.array(plan.epsilon_over_rounds(), dtype=np.float64).T
    add_line(figure, rounds, spent, "ε", Style(SERIES_LIGHT[0], "solid"), hovertemplate="round %{x}: ε %{y:.4~g}")
    figure.update_layout(showlegend=False, margin={"t": 110})
    figure.update_yaxes(rangemode="tozero")
    return figure
