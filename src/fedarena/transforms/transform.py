"""The interface of a transform: a step that updates go through on their way from clients to the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedarena.core.registry import Registry
from fedarena.core.secret_noise import SecretStream
from fedarena.train import Algorithm, Groups, JobContext
from fedarena.transforms.rows import Rows, ScaledRows
from fedarena.transforms.wire import Wire, changed


@dataclass(frozen=True, kw_only=True)
class SecretContext(JobContext):
    """What is known about a step of a real server, and where it draws noise that nobody else must know."""

    noise: Callable[[str], SecretStream]  # for a purpose


class Transform:
    """Leaves updates as they are; every transform overrides what it does.

    The methods are pure functions of tensors. At the client they see the updates of many clients at once, a row each,
    and whatever is random comes from ``rows.context``, which is keyed by seed, round and client. Constructor arguments
    are keyword-only: they become the options of the configuration.

    What the server keeps for a transform is part of the run's checkpoint; what a client keeps is kept with the rest
    of its state. Both are named groups of named tensors.
    """

    depends_on_data = False  # whether uploads of different clients differ in size
    enforced = False  # whether the server can make sure of it, so that corrupted clients cannot avoid it
    # Whether `scaled` and `observe` can do with `ProductRows` for tensors. New ones of a subclass need a promise, too.
    takes_products = False
    counts_clients_equally = False  # whether every client has the same weight, whatever the algorithm says
    hides_from_server = False  # whether what it draws at the client must not be known to the server: see `UpdatePath`

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """Why this transform does not fit an algorithm with such updates (of one client); None: it does."""
        return None

    def server_init(self, update: Groups) -> Groups:
        """What the server keeps before the first round; `update` shows what one looks like."""
        return {}

    def client_init(self, update: Groups) -> Groups:
        """What a client keeps before its first job."""
        return {}

    def draw_ahead(self, update: Groups, context: JobContext) -> None:
        """Computes before, while clients train, what `at_server` will need in this context whatever they send.

        `update` shows what one looks like. It need not be called, and must not change what `at_server` gives.
        """

    def at_client(self, rows: Rows, kept: Groups, server: Groups) -> tuple[Groups, Groups]:
        """The updates that go on, and what clients keep; both have a row per client, `server` has none."""
        return rows.update, kept

    def told_to_clients(self, server: Groups) -> Groups:
        """The part of what the server keeps that `at_client` looks at; on a real network, nothing else is sent."""
        return server

    def scaled(self, rows: Rows, server: Groups) -> ScaledRows | None:
        """What `at_client` comes to, if that is nothing but multiplying clients' tensors by a number each."""
        return None

    def at_server(self, update: Groups, server: Groups, context: JobContext) -> tuple[Groups, Groups]:
        """The aggregated update that goes on to the server's step, and what the server keeps.

        `context` has the round, the version of the server's model, and random numbers keyed by these. Transforms come
        in the opposite order here: the last thing that clients did is the first that the server deals with.
        """
        return update, server

    def observe(self, before: Rows, after: Groups) -> dict[str, float | Tensor]:
        """What the simulator notes about these clients; added up over all clients of a round for `measure`.

        Numbers may be tensors, so that nobody waits for a GPU before the round is over.
        """
        return {}

    def measure(self, server: Groups, observed: Mapping[str, float]) -> dict[str, float]:
        """Values for columns of the round's row, from what the server keeps and what was observed."""
        return {}

    def sent(self, wire: Wire, updates: Groups | None) -> Wire:
        """How updates are sent after this, if they were sent like `wire` before.

        Before anybody trained, what is planned for one client; with `updates`, of which every client has a row, what
        clients really send. Here, values that may have changed are sent as they are, whatever was done to send them in
        fewer bytes before; zeros still need not be sent.
        """
        return wire if type(self).at_client is Transform.at_client else changed(wire, updates)


TRANSFORMS: Registry[type[Transform]] = Registry("transform", base=Transform)
