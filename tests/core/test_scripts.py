"""Recorded steps as scripts: many in a row, masks as numbers, and what they read and write of layers' rooms."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from test_programs import lanes, step
from torch import Tensor

from fedarena.train import scripts
from fedarena.train.factor_rooms import FactorRoom, LayerInScript, script_of_layers
from fedarena.train.graphs import separate_updates
from fedarena.train.masks import masks_as_numbers
from fedarena.train.program import Batch, StepPrograms, record
from fedarena.train.scripts import Script
from fedarena.train.unwritten import DenseLayer


@pytest.mark.parametrize("is_script", [True, False])
def test_any_number_of_steps_is_as_many_single_ones(is_script: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_script:  # as in a version of torch that has none
        monkeypatch.setattr(scripts, "without_python", lambda *_: None)
    programs = StepPrograms(step)
    for count, steps in ((3, 4), (3, 1), (2, 5)):
        generator = torch.Generator().manual_seed(steps)
        changing, given, one = lanes(count)
        alone, given_alone, _ = lanes(count)
        x = torch.randn(steps, *one.columns["x"].shape, generator=generator, dtype=torch.float64)
        batches = Batch({"x": x}, one.mask.expand(steps, -1, -1), one.keys.expand(steps, -1))
        single = programs.bind(alone, given_alone, one)
        for batch in batches.each():
            single(batch)
        any_number = programs.bind_any_number(changing, given, one)
        any_number(batches, slice(0, steps // 2))
        any_number(batches, slice(steps // 2, steps))
        for got, want in zip(changing.tensors(), alone.tensors(), strict=True):
            assert torch.equal(got, want)


def test_what_is_no_script_is_ready_for_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "without_python", lambda *_: None)
    old, x = torch.zeros(3), torch.ones(3)
    recorded: Any = record(lambda tensors: [tensors[0] - 0.5 * tensors[1]], [old, x])
    pure, updates = separate_updates(recorded, 1)
    made = Script(pure, updates, [old, x])
    assert not recorded._needs_recompile()  # nobody has to make its code any more
    made(old, x)
    assert old.tolist() == [-0.5] * 3


def masked_mean(values: Tensor, mask: Tensor) -> list[Tensor]:
    return [(values * mask).sum(1) / mask.sum(1).clamp(min=1), values.sum(1) * mask.sum(1)]


def test_a_mask_becomes_numbers_once() -> None:
    values, mask = torch.randn(4, 7), torch.rand(4, 7) < 0.5
    mask[0] = False
    recorded = record(lambda tensors: masked_mean(*tensors), [values, mask])
    masks_as_numbers(recorded.graph)
    recorded.recompile()
    targets = [node.target for node in recorded.graph.nodes]
    assert targets.count(torch.ops.aten._to_copy.default) == 1
    (input_mask,) = (node for node in recorded.graph.nodes if node.name == "input_2")
    assert len(input_mask.users) == 1
    for found, expected in zip(recorded(values, mask), masked_mean(values, mask), strict=True):
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype


@pytest.mark.parametrize(
    "function",
    [
        lambda values, mask: [torch.where(mask, values, 0)],
        lambda values, mask: [mask.sum(1), values + 1],  # a number of samples stays an integer
        lambda values, mask: [mask.sum(1).clamp(min=1) + 1],
        lambda values, mask: [values.half() * mask],  # in which not all numbers of samples can be told apart
        lambda values, mask: [mask & (values > 0)],
        lambda values, mask: [values.sum() * mask],
    ],
)
def test_other_uses_of_a_mask_are_left_alone(function: Any) -> None:
    values, mask = torch.randn(4, 7), torch.rand(4, 7) < 0.5
    recorded = record(lambda tensors: function(*tensors), [values, mask])
    before = str(recorded.graph)
    masks_as_numbers(recorded.graph)
    assert str(recorded.graph) == before


@pytest.mark.parametrize("known", [True, False])
def test_a_script_sees_of_a_layer_what_a_step_does(known: bool) -> None:
    width, steps, rows = 3, 4, 2
    samples = steps * rows
    random = torch.Generator().manual_seed(0)
    left, right, overlaps, of_start = (
        torch.randn(width + 1, samples, size, generator=random) for size in (5, 7, samples, 5)
    )
    factors = torch.randn(steps + 1, width + 1, samples, generator=random)
    layer = DenseLayer("weight", 7, 5, 1, "x" if known else None)
    room = FactorRoom(layer, rows, left, right, overlaps, of_start if known else None)
    in_script = LayerInScript(0, known)
    given = dict(zip(in_script.parameters, room.for_script(width, factors), strict=True))
    for step_number in range(steps):
        expected = room.in_step(step_number, width, factors[step_number])
        names = {**given, "first": 1, "i": step_number - 1}
        for expressions, tensors in ((in_script.new, expected.new), (in_script.read, expected.read)):
            found = [eval(expression, {}, names) for expression in expressions]
            for got, want in zip(found, tensors, strict=True):
                assert torch.equal(got, want)
                assert got.data_ptr() == want.data_ptr()  # it is written to


def test_arguments_of_a_script_are_in_the_order_of_its_step() -> None:
    parameters, arguments = script_of_layers([LayerInScript(0, True), LayerInScript(1, False)], 2, 1, 1)
    named = [re.match(r"\w+", argument)[0] for argument in arguments]  # type: ignore[index]
    assert named == [
        *("changed_0", "changed_1"),
        *("left_0", "left_1", "right_1", "overlaps_1"),
        *("left_0", "overlaps_0", "factors_0", "of_start_0", "left_1", "right_1", "factors_1"),
        *("scales", "lasting_0", "batches_0"),
    ]
    assert set(named) | {"first", "rows_0", "rows_1"} == set(parameters)


@pytest.mark.parametrize("full", [True, False])
def test_what_is_known_of_samples_before_training(full: bool) -> None:
    lanes_made, clients, steps, batch = 4, 3, 3, 2
    samples = steps * batch
    random = torch.Generator().manual_seed(0)
    column, start = torch.randn(9, 7, generator=random), torch.randn(5, 7, generator=random)
    rows = torch.randint(9, (lanes_made, steps, batch), generator=random)
    counts = torch.ones(lanes_made, steps, batch, dtype=torch.bool)
    counts[clients:] = False
    if not full:
        counts[1, 2], counts[2, 1:], counts[2, 0, 1] = False, False, False
    left, right, overlaps, of_start = (
        torch.full((lanes_made, samples, size), torch.nan) for size in (5, 7, samples, 5)
    )
    room = FactorRoom(DenseLayer("weight", 7, 5, 1, "x"), batch, left, right, overlaps, of_start)
    room.fill(clients, column, rows, None if full else counts.flatten().nonzero().flatten(), start)
    expected = column[rows.flatten()].view(lanes_made, samples, 7) * counts.reshape(lanes_made, samples, 1)
    torch.testing.assert_close(right[:clients], expected[:clients], rtol=0, atol=0)
    torch.testing.assert_close(of_start, expected @ start.t())
    for first in range(batch, samples, batch):  # every batch with those before it
        products = expected[:, first : first + batch] @ expected[:, :first].transpose(1, 2)
        torch.testing.assert_close(overlaps[:, first : first + batch, :first], products)
