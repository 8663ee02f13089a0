"""One figure as a file of its own."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path

import plotly.graph_objects as go

from fedarena.core.errors import BadInputError
from fedarena.core.files import replacing
from fedarena.display.drawing.html import Html, tag
from fedarena.display.report.page import Plots, no_script, self_contained

_IMAGE_SUFFIXES = (".png", ".svg", ".pdf")
_MARKUP = re.compile("<[^>]+>")


def check_picture_path(path: Path) -> None:
    """Refuses names that no picture can have, for those who have a lot to do before they draw it."""
    if path.suffix.lower() not in (".html", *_IMAGE_SUFFIXES):
        raise BadInputError(
            f"A picture cannot be written as {path.name!r}; end the name with .html, .png, .svg or .pdf."
        )
    if path.is_dir():
        raise BadInputError(f"A picture cannot be written to {str(path)!r}, which is a folder; name a file")


def write_picture(figure: go.Figure, path: Path) -> Path:
    """Writes `figure` as self-contained .html, or with kaleido as .png, .svg or .pdf; returns `path`."""
    check_picture_path(path)
    data = _page(figure).encode() if path.suffix.lower() == ".html" else _image(figure, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return path


def _page(figure: go.Figure) -> Html:
    title = html.unescape(_MARKUP.sub(" ", figure.layout.title.text or "")).strip()
    plots = Plots()
    picture = tag("figure", plots.place(figure, title), class_="picture")
    return self_contained(title, [picture, no_script("The picture needs JavaScript.")], plots)


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
