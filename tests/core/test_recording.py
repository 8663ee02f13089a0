"""What is recorded on a CPU is what torch's own recorder writes down, node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx import GraphModule, Node

from fedarena.train import program
from fedarena.train.graphs import clean, one_by_one
from fedarena.train.program import record
from fedarena.train.recording import NotPlainError, record_plainly

Function = Callable[[list[Tensor]], list[Tensor]]
CONSTANT = torch.tensor([1.0, -2.0, 3.0])


def written_down(recorded: GraphModule) -> list[Any]:
    """Everything about a graph but the names of its nodes."""
    clean(recorded.graph)
    numbers = {node: number for number, node in enumerate(recorded.graph.nodes)}

    def plain(value: Any) -> Any:
        if isinstance(value, Node):
            return "result of", numbers[value]
        if isinstance(value, list | tuple):
            return [plain(part) for part in value]
        return repr(value)

    def described(node: Node) -> list[Any]:
        target = getattr(recorded, node.target).tolist() if node.op == "get_attr" else node.target
        value = node.meta.get("val")
        form = (value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else None
        is_input = node.op == "placeholder"
        return [node.op, None if is_input else target, plain(node.args), plain(list(node.kwargs.items())), form]

    return [described(node) for node in recorded.graph.nodes if node.op != "output"] + [
        plain(node.args) for node in recorded.graph.nodes if node.op == "output"
    ]


def gradients(module: nn.Module, *shape: int) -> tuple[Function, list[Tensor]]:
    """The gradients of a model for two clients with a batch each."""
    names = [name for name, _ in module.named_parameters()]
    params = [torch.randn(2, *p.shape) for p in module.parameters()]

    def loss(params: list[Tensor], x: Tensor) -> Tensor:
        return functional_call(module, dict(zip(names, params, strict=True)), (x,)).square().sum()

    return lambda tensors: vmap(grad(loss))(tensors[:-1], tensors[-1]), [*params, torch.randn(2, *shape)]


def writing(tensors: list[Tensor]) -> list[Tensor]:
    """Writes to what it made, through views as well, and to a constant that must be new every time."""
    total = tensors[0].clone()
    total[1] += tensors[1]
    number = torch.tensor([1.0, 2.0, 3.0])
    number.add_(tensors[1])
    return [total.mul_(2), number, tensors[0] * CONSTANT]


def several_results(tensors: list[Tensor]) -> list[Tensor]:
    values, places = tensors[0].sort(dim=1, descending=True)
    first, _ = tensors[0].split(1)
    return [values, places, first, tensors[1]]


CASES: dict[str, tuple[Function, list[Tensor]]] = {
    "dense": gradients(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), 5, 3),
    "pictures": gradients(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), 2, 1, 8, 8
    ),
    "attention": gradients(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 2, 3, 4),
    "writing": (writing, [torch.randn(2, 3), torch.randn(3)]),
    "several results": (several_results, [torch.randn(2, 3), torch.randn(3)]),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_torch_writes_down(case: str) -> None:
    function, tensors = CASES[case]
    assert written_down(record_plainly(function, tensors)) == written_down(
        program._record_thoroughly(function, tensors)
    )


@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_same_for_other_numbers(case: str) -> None:
    function, tensors = CASES[case]
    recorded = record(function, tensors)
    for _ in range(2):  # a constant that the first call had changed would show in the second
        others = [torch.randn_like(t) for t in tensors]
        for compute in (recorded, one_by_one(recorded)):
            for found, expected in zip(compute(*(t.clone() for t in others)), function(others), strict=True):
                assert torch.equal(found, expected)


def test_what_depends_on_values_is_left_to_torch() -> None:
    x = torch.randn(4)

    def unknown_number(tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0] if tensors[0].sum() > 0 else -tensors[0]]

    with pytest.raises(RuntimeError, match="data-dependent"):
        record(unknown_number, [x])


def test_other_tensors_are_left_to_torch() -> None:
    with pytest.raises(NotPlainError, match="Parameter"):
        record_plainly(lambda tensors: [tensors[0] + 1], [nn.Parameter(torch.ones(2))])
    with pytest.raises(NotPlainError, match="NoneType"):
        record_plainly(lambda tensors: [torch._foreach_add_(tensors, 1) or tensors[0]], [torch.ones(2)])


def through_constants(tensors: list[Tensor]) -> list[Tensor]:
    """Decides by a constant of its own and by one that is made anew."""
    factor = 2 if (CONSTANT.abs().sort()[0] > 2).any() else 3
    return [tensors[0] * factor + torch.linspace(0, 1, 3).sum().item() * torch.tensor(3.0).item()]


def test_what_constants_say_may_be_asked() -> None:
    traced = record_plainly(through_constants, [torch.randn(2, 3)])
    numbers = [torch.randn(2, 3)]
    assert torch.equal(traced(*numbers)[0], through_constants(numbers)[0])


@pytest.mark.parametrize("how", ["in a row", "through a view", "drawn"])
def test_what_is_no_constant_may_not(how: str) -> None:
    def decide(tensors: list[Tensor]) -> list[Tensor]:
        asked = torch.zeros(3)
        if how == "in a row":
            asked = torch.stack(tensors).sort()[0][0] + 1
        elif how == "through a view":
            asked.view(3)[:1].copy_(tensors[0][:1])
        else:
            asked = torch.rand(3)
        return [tensors[0] * 2 if asked.sum() > 0 else tensors[0]]

    with pytest.raises(NotPlainError, match="asks for a value"):
        record_plainly(decide, [torch.randn(3)])
