"""What secure aggregation costs: computing and bytes of its messages, and accuracy and virtual time of whole runs.

    python benchmarks/secure_aggregation.py [--output result.json] [--parameters 100000 1000000] [--seeds 3]

First, groups of devices add up vectors in one process, without a network: seconds of processor time of one device and
of the server, if all stay and if a tenth leaves after keys are shared; and bytes that a device sends and gets beside
its masked vector. Sums are compared with those of the vectors. Then the same settings are simulated with and without
secure aggregation, on handwritten digits and FedScale's phones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import fedarena
from fedarena.client.masks import Authority, read_certificate, read_key, signing_with
from fedarena.client.secure_limits import usual_threshold
from fedarena.client.secure_messages import Traffic
from fedarena.client.secure_sum import Member, Session
from fedarena.deploy.authority import Authority as IssuingAuthority
from fedarena.deploy.unmasking import PHASES, SecureGroup
from store import environment

GROUPS = (8, 32, 64)
RUN: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "iid", "clients": 400}},
    "model": "logistic_regression",
    "fleet": "fedscale",
    "protocol": "synchronous",
    "rounds": 30,
    "cohort": 50,
    "clock": {"start_hour": 20.0, "leaving": "pause", "model_bytes": 5_000_000},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "secure, 32 bits": {"secure_aggregation": {"name": "bonawitz"}},
    "secure, 32 bits, rounding by chance": {"secure_aggregation": {"name": "bonawitz", "rounding": "stochastic"}},
    "secure, 32 bits, range 10^6": {"secure_aggregation": {"name": "bonawitz", "range": 1e6}},
    "secure, 64 bits": {"secure_aggregation": {"name": "bonawitz", "bits": 64}},
    "secure, groups of 10": {"secure_aggregation": {"name": "bonawitz", "group": 10}},
}


def issued(members: int) -> tuple[Authority, list[tuple[bytes, Any]]]:
    """An authority, and certificates and keys of its devices."""
    with tempfile.TemporaryDirectory() as folder:
        authority = IssuingAuthority.create(Path(folder))
        each = [authority.issue_client(f"device{number}") for number in range(members)]
    pairs = [(read_certificate(one.certificate), read_key(one.key)) for one in each]
    return Authority(read_certificate(authority.certificate)), pairs


def group_costs(members: int, parameters: int, leaving: int) -> dict[str, Any]:
    """Processor seconds of one device and of the server in one secure sum; whether the sum is right."""
    authority, credentials = issued(members)
    session = Session("benchmark", usual_threshold(members), parameters)
    group = SecureGroup(session, range(members), authority)
    devices = [Member(session, n, cert, signing_with(key), authority) for n, (cert, key) in enumerate(credentials)]
    random = np.random.default_rng(0)
    # One vector for all, so that they need no more memory than one of them.
    vector = random.integers(0, 1 << 32, parameters, dtype=np.uint32)
    device_seconds = [0.0] * members
    server_seconds = 0.0
    incoming = dict.fromkeys(range(members), b"")
    for phase in PHASES:
        for number, message in incoming.items():
            if phase not in ("advertise", "share") and number < leaving:
                continue
            began = time.process_time()
            device = devices[number]
            if phase == "advertise":
                answer = device.advertise()
            else:
                answer = device.mask(vector, message) if phase == "mask" else getattr(device, phase)(message)
            device_seconds[number] += time.process_time() - began
            began = time.process_time()
            group.take(number, answer)
            server_seconds += time.process_time() - began
        began = time.process_time()
        if phase != PHASES[-1]:
            incoming = group.close()
        server_seconds += time.process_time() - began
    began = time.process_time()
    total = group.total()
    server_seconds += time.process_time() - began
    sizes = Traffic(members)
    return {
        "members": members,
        "parameters": parameters,
        "leaving": leaving,
        "device_seconds": statistics.median(device_seconds[leaving:]),
        "server_seconds": server_seconds,
        "bytes_up_beside": sizes.keys_up + sizes.unmasking_up,
        "bytes_down_beside": sizes.keys_down + sizes.unmasking_down,
        "is_right": bool((total.words == vector * np.uint32(members - leaving)).all()),
    }


def run_costs(seeds: int) -> list[dict[str, Any]]:
    """Accuracy, virtual time and traffic of runs with and without."""
    found = []
    for variant, settings in VARIANTS.items():
        results = []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results.append(fedarena.run({**RUN, **settings, "seed": seed}, runs_folder=folder, progress=False))
        accuracies = [result.rounds["accuracy"].to_pylist()[-1] for result in results]
        hours = [(result.rounds["end_seconds"].to_pylist()[-1] / 3600) - 20.0 for result in results]
        jobs = sum(len(result.jobs) for result in results)
        up = sum(sum(result.rounds["bytes_up"].to_pylist()[1:]) for result in results)
        down = sum(sum(result.rounds["bytes_down"].to_pylist()[1:]) for result in results)
        lost = sum(result.summary.get("secure_aggregation", {}).get("lost_groups", 0) for result in results)
        found.append(
            {
                "variant": variant,
                "accuracy": statistics.mean(accuracies),
                "accuracies": accuracies,
                "virtual_hours": statistics.mean(hours),
                "bytes_up_of_a_job": up / jobs,
                "bytes_down_of_a_job": down / jobs,
                "lost_groups": lost,
            }
        )
        print(f"{variant}: {found[-1]}", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--parameters", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--groups", type=int, nargs="+", default=list(GROUPS))
    parser.add_argument("--seeds", type=int, default=3)
    wanted = parser.parse_args()
    sums = [
        group_costs(members, parameters, leaving)
        for parameters in wanted.parameters
        for members in wanted.groups
        for leaving in (0, max(members // 10, 1))
    ]
    for one in sums:
        print(one)
    runs = run_costs(wanted.seeds)
    if wanted.output is not None:
        content = {"sums": sums, "runs": runs, "environment": environment()}
        wanted.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0 if all(one["is_right"] for one in sums) else 1


if __name__ == "__main__":
    sys.exit(main())
