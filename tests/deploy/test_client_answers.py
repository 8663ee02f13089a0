"""Whatever a server answers, the client goes on or ends with a sentence."""

from __future__ import annotations

import json
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import pytest
from devices_without_network import small_experiment
from real_clients import RealClient

from fedarena.client.samples import RawSamples
from fedarena.core.errors import FedArenaError
from fedarena.core.version import VERSION
from fedarena.deploy.authority import Authority, invitation
from fedarena.deploy.settings import device_settings

LIMITS = {"chunk_bytes": 65_536, "poll_seconds": 1, "busy_seconds": 30}
DATA = {"x": np.zeros((4, 1, 8, 8), dtype=np.float32), "y": np.zeros(4, dtype=np.int64)}


class ScriptedServer:
    """Answers calls with what it was told to answer."""

    def __init__(self, folder):
        self.answers: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        authority = Authority.create(folder)
        issued = authority.issue_server(["127.0.0.1"])

        def answer(name: str):
            def handle(request: bytes, context: Any) -> bytes:
                self.asked.append(json.loads(request))
                said = self.answers[name]
                if isinstance(said, tuple):
                    context.abort(*said)
                return said if isinstance(said, bytes) else json.dumps(said).encode()

            return grpc.unary_unary_rpc_method_handler(handle)

        handlers = {name: answer(name) for name in ("Join", "Next", "Status")}
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fedarena.v1", handlers),))
        credentials = grpc.ssl_server_credentials([(issued.key, issued.certificate)], authority.certificate, True)
        port = self.server.add_secure_port("127.0.0.1:0", credentials)
        self.server.start()
        self.path = folder / "alice.zip"
        issued = authority.issue_client("alice")
        self.path.write_bytes(invitation(authority, issued, "alice", f"127.0.0.1:{port}"))

    def failure(self) -> BaseException | None:
        """How a client fares with it."""
        client = RealClient(self.path, RawSamples(DATA, "load"))
        client.start()
        client.join(20)
        assert not client.is_alive()
        return client.failure


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = ScriptedServer(tmp_path_factory.mktemp("scripted"))
    yield made
    made.server.stop(0)


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    return {
        "run": "r",
        "client": 0,
        "settings": device_settings(small_experiment()) | {"fixed": None},
        "limits": LIMITS,
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (b"", "which this client does not understand"),
        (b"\xff", "which this client does not understand"),
        (b"[1]", "which this client does not understand"),
        (b"[" * 10_000, "which this client does not understand"),
        ({"refused": "no\x1b[31m"}, r"The server refuses this device: no\\x1b\[31m"),
        ({"run": 3}, "which this client does not understand"),
        ({"client": "0"}, "which this client does not understand"),
        ({"limits": None}, "which this client does not understand"),
        ({"limits": LIMITS | {"chunk_bytes": -1}}, "which this client does not understand"),
        ({"limits": LIMITS | {"busy_seconds": float("nan")}}, "which this client does not understand"),
        ({"settings": []}, "which this client does not understand"),
        ({"settings": {}}, "The server's settings cannot be used here"),
        ({"settings": {"data": {"columns": {"x": 1}}}}, "The server's settings cannot be used here"),
        ((grpc.StatusCode.PERMISSION_DENIED, "alice was revoked"), "does not want this device: alice was revoked"),
        ((grpc.StatusCode.INVALID_ARGUMENT, "what?"), r"does not understand this client \(what\?\); are both of one"),
    ],
)
def test_answers_to_joining(change, sentence, server, good):
    server.answers["Join"] = good | change if isinstance(change, dict) else change
    with pytest.raises(FedArenaError, match=sentence):
        raise server.failure()


@pytest.mark.parametrize(
    ("fixed", "sentence"),
    [
        ({"blob": "../../secrets", "bytes": 3}, "which this client does not understand"),
        ({"blob": "a" * 64}, "which this client does not understand"),
        ("a", "which this client does not understand"),
    ],
)
def test_names_of_files(fixed, sentence, server, good):
    server.answers["Join"] = good | {"settings": good["settings"] | {"fixed": fixed}}
    with pytest.raises(FedArenaError, match=sentence):
        raise server.failure()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"wait": "long"}, "which this client does not understand"),
        ({"task": {"task": 3, "kind": "train"}}, "which this client does not understand"),
        ({"task": {"task": "a" * 32, "kind": "execute"}}, "The server wants 'execute', which this client cannot do"),
        ({"task": {"task": "a" * 32, "kind": "train", "bytes": 1, "blob": "/etc/passwd"}}, "does not understand"),
    ],
)
def test_answers_to_asking_for_a_task(answer, sentence, server, good):
    server.answers |= {"Join": good, "Next": answer}
    with pytest.raises(FedArenaError, match=sentence):
        raise server.failure()


def test_what_a_device_says_about_itself(server, good):
    server.answers |= {"Join": good, "Next": {"over": "That was it"}}
    server.asked.clear()
    assert server.failure() is None
    joined, asked = server.asked
    assert (joined["protocol"], joined["fedarena"]) == (1, VERSION)
    assert joined["samples"] == {"train": 4, "validation": 0, "test": 0}
    assert joined["columns"] == {"x": ["float32", [1, 8, 8]], "y": ["int64", []]}
    assert asked == {"run": "r", "busy": None, "ready": True}
