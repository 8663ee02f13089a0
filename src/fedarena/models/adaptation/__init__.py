"""Adaptations: what of a model is trained, and thus sent; one file each, importing this registers them."""

from fedarena.models.adaptation import adapter, head_only, lora, norms_and_biases  # noqa: F401
from fedarena.models.adaptation.adapter import Adapter
from fedarena.models.adaptation.base import ADAPTATIONS, Adaptation, TrainAll, adapt, called_instead_of_last
from fedarena.models.adaptation.head_only import HeadOnly
from fedarena.models.adaptation.lora import LoRA, merge_low_rank
from fedarena.models.adaptation.norms_and_biases import NormsAndBiases

__all__ = [
    "ADAPTATIONS",
    "Adaptation",
    "Adapter",
    "HeadOnly",
    "LoRA",
    "NormsAndBiases",
    "TrainAll",
    "adapt",
    "called_instead_of_last",
    "merge_low_rank",
]
