"""Bytes saved, a bar per method and direction."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from fedarena.display.drawing.style import styles
from fedarena.display.drawing.units import BYTES, quantity
from fedarena.display.report.figures.share_bars import Share, share_bars_figure
from fedarena.display.report.methods import methods_of
from fedarena.display.report.tables.saved import saved_table
from fedarena.storage.run_data import RunData


def saved_bytes_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """Bytes sent as a share of what raw numbers would have taken; None where nothing is saved."""
    methods = methods_of(runs)
    found = saved_table(methods)
    if not found:
        return None
    bars = []
    for method in methods:
        mine = [saved for saved in found if saved.label == method.label]
        shares = {one.direction: Share(one.sent_share, _text(one.sent_share, one.sent_bytes)) for one in mine}
        if len({saved.direction for saved in found}) > 1:
            shares = {way: Share(share.value, f"{way} {share.text}") for way, share in shares.items()}
        if shares:
            bars.append((method, shares))
    return share_bars_figure("Bytes sent, of what raw numbers take", "share of the raw bytes", bars, styles(methods))


def _text(share: float, sent: float) -> str:
    return f"{share:.1%}, {quantity(sent, BYTES)}"
