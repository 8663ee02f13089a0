"""FedJAX in the speed benchmark: its federated averaging on in-memory clients, with one of its backends.

With `jit` one client at a time uses all cores. With `pmap` every device trains clients of its own; XLA_FLAGS has to
make a device of every core.
"""

from __future__ import annotations

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from protocol import answer, measure, read_arguments, workload_of
from workloads import Model, Workload, initial_params, mean_loss


def forward(model: Model, x):
    """Logits. Images have their channels last, which is the layout that XLA is fast with on CPUs."""
    if model.kind == "cnn":
        for channels in model.channels:
            x = jax.nn.relu(hk.Conv2D(channels, kernel_shape=3, padding="SAME")(x))
            x = hk.max_pool(x, window_shape=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding="VALID")
        x = hk.Flatten()(x)
    if model.kind == "char_mlp":
        embedded = hk.Embed(model.classes, model.embedding)(x)
        length = x.shape[-1]
        padded = jnp.pad(embedded, ((0, 0), (model.context - 1, 0), (0, 0)))
        x = jnp.concatenate([padded[:, i : i + length] for i in range(model.context)], -1)
    if model.kind == "lstm":
        core = hk.LSTM(model.hidden)
        embedded = hk.Embed(model.classes, model.embedding)(x)
        x, _ = hk.dynamic_unroll(core, embedded, core.initial_state(len(x)), time_major=False)
    elif model.hidden:
        x = jax.nn.relu(hk.Linear(model.hidden)(x))
    return hk.Linear(model.classes)(x)


def build_model(workload: Workload) -> fedjax.Model:
    network = hk.transform(lambda batch: forward(workload.model, batch["x"]))

    def loss(batch, logits):
        label = batch["y"][..., None]
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), label, axis=-1)
        return losses.reshape(len(logits), -1).mean(-1)  # of every sample

    x, y = columns(workload.model, *workload.clients[0])
    return fedjax.create_model_from_haiku(network, {"x": x[:1], "y": y[:1]}, train_loss=loss)


def columns(model: Model, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A client's samples as this tool wants them."""
    if model.kind == "cnn":
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    if model.reads_text:
        x = x.astype(np.int32)
    return x, y.astype(np.int32)


def haiku_params(model: Model) -> dict[str, dict[str, np.ndarray]]:
    """The first parameters under haiku's names and in its layouts."""
    given = initial_params(model)
    if model.kind == "cnn":  # what flattening gives the dense layer has the channels last, too
        height, width = (edge // 4 for edge in model.input_shape[1:])
        dense = given["7.weight"].reshape(model.hidden, -1, height, width)
        given["7.weight"] = dense.transpose(0, 2, 3, 1).reshape(model.hidden, -1)
    if model.kind == "lstm":
        return lstm_params(given)
    params: dict[str, dict[str, np.ndarray]] = {}
    counts = {"conv2_d": 0, "linear": 0}
    for name, weight in given.items():
        if name == "embed.weight":
            params["embed"] = {"embeddings": weight}
        elif name.endswith(".weight"):
            kind = "conv2_d" if weight.ndim == 4 else "linear"
            layer = kind if counts[kind] == 0 else f"{kind}_{counts[kind]}"
            counts[kind] += 1
            params[layer] = {"w": weight.transpose(2, 3, 1, 0) if weight.ndim == 4 else weight.T}
            params[layer]["b"] = given[name.removesuffix("weight") + "bias"]
    return params


def lstm_params(given: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Haiku has the candidate's gate before the one that forgets, to whose bias it adds 1 itself."""

    def gates(weight: np.ndarray) -> np.ndarray:
        enter, forget, candidate, leave = np.split(weight, 4)
        return np.concatenate([enter, candidate, forget, leave])

    both = np.concatenate([given["1.input.weight"], given["1.recurrent.weight"]], axis=1)
    bias = given["1.input.bias"].copy()
    hidden = len(bias) // 4
    bias[hidden : 2 * hidden] -= 1
    return {
        "embed": {"embeddings": given["0.weight"]},
        "lstm/linear": {"w": gates(both).T, "b": gates(bias)},
        "linear": {"w": given["2.weight"].T, "b": given["2.bias"]},
    }


class Run:
    """Federated averaging that goes on as far as it is told."""

    def __init__(self, workload: Workload, backend: str):
        self.workload = workload
        self.model = build_model(workload)
        clients = {
            f"client {number:03d}": dict(zip("xy", columns(workload.model, x, y), strict=True))
            for number, (x, y) in enumerate(workload.clients)
        }
        data = fedjax.InMemoryFederatedData(clients)
        self.sampler = fedjax.client_samplers.UniformGetClientSampler(data, len(clients), seed=0)
        with fedjax.for_each_client_backend(backend):
            self.algorithm = fed_avg.federated_averaging(
                fedjax.model_grad(self.model),
                client_optimizer=fedjax.optimizers.sgd(workload.lr),
                server_optimizer=fedjax.optimizers.sgd(1.0),
                client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=workload.batch_size, num_epochs=1),
            )
        expected = jax.tree_util.tree_map(jnp.shape, self.model.init(jax.random.PRNGKey(0)))
        params = jax.tree_util.tree_map(jnp.asarray, haiku_params(workload.model))
        if jax.tree_util.tree_map(jnp.shape, params) != expected:
            raise ValueError(f"The parameters of {workload.name} do not fit the model")
        self.state = self.algorithm.init(params)

    def run_rounds(self, rounds: int) -> None:
        for _ in range(rounds):
            self.state, _ = self.algorithm.apply(self.state, self.sampler.sample())
        jax.block_until_ready(self.state.params)

    def loss(self) -> float:
        per_sample = jax.jit(fedjax.model_per_example_loss(self.model))

        def loss_of(x, y) -> float:
            x, y = columns(self.workload.model, x, y)
            return float(per_sample(self.state.params, {"x": x, "y": y}, None).mean())

        return mean_loss(self.workload, loss_of)


def main() -> None:
    arguments = read_arguments(__doc__, backend="jit")
    workload = workload_of(arguments)
    run = Run(workload, arguments.backend)
    tool = "fedjax" if arguments.backend == "jit" else f"fedjax-{arguments.backend}"
    result = measure(tool, "fedjax", workload, arguments.seconds, run.run_rounds, run.loss)
    answer({**result, "setting": f"{arguments.backend}, jax {jax.__version__}"})


if __name__ == "__main__":
    main()
