"""What secure aggregation costs: computing and bytes of its messages, and accuracy and virtual time of whole runs.

    python benchmarks/secure_aggregation.py [--output result.json] [--parameters 100000 1000000] [--seeds 3]

First, groups of devices add up vectors in one process, without a network: seconds of processor time of one device and
of the server, if all stay and if a tenth leaves after keys are shared; and bytes that a device sends and gets beside
its masked vector. Sums are compared with those of the vectors. Then handwritten digits are learned with and without
secure aggregation: by the same clients in the same rounds, for what rounding does to accuracy, and on FedScale's
phones, as if the model had 5 MB, for virtual time and traffic.
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
    "federation": {"name": "digits", "partition": {"name": "iid", "clients": 100}},
    "model": "logistic_regression",
    "rounds": 30,
    "cohort": 20,
}
PHONES: dict[str, Any] = {
    "fleet": "fedscale",
    "protocol": "synchronous",
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
    """Accuracy of runs with and without, in which the same clients take part; and what phones take for them."""
    found = []
    for variant, settings in VARIANTS.items():
        accuracies, timed = [], []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                chosen = {**RUN, **settings, "seed": seed}
                ideal = fedarena.run(chosen, runs_folder=folder, progress=False)
                accuracies.append(ideal.rounds["accuracy"].to_pylist()[-1])
                timed.append(fedarena.run({**chosen, **PHONES}, runs_folder=folder, progress=False))
        starts, ends = ([run.rounds["end_seconds"].to_pylist()[place] for run in timed] for place in (0, -1))
        minutes = [(end - start) / 60 for start, end in zip(starts, ends, strict=True)]
        used = sum(sum(run.rounds["clients"].to_pylist()[1:]) for run in timed)
        up, down = (
            sum(
                job[column]
                for run in timed
                for job in run.jobs.to_pylist()
                if job["outcome"] in ("used", "lost with its group")
            )
            for column in ("bytes_up", "bytes_down")
        )
        lost = sum(run.summary.get("secure_aggregation", {}).get("lost_groups", 0) for run in timed)
        found.append(
            {
                "variant": variant,
                "accuracies": accuracies,
                "virtual_minutes": statistics.mean(minutes),
                "used_jobs": used,
                "bytes_up_of_a_used_job": up / used,
                "bytes_down_of_a_used_job": down / used,
                "lost_groups": lost,
            }
        )
        print(found[-1])
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
