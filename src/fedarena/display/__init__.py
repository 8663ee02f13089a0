"""Figures, tables and the self-contained HTML report that compare runs."""

from fedarena.display.drawing.picture import check_picture_path, write_picture
from fedarena.display.federations.comparison import comparison_figure
from fedarena.display.federations.picture import federation_figure
from fedarena.display.fleets.heterogeneity import heterogeneity_figure
from fedarena.display.fleets.picture import fleet_figure
from fedarena.display.report.clock.figures import (
    failures_figure,
    participation_figure,
    round_time_figure,
    staleness_figure,
    wasted_figure,
)
from fedarena.display.report.clock.timeline import timeline_figure
from fedarena.display.report.figures import (
    accuracy_figure,
    client_accuracy_figure,
    client_size_figure,
    compute_figure,
    hours_figure,
    loss_figure,
    personal_accuracy_figure,
    speed_figure,
    traffic_figure,
    training_set_figure,
)
from fedarena.display.report.page import write_report
from fedarena.display.report.strata import strata_figure
from fedarena.display.report.tables import FINAL_COLUMNS, TIME_TO, FinalRow, columns_for, final_table

__all__ = [
    "FINAL_COLUMNS",
    "TIME_TO",
    "FinalRow",
    "accuracy_figure",
    "check_picture_path",
    "client_accuracy_figure",
    "client_size_figure",
    "columns_for",
    "comparison_figure",
    "compute_figure",
    "failures_figure",
    "federation_figure",
    "final_table",
    "fleet_figure",
    "heterogeneity_figure",
    "hours_figure",
    "loss_figure",
    "participation_figure",
    "personal_accuracy_figure",
    "round_time_figure",
    "speed_figure",
    "staleness_figure",
    "strata_figure",
    "timeline_figure",
    "traffic_figure",
    "training_set_figure",
    "wasted_figure",
    "write_picture",
    "write_report",
]
