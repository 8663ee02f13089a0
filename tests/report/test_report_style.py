from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedarena.display.drawing.style import (
    DARK_COLOURS,
    DASHES,
    INK,
    PAPER,
    QUIET_INK,
    SERIES_DARK,
    SERIES_LIGHT,
    styles,
)
from fedarena.display.report.methods import methods_of

# Full dichromacy, after Machado, Oliveira and Fernandes (2009), for linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear_rgb(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(float(linear_rgb(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("palette", [SERIES_LIGHT, SERIES_DARK], ids=["light", "dark"])
def test_methods_stay_apart_for_every_kind_of_colour_vision(palette, vision):
    seen = [lab(np.asarray(VISION[vision]) @ linear_rgb(colour)) for colour in palette]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 20


@pytest.mark.parametrize(
    ("palette", "paper"), [(SERIES_LIGHT, PAPER), (SERIES_DARK, DARK_COLOURS[PAPER])], ids=["light", "dark"]
)
def test_lines_and_text_have_contrast(palette, paper):
    assert min(contrast(colour, paper) for colour in palette) >= 3
    inks = [INK, QUIET_INK] if paper == PAPER else [DARK_COLOURS[INK], DARK_COLOURS[QUIET_INK]]
    assert min(contrast(ink, paper) for ink in inks) >= 4.5


def test_an_algorithm_keeps_its_colour_whatever_it_is_compared_with(make_run):
    alone = styles(methods_of([make_run("fedyogi")]))["fedyogi"]
    together = styles(methods_of([make_run("mine"), make_run("fedprox"), make_run("fedyogi")]))
    assert together["fedyogi"] == alone


def test_many_methods_differ_in_colour_or_dash(make_run):
    labels = [f"method {index}" for index in range(len(SERIES_LIGHT) * len(DASHES))]
    look = styles(methods_of([make_run(label, rounds=1, clients=3) for label in labels]))
    assert len(set(look.values())) == len(labels)
