"""Figures, tables and the self-contained HTML report that compare runs."""

from fedarena.report.clock_figures import (
    failures_figure,
    participation_figure,
    round_time_figure,
    staleness_figure,
    wasted_figure,
)
from fedarena.report.federation import federation_figure
from fedarena.report.federation_comparison import comparison_figure
from fedarena.report.figures import (
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
from fedarena.report.fleet import fleet_figure
from fedarena.report.heterogeneity import heterogeneity_figure
from fedarena.report.page import write_report
from fedarena.report.picture import check_picture_path, write_picture
from fedarena.report.strata import strata_figure
from fedarena.report.tables import FINAL_COLUMNS, TIME_TO, FinalRow, columns_for, final_table
from fedarena.report.timeline import timeline_figure

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
