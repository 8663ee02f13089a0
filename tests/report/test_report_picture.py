from __future__ import annotations

import importlib.util
import sys
import types

import plotly.graph_objects as go
import pytest

from fedarena.core.errors import BadInputError
from fedarena.display import metric_figure, write_picture


def test_html_is_self_contained_and_the_same_every_time(make_run, tmp_path):
    path = write_picture(metric_figure([make_run()]), tmp_path / "new folder" / "accuracy.html")
    text = path.read_text()
    assert "<script src=" not in text
    assert text.count('class="plot"') == 1
    assert "<title>" in text
    again = write_picture(metric_figure([make_run()]), tmp_path / "again.html")
    assert again.read_text() == text


@pytest.mark.parametrize("name", ["picture.gif", "picture"])
def test_unknown_kinds_of_pictures_get_a_sentence(tmp_path, name):
    with pytest.raises(BadInputError, match=rf"'{name}'; end the name with \.html"):
        write_picture(go.Figure(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_images_without_kaleido_get_a_sentence_with_the_way_out(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "kaleido" else find_spec(name, *rest)
    )
    with pytest.raises(BadInputError, match=r"kaleido.*'accuracy\.html' works without"):
        write_picture(go.Figure(), tmp_path / "accuracy.png")


@pytest.fixture
def kaleido(monkeypatch):
    """Pretends that kaleido can be imported."""
    module = types.ModuleType("kaleido")
    module.__spec__ = importlib.util.spec_from_loader("kaleido", loader=None)
    monkeypatch.setitem(sys.modules, "kaleido", module)


def test_images_without_a_browser_get_a_sentence(tmp_path, monkeypatch, kaleido):
    def no_browser(self, **options):
        raise RuntimeError("\nKaleido requires Google Chrome.\nInstall it.")

    monkeypatch.setattr(go.Figure, "to_image", no_browser)
    with pytest.raises(BadInputError, match=r"Kaleido requires Google Chrome\.\); 'a\.html' works"):
        write_picture(go.Figure(), tmp_path / "a.pdf")
    assert not list(tmp_path.iterdir())


def test_images_are_written_in_the_format_of_their_name(tmp_path, monkeypatch, kaleido):
    monkeypatch.setattr(go.Figure, "to_image", lambda self, *, format, **options: f"image as {format}".encode())
    assert write_picture(go.Figure(), tmp_path / "a.SVG").read_bytes() == b"image as svg"
