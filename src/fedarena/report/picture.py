"""One figure as a file of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import plotly.graph_objects as go
import plotly.io

from fedarena.errors import BadInputError
from fedarena.files import replacing
from fedarena.report.style import PLOT_SETTINGS

_IMAGE_SUFFIXES = (".png", ".svg", ".pdf")


def write_picture(figure: go.Figure, path: Path) -> Path:
    """Writes `figure` as self-contained .html, or with kaleido as .png, .svg or .pdf; returns `path`."""
    suffix = path.suffix.lower()
    if suffix == ".html":
        data = plotly.io.to_html(figure, PLOT_SETTINGS, include_plotlyjs=True, div_id="figure").encode()
    elif suffix in _IMAGE_SUFFIXES:
        data = _image(figure, path)
    else:
        raise BadInputError(
            f"A picture cannot be written as {path.name!r}; end the name with .html, .png, .svg or .pdf."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return path


def _image(figure: go.Figure, path: Path) -> bytes:
    advice = f"{path.with_suffix('.html').name!r} works without them"
    if importlib.util.find_spec("kaleido") is None:
        raise BadInputError(
            f"Writing {path.name!r} needs the package kaleido (pip install kaleido) and a Chrome or Chromium "
            f"browser; {advice}."
        )
    try:
        # Twice the pixels: sharp on paper and on dense screens.
        image: bytes = figure.to_image(format=path.suffix[1:].lower(), width=900, scale=2)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInputError(
            f"kaleido could not draw {path.name!r} with a Chrome or Chromium browser ({reason}); {advice}."
        ) from error
    return image
