"""Phones that AI-Benchmark (Ignatov et al., AI Benchmark: All About Deep Learning on Smartphones in 2019) or FLHetBench
(Zhang et al., FLHetBench: Benchmarking Device and State Heterogeneity in Federated Learning, CVPR 2024) measured.

Both tell how fast phones compute, and nothing about their networks or when they are available.
"""

from __future__ import annotations

from fedarena.core.options import PathOption
from fedarena.fleet.availability import Availability
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.reading.latencies import Network, TrainingFactor, read_latencies
from fedarena.fleet.registry import FLEETS
from fedarena.fleet.sources.plain_parts import devices_without_network


@FLEETS.register("ai_benchmark")
def ai_benchmark(
    phones: int, *, file: PathOption, network: Network = "ResNet", training_factor: TrainingFactor = 3.0
) -> Fleet:
    """Every phone of a list of latencies or scores, always available, with a network that takes no time.

    Training on a sample takes `training_factor` times as long as inferring it.
    """
    devices = devices_without_network(training_factor * read_latencies(file, network).seconds)
    return Fleet("ai_benchmark", devices, Availability.always(len(devices)), paired=True)
