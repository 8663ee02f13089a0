"""What happens to an update on its way: transforms, one per file, and aggregators."""

from fedarena.transforms.aggregators import AGGREGATORS, Aggregator, Collected, Defence, Partial, ServerStep
from fedarena.transforms.attacks import ATTACKS, Attack
from fedarena.transforms.clip import Clip
from fedarena.transforms.clip_and_noise import ClipAndNoise
from fedarena.transforms.compressor import DOWNLOADS, Compressor
from fedarena.transforms.count_sketch import Sketched
from fedarena.transforms.half import Half
from fedarena.transforms.low_rank import LowRank
from fedarena.transforms.path import ShardResult, UpdatePath, train_and_collect
from fedarena.transforms.qsgd import QSGD
from fedarena.transforms.random_k import RandomK
from fedarena.transforms.rows import Rows
from fedarena.transforms.sending import Sent
from fedarena.transforms.sign import Sign
from fedarena.transforms.ternary import Ternary
from fedarena.transforms.top_k import TopK
from fedarena.transforms.transform import TRANSFORMS, Transform

__all__ = [
    "AGGREGATORS",
    "ATTACKS",
    "DOWNLOADS",
    "QSGD",
    "TRANSFORMS",
    "Aggregator",
    "Attack",
    "Clip",
    "ClipAndNoise",
    "Collected",
    "Compressor",
    "Defence",
    "Half",
    "LowRank",
    "Partial",
    "RandomK",
    "Rows",
    "Sent",
    "ServerStep",
    "ShardResult",
    "Sign",
    "Sketched",
    "Ternary",
    "TopK",
    "Transform",
    "UpdatePath",
    "train_and_collect",
]
