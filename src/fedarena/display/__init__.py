"""Figures, tables and the self-contained HTML report that compare runs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedarena.display.drawing.picture import check_picture_path, write_picture
    from fedarena.display.federations.comparison import comparison_figure
    from fedarena.display.federations.picture import federation_figure
    from fedarena.display.fleets.heterogeneity import heterogeneity_figure
    from fedarena.display.fleets.picture import fleet_figure
    from fedarena.display.hpo.page import write_comparison
    from fedarena.display.privacy_plan import privacy_figure
    from fedarena.display.report.attack.figures import attack_tradeoff_figure, corrupted_figure, rejected_figure
    from fedarena.display.report.attack.matrix import robustness_figure, success_matrix_figure
    from fedarena.display.report.classes.figures import class_frequency_figure, class_loss_figure
    from fedarena.display.report.clock.failures import failures_figure, wasted_figure
    from fedarena.display.report.clock.participation import participation_figure
    from fedarena.display.report.clock.round_time import round_time_figure
    from fedarena.display.report.clock.staleness import staleness_figure
    from fedarena.display.report.clock.timeline import timeline_figure
    from fedarena.display.report.figures.clients import client_size_figure, client_spread_figure
    from fedarena.display.report.figures.cost import compute_figure, traffic_figure
    from fedarena.display.report.figures.curves import (
        attack_success_figure,
        hours_figure,
        metric_figure,
        personal_figure,
        training_set_figure,
    )
    from fedarena.display.report.figures.named_clients import named_clients_figure
    from fedarena.display.report.figures.saved import saved_bytes_figure
    from fedarena.display.report.figures.speed import speed_figure
    from fedarena.display.report.figures.strata import strata_figure
    from fedarena.display.report.page import write_report
    from fedarena.display.report.privacy.figures import (
        clip_norm_figure,
        clipped_share_figure,
        epsilon_figure,
        noise_figure,
    )
    from fedarena.display.report.tables.final import FinalTable, final_table
    from fedarena.display.report.tables.final_row import FinalRow

# Where it is found; imported when it is first used, since figures and comparisons need libraries that take a while.
_HOMES = {
    "drawing.picture": ("check_picture_path", "write_picture"),
    "federations.comparison": ("comparison_figure",),
    "federations.picture": ("federation_figure",),
    "fleets.heterogeneity": ("heterogeneity_figure",),
    "fleets.picture": ("fleet_figure",),
    "hpo.page": ("write_comparison",),
    "privacy_plan": ("privacy_figure",),
    "report.attack.figures": ("attack_tradeoff_figure", "corrupted_figure", "rejected_figure"),
    "report.attack.matrix": ("robustness_figure", "success_matrix_figure"),
    "report.classes.figures": ("class_frequency_figure", "class_loss_figure"),
    "report.clock.failures": ("failures_figure", "wasted_figure"),
    "report.clock.participation": ("participation_figure",),
    "report.clock.round_time": ("round_time_figure",),
    "report.clock.staleness": ("staleness_figure",),
    "report.clock.timeline": ("timeline_figure",),
    "report.figures.clients": ("client_size_figure", "client_spread_figure"),
    "report.figures.cost": ("compute_figure", "traffic_figure"),
    "report.figures.curves": (
        "attack_success_figure",
        "hours_figure",
        "metric_figure",
        "personal_figure",
        "training_set_figure",
    ),
    "report.figures.named_clients": ("named_clients_figure",),
    "report.figures.saved": ("saved_bytes_figure",),
    "report.figures.speed": ("speed_figure",),
    "report.figures.strata": ("strata_figure",),
    "report.page": ("write_report",),
    "report.privacy.figures": ("clip_norm_figure", "clipped_share_figure", "epsilon_figure", "noise_figure"),
    "report.tables.final": ("FinalTable", "final_table"),
    "report.tables.final_row": ("FinalRow",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "FinalRow",
    "FinalTable",
    "attack_success_figure",
    "attack_tradeoff_figure",
    "check_picture_path",
    "class_frequency_figure",
    "class_loss_figure",
    "client_size_figure",
    "client_spread_figure",
    "clip_norm_figure",
    "clipped_share_figure",
    "comparison_figure",
    "compute_figure",
    "corrupted_figure",
    "epsilon_figure",
    "failures_figure",
    "federation_figure",
    "final_table",
    "fleet_figure",
    "heterogeneity_figure",
    "hours_figure",
    "metric_figure",
    "named_clients_figure",
    "noise_figure",
    "participation_figure",
    "personal_figure",
    "privacy_figure",
    "rejected_figure",
    "robustness_figure",
    "round_time_figure",
    "saved_bytes_figure",
    "speed_figure",
    "staleness_figure",
    "strata_figure",
    "success_matrix_figure",
    "timeline_figure",
    "traffic_figure",
    "training_set_figure",
    "wasted_figure",
    "write_comparison",
    "write_picture",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"fedarena.display.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'fedarena.display' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
