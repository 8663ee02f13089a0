"""Reptile. Nichol, Achiam, Schulman, "On First-Order Meta-Learning Algorithms", 2018, in its batched form (section 6).

The server looks for a start from which clients get far with little training: w = w + meta_lr mean(w_i - w), where all
clients count the same. The rate moves linearly from `meta_lr` to `final_meta_lr` over the run; round r of R uses the
fraction (r - 1) / R of the way, as the authors' code does. Clients are evaluated after fine-tuning on their own
samples. LEAF (Caldas et al., 2018) goes from 2 to 0 and fine-tunes for 50 batches of 5.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedarena.algorithms.checks import check_not_negative, check_positive
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.train import Algorithm, Groups, LocalTraining, Work


@ALGORITHMS.register("reptile")
class Reptile(Algorithm):
    """Meta-learning; every client fine-tunes the global model before it is scored (`fine_tune_lr`: `local.lr`)."""

    def __init__(
        self,
        *,
        meta_lr: float = 1.0,
        final_meta_lr: float = 0.0,
        fine_tune_steps: int = 50,
        fine_tune_batch_size: int = 5,
        fine_tune_lr: float | None = None,
    ):
        check_positive(meta_lr=meta_lr, fine_tune_steps=fine_tune_steps, fine_tune_batch_size=fine_tune_batch_size)
        check_not_negative(final_meta_lr=final_meta_lr)
        if fine_tune_lr is not None:
            check_positive(fine_tune_lr=fine_tune_lr)
        self.meta_lr, self.final_meta_lr, self.fine_tune_lr = meta_lr, final_meta_lr, fine_tune_lr
        self.fine_tune_steps, self.fine_tune_batch_size = fine_tune_steps, fine_tune_batch_size

    def prepare(self, population: int, local: LocalTraining, horizon: int = 1) -> None:
        """Fine-tuning is like local training but for its length, batches and rate."""
        super().prepare(population, local, horizon)
        self.fine_tuning = replace(
            local,
            epochs=None,
            steps=self.fine_tune_steps,
            batch_size=self.fine_tune_batch_size,
            lr=local.lr if self.fine_tune_lr is None else self.fine_tune_lr,
        )

    def client_weight(self, work: Work) -> Any:
        """Every client counts the same."""
        return 0 * work.samples + 1

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """A step towards the mean of the clients' models, or beyond it."""
        done = (round - 1) / self.horizon
        rate = (1 - done) * self.meta_lr + done * self.final_meta_lr
        update = mean_update["params"]
        return {**state, "params": {name: p + rate * update[name] for name, p in state["params"].items()}}
