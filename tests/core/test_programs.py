"""Training steps as programs: the same numbers as the plain function, in place, without what is not needed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedarena.train import captured, scripts, small_products
from fedarena.train.graphs import (
    clean,
    compare_instead_of_scattering,
    in_place,
    join_views,
    reshape_instead_of_viewing,
    reuse_memory,
    separate_updates,
    update_within,
)
from fedarena.train.products import LayersAsProducts
from fedarena.train.program import Batch, Changing, Given, StepPrograms, record
from fedarena.train.small_products import sum_small_products


def lanes(count: int) -> tuple[Changing, Given, Batch]:
    generator = torch.Generator().manual_seed(count)
    weight, momentum, x = (torch.randn(count, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    numbers = torch.ones(count, dtype=torch.float64)
    changing = Changing({"weight": weight, "bias": bias}, {"momentum": {"weight": momentum}}, numbers, numbers * 0)
    batch = Batch({"x": x}, torch.ones(count, 5), numbers.long())
    return changing, Given({}, {"params": {"scale": numbers[0] * 2}}, {"share": numbers}), batch


def step(changing: Changing, given: Given, batch: Batch) -> Changing:
    """Something with all kinds of updates: a product, a sum, a new value, and one that stays."""

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return (torch.tanh(x @ params["weight"].t() + params["bias"]) ** 2).sum() * given.broadcast["params"]["scale"]

    found = vmap(grad(loss))(changing.params, batch.columns["x"])
    momentum = 0.9 * changing.optimizer["momentum"]["weight"] + 0.1 * found["weight"]
    params = {name: p - 0.1 * found[name] for name, p in changing.params.items()}
    return Changing(params, {"momentum": {"weight": momentum}}, changing.numbers + 1, changing.loss_sums)


def test_a_program_changes_the_lanes_as_the_step_says() -> None:
    programs = StepPrograms(step)
    for count in (3, 3, 6):
        changing, given, batch = lanes(count)
        run = programs.bind(changing, given, batch)
        for _ in range(3):
            expected = step(changing, given, batch)
            run(batch)
            for got, want in zip(changing.tensors(), expected.tensors(), strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=1e-14)


def test_the_first_lanes_only() -> None:
    changing, given, batch = lanes(6)
    before = [t.clone() for t in changing.tensors()]
    two = Batch({"x": batch.columns["x"][:2]}, batch.mask[:2], batch.keys[:2])
    expected = step(changing.first(2), given.first(2), two)
    StepPrograms(step).bind(changing.first(2), given.first(2), two)(two)
    for now, was, want in zip(changing.tensors(), before, expected.tensors(), strict=True):
        torch.testing.assert_close(now[:2], want, rtol=0, atol=1e-14)
        assert torch.equal(now[2:], was[2:])


def test_one_number_in_every_row_is_put_where_it_belongs() -> None:
    random = torch.Generator().manual_seed(0)
    chosen, twice = (torch.randint(5, (3, 4, count), generator=random) for count in (1, 2))

    def loss(scores: Tensor) -> Tensor:
        return -(scores.log_softmax(-1).gather(-1, chosen) ** 2).sum() + scores.exp().gather(-1, twice).sum()

    recorded = record(lambda tensors: [grad(loss)(tensors[0])], [torch.randn(3, 4, 5, generator=random)])
    compare_instead_of_scattering(recorded.graph, torch.device("cpu"))
    recorded.recompile()
    targets = [node.target for node in recorded.graph.nodes]
    assert targets.count(torch.ops.aten.scatter_add.default) == 1  # of two, which may be of the same place
    assert torch.ops.aten.where.self in targets
    scores = torch.randn(3, 4, 5, generator=random)
    assert torch.equal(recorded(scores)[0], grad(loss)(scores))


def test_what_was_recorded_may_be_given_tensors_of_another_layout() -> None:
    pictures = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5)
    recorded = record(lambda tensors: [tensors[0].view(2, -1) * 2], [pictures])
    channels_last = pictures.contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="view"):
        recorded(channels_last)
    reshape_instead_of_viewing(recorded.graph)
    recorded.recompile()
    for given in (pictures, channels_last):
        assert torch.equal(recorded(given)[0], pictures.view(2, -1) * 2)


def test_programs_are_shared_by_threads() -> None:
    programs = StepPrograms(step)
    found = {}

    def work(name: int) -> None:
        changing, given, batch = lanes(4)
        run = programs.bind(changing, given, batch)
        for _ in range(50):
            run(batch)
        found[name] = changing.params["weight"]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[0], other) for other in found.values())


def trace(function, *tensors: Tensor) -> GraphModule:
    traced = make_fx(function)(*tensors)
    clean(traced.graph)
    traced.recompile()
    return traced


def operations(traced: GraphModule) -> list[str]:
    return [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]


def test_operations_that_change_nothing_are_left_out() -> None:
    def function(a: Tensor) -> Tensor:
        return ((a * 1).transpose(0, 1).transpose(1, 0).permute(0, 1).view(3, 4).expand(3, 4) + 1) * 2

    a = torch.randn(3, 4)
    traced = trace(function, a)
    assert torch.equal(traced(a), (a + 1) * 2)
    assert operations(traced) == ["aten.add.Tensor", "aten.mul.Tensor"]


def test_what_is_computed_twice_is_computed_once() -> None:
    def function(a: Tensor) -> Tensor:
        return a.exp().sum(0) * a.exp().sum(1) + a.exp().sum(0)

    a = torch.randn(4, 4)
    traced = trace(function, a)
    assert torch.equal(traced(a), function(a))
    assert operations(traced).count("aten.exp.default") == 1
    assert operations(traced).count("aten.sum.dim_IntList") == 2


@pytest.mark.parametrize("seen_as", [lambda t: t.view(2, 15), lambda t: t.view(2, 1, 15).squeeze(1)])
def test_a_gradient_that_is_a_product_never_exists(seen_as) -> None:
    def function(weights: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        return [weights - 0.5 * seen_as(torch.bmm(x, y))]

    weights, x, y = torch.randn(2, 15), torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    (expected,) = function(weights, x, y)
    pure, updates = separate_updates(trace(function, weights, x, y), replaced=1)
    assert [update.kind for update in updates] == ["subtract_product"]
    assert operations(pure) == []
    in_place(pure, updates)(weights, x, y)
    torch.testing.assert_close(weights, expected)


def test_a_gradient_that_is_used_twice_is_computed_once() -> None:
    def function(weights: Tensor, momentum: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        grad = torch.bmm(x, y)
        return [weights - 0.5 * grad, 0.9 * momentum + grad]

    weights, momentum, x, y = (torch.randn(2, 3, 3) for _ in range(4))
    pure, updates = separate_updates(trace(function, weights, momentum, x, y), replaced=2)
    assert [update.kind for update in updates] == ["subtract", "copy"]
    assert operations(pure).count("aten.bmm.default") == 1


def test_what_lies_between_two_changes_is_not_merged() -> None:
    def function(a: Tensor) -> Tensor:
        b = a + 1
        before = b.exp()
        b.relu_()
        return before + b.exp()

    a = torch.randn(4, 4)
    assert torch.equal(trace(function, a)(a), function(a))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: [a - 2.0 * (c := torch.bmm(b.view(1, 3, 3), b.view(1, 3, 3))).view(3, 3), b - 1.0 * c.view(3, 3)],
        lambda a, b: [
            a - 2.0 * torch.bmm((b + 1).view(1, 3, 3), b.view(1, 3, 3)).view(3, 3),
            b - 1.0 * torch.bmm((a + 1).view(1, 3, 3), a.view(1, 3, 3)).view(3, 3),
        ],
        lambda a, b: [b, a],  # each becomes what the other was
        lambda a, b: [a - 2.0 * b, b - 3.0 * a],
        lambda a, b: [a - b.t(), a.t() - b],
        lambda a, b: [a.t(), b],
        lambda a, b: [a - torch.bmm(b.unsqueeze(0), a.unsqueeze(0)).squeeze(0), b + a],
    ],
)
@pytest.mark.parametrize("within", [False, True])
def test_nothing_reads_what_is_already_changed(function, within: bool) -> None:
    a, b = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    expected = [t.clone() for t in function(a, b)]
    pure, updates = separate_updates(trace(function, a, b), replaced=2)
    if within:
        updates = update_within(pure, updates)
        assert {update.kind for update in updates} <= {"subtract_product"}
    in_place(pure, updates)(a, b)
    torch.testing.assert_close([a, b], expected)


def test_views_that_change_nothing_for_a_single_lane_are_left_out() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.bmm(x, w.transpose(1, 2).view(1, 4, 3)).view(1, 2, 3)

    tensors = torch.randn(1, 2, 4), torch.randn(5, 3, 4)[2:3]
    traced = trace(function, *tensors)
    expected = traced(*tensors)
    assert any("view" in name for name in operations(traced))
    join_views(traced.graph)
    traced.recompile()
    assert not any("view" in name for name in operations(traced))
    assert torch.equal(traced(*tensors), expected)


def products(small: Tensor, large: Tensor, x: Tensor) -> list[Tensor]:
    return [small - 0.5 * torch.bmm(x.mT, x), large - 0.5 * torch.bmm(large.relu(), large.tanh())]


def test_small_products_are_sums_and_large_ones_stay(monkeypatch) -> None:
    monkeypatch.setattr(small_products, "_MOST_PRODUCTS", 500)
    small, large, x = torch.randn(2, 4, 4), torch.randn(2, 8, 8), torch.randn(2, 3, 4)
    expected = products(small, large, x)
    traced = trace(products, small, large, x)
    sum_small_products(traced.graph)
    traced.recompile()
    assert operations(traced).count("aten.bmm.default") == 1
    torch.testing.assert_close(traced(small, large, x), expected)


def test_small_products_that_are_rounded_stay() -> None:
    traced = trace(torch.bmm, *(torch.randn(2, 3, 3, dtype=torch.bfloat16) for _ in range(2)))
    sum_small_products(traced.graph)
    assert operations(traced) == ["aten.bmm.default"]


@pytest.mark.parametrize("compile", [False, True])
def test_a_step_for_a_gpu_changes_its_tensors_when_it_is_called_and_not_before(compile: bool, monkeypatch) -> None:
    taken = []

    def compiled(pure: GraphModule, tensors: list[Tensor]) -> GraphModule:
        pure(*tensors)
        taken.append(operations(pure).count("aten.bmm.default"))
        return pure

    monkeypatch.setattr(captured, "compiled", compiled)
    monkeypatch.setattr(small_products, "_MOST_PRODUCTS", 500)
    tensors = [torch.randn(2, 4, 4), torch.randn(2, 8, 8), torch.randn(2, 3, 4)]
    before, expected = [t.clone() for t in tensors], products(*tensors)
    made = captured.step_for_gpu(trace(products, *tensors), tensors, 2, compile)
    torch.testing.assert_close(tensors, before, rtol=0, atol=0)
    made(*tensors)
    torch.testing.assert_close(tensors, [*expected, before[2]])
    assert taken == ([0] if compile else [])  # a library subtracts the large product


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (5, 1, "same"), (1, 2, 0), (3, 1, 0)])
def test_convolutions_as_products(kernel: int, stride: int, padding, bias: bool) -> None:
    def loss(x: Tensor, weight: Tensor, bias_of: Tensor) -> Tensor:
        return (F.conv2d(x, weight, bias_of if bias else None, stride, padding) ** 3).sum()

    shapes = (3, 2, 4, 9, 8), (3, 5, 4, kernel, kernel), (3, 5)
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    gradients = vmap(grad(loss, argnums=(0, 1, 2) if bias else (0, 1)))
    expected = gradients(*tensors)
    with LayersAsProducts():
        assert "aten.convolution.default" not in operations(trace(gradients, *tensors))
        torch.testing.assert_close(gradients(*tensors), expected)


@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
def test_kernels_that_are_larger_than_the_picture(stride: tuple[int, int]) -> None:
    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return (F.conv2d(x, weight, None, stride, (5, 5)) ** 3).sum()

    tensors = [torch.randn(shape, dtype=torch.float64) for shape in ((2, 3, 2, 2, 7), (2, 4, 2, 11, 11))]
    gradients = vmap(grad(loss, argnums=(0, 1)))
    expected = gradients(*tensors)
    with LayersAsProducts():
        torch.testing.assert_close(gradients(*tensors), expected)


def test_other_convolutions_are_left_alone() -> None:
    x, weight = torch.randn(2, 4, 6, 6), torch.randn(4, 2, 2, 2)
    with LayersAsProducts():
        for options in ({"groups": 2}, {"groups": 2, "dilation": 2}, {"groups": 2, "padding": "same"}):
            assert F.conv2d(x, weight, **options).shape[1] == 4


def test_small_embeddings_as_products() -> None:
    def loss(weight: Tensor, tokens: Tensor) -> Tensor:
        return (F.embedding(tokens, weight) ** 3).sum()

    weight, tokens = torch.randn(3, 11, 4, dtype=torch.float64), torch.randint(11, (3, 5, 7))
    gradients = vmap(grad(loss))
    expected = gradients(weight, tokens)
    with LayersAsProducts():
        assert not [name for name in operations(trace(gradients, weight, tokens)) if "embedding" in name]
        torch.testing.assert_close(gradients(weight, tokens), expected)
        large = torch.randn(1, 2000, 4)
        assert [name for name in operations(trace(gradients, large, tokens[:1])) if "embedding" in name]


def pad(rows: Tensor, start: int) -> Tensor:
    """The gradient of a slice of two rows out of three."""
    return torch.ops.aten.slice_backward(rows, [3, 3], 0, start, start + 2, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: [(a + b).relu().neg() * 2],
        lambda a, b: [(c := a + b).relu() + c],  # needed again
        lambda a, b: [(c := a + b).view(-1).relu().view(3, 3) + c.t()],  # in another form
        lambda a, b: [(c := a + b).unbind(0)[1] + c.relu().sum(0)],
        lambda a, b: [(c := a * 2).split(1, 0)[2].tanh() + c[0] * c.split(1, 0)[2]],
        lambda a, b: [a.relu() + b.neg(), a * 2],  # never over what was given
        lambda a, b: [(c := a + b) * c, c.relu()],
        lambda a, b: [(a + b[:, :1]).sigmoid() + (b[:1].expand(3, 3).relu() + a)],
        lambda a, b: [(c := a + b) + c.t()],
        lambda a, b: [a + (b + 1), 2 * (a[0] + b)],
        lambda a, b: [(a * 2).scatter_add(0, torch.zeros(1, 3, dtype=torch.long), b), a],
        lambda a, b: [torch.ops.aten.slice_backward(a[:2], [3, 3], 0, 0, 2, 1) + pad(b[1:], 1) + pad(a[:2], 0)],
        lambda a, b: [(c := pad(a[:2], 1)) + (b + 1), c],
    ],
)
def test_memory_is_used_again_only_when_nobody_needs_it(function) -> None:
    a, b = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    before, expected = [a.clone(), b.clone()], function(a, b)
    traced = trace(function, a, b)
    reuse_memory(traced)
    torch.testing.assert_close(traced(a, b), expected, rtol=0, atol=0)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_results_keep_their_layout() -> None:
    """Operations that were recorded after an addition rely on how its result lies in memory."""
    rows, columns = torch.randn(3, 4), torch.randn(4, 3).t()
    traced = trace(lambda a, b: [a + b, b + a], rows, columns)
    layouts = [t.stride() for t in traced(rows, columns)]
    reuse_memory(traced)
    assert layouts[0] != layouts[1]
    assert [t.stride() for t in traced(rows, columns)] == layouts


def test_memory_is_used_again() -> None:
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    traced = trace(lambda a, b: [(a + b).relu().neg() * 2], a, b)
    reuse_memory(traced)
    assert operations(traced) == ["aten.add.Tensor", "aten.relu_.default", "aten.neg_.default", "aten.mul_.Tensor"]


def test_gradients_of_slices_are_added_where_they_belong() -> None:
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    traced = trace(lambda a, b: [pad(a[:2], 0) + pad(b[:2], 1) + pad(a[1:], 1)], a, b)
    reuse_memory(traced)
    assert operations(traced).count("aten.slice_backward.default") == 1


def test_the_python_code_of_a_step_is_made_before_workers_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch names variables in nodes; two workers who make the code of one graph at once mix up its variables."""
    makers: list[threading.Thread] = []
    make = Graph.python_code

    def noting(graph: Graph, *args: Any, **options: Any) -> Any:
        makers.append(threading.current_thread())
        return make(graph, *args, **options)

    monkeypatch.setattr(Graph, "python_code", noting)
    monkeypatch.setattr(scripts, "without_python", lambda *_: None)  # as where torch cannot make a script of it
    changing, given, batch = lanes(3)
    expected = step(changing, given, batch)
    run = StepPrograms(step).bind(changing, given, batch)
    worker = threading.Thread(target=run, args=(batch,))
    worker.start()
    worker.join()
    assert makers == [threading.current_thread()]
    for got, want in zip(changing.tensors(), expected.tensors(), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-14)
