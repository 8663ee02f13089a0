"""What happens to an update on its way: transforms, one per file, and aggregators."""

from fedarena.transforms.aggregators import AGGREGATORS, Aggregator, Partial
from fedarena.transforms.attacks import ATTACKS, Attack
from fedarena.transforms.clip import Clip
from fedarena.transforms.clip_and_noise import ClipAndNoise
from fedarena.transforms.path import ShardResult, UpdatePath, train_and_collect
from fedarena.transforms.rows import Rows
from fedarena.transforms.top_k import TopK
from fedarena.transforms.transform import TRANSFORMS, Transform

__all__ = [
    "AGGREGATORS",
    "ATTACKS",
    "TRANSFORMS",
    "Aggregator",
    "Attack",
    "Clip",
    "ClipAndNoise",
    "Partial",
    "Rows",
    "ShardResult",
    "TopK",
    "Transform",
    "UpdatePath",
    "train_and_collect",
]
