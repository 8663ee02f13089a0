"""Figures, tables and the self-contained HTML report that compare runs."""

from fedarena.report.federation import federation_figure
from fedarena.report.figures import (
    accuracy_figure,
    client_accuracy_figure,
    client_size_figure,
    compute_figure,
    loss_figure,
    personal_accuracy_figure,
    speed_figure,
    traffic_figure,
)
from fedarena.report.page import write_report
from fedarena.report.picture import write_picture
from fedarena.report.tables import FINAL_COLUMNS, FinalRow, columns_for, final_table

__all__ = [
    "FINAL_COLUMNS",
    "FinalRow",
    "accuracy_figure",
    "client_accuracy_figure",
    "client_size_figure",
    "columns_for",
    "compute_figure",
    "federation_figure",
    "final_table",
    "loss_figure",
    "personal_accuracy_figure",
    "speed_figure",
    "traffic_figure",
    "write_picture",
    "write_report",
]
