"""MNIST, Fashion-MNIST, EMNIST, SVHN and CIFAR-100 from their usual files, dealt out by every partitioner."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from both_engines import agree
from picture_maps import put
from publishers_files import load
from scipy.io import savemat

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation
from fedarena.data.registry import PARTITIONERS

# Debian's package dataset-fashion-mnist puts it there.
FASHION = Path(os.environ.get("FASHION_MNIST_FOLDER", "/usr/share/datasets/fashion-mnist"))
DIGITS = Path(__file__).parents[3] / "shared" / "data" / "mnist_by_writer"


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def made(number: int, classes: int, side: int = 28, channels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(number)
    pixels = random.integers(0, 256, (number, channels, side, side), dtype=np.uint8)
    return pixels, np.arange(number) % classes


def write_idx(folder: Path, stem: str = "{}", test: str = "t10k", classes: int = 10, first: int = 0) -> dict:
    sets = {"train": made(120, classes), test: made(40, classes)}
    for part, (pixels, labels) in sets.items():
        put(folder / (stem.format(part) + "-images-idx3-ubyte.gz"), gzip.compress(idx(pixels[:, 0])))
        put(folder / (stem.format(part) + "-labels-idx1-ubyte"), idx(labels + first))
    return sets


def everything(federation: Federation, part: str) -> tuple[np.ndarray, np.ndarray]:
    samples = federation.samples(federation.clients(), part).columns
    return samples["x"], samples["y"]


def same(found: tuple[np.ndarray, np.ndarray], pixels: np.ndarray, labels: np.ndarray) -> bool:
    """Whether these are the same pictures with the same labels, in any order."""
    sides = [
        sorted(zip(map(bytes, x.reshape(len(x), -1)), y.tolist(), strict=True)) for x, y in (found, (pixels, labels))
    ]
    return sides[0] == sides[1]


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_every_picture_is_somebodys(name: str, tmp_path: Path) -> None:
    sets = write_idx(tmp_path)
    federation = load(name, tmp_path, partition={"name": "iid", "clients": 4}, verify=False)
    assert federation.num_clients == 4
    assert same(everything(federation, "train"), *sets["train"])
    assert same(everything(federation, "test"), *sets["t10k"])
    divided = load(name, tmp_path, partition={"name": "iid", "clients": 4}, verify=False, validation_fraction=0.25)
    assert len(everything(divided, "validation")[1]) == 30
    with pytest.raises(DamagedFileError, match=r"is not the published train-images-idx3-ubyte: its checksum differs"):
        load(name, tmp_path)
    put(tmp_path / "t10k-labels-idx1-ubyte", idx(np.arange(39) % 10))
    with pytest.raises(BadInputError, match=r"has 40 pictures and .*t10k-labels-idx1-ubyte 39 labels"):
        load(name, tmp_path, verify=False)
    put(tmp_path / "t10k-labels-idx1-ubyte", idx(np.full(40, 10)))
    with pytest.raises(
        BadInputError, match=r"t10k-labels-idx1-ubyte has the label 10 for picture 1; labels are 0 to 9"
    ):
        load(name, tmp_path, verify=False)


@pytest.mark.parametrize("partitioner", PARTITIONERS.names())
def test_every_partitioner_deals_them_out(partitioner: str, tmp_path: Path) -> None:
    sets = write_idx(tmp_path)
    clients = {} if partitioner in ("natural", "id_groups") else {"clients": 5}
    few = {"min_samples": 1} if partitioner in ("dirichlet", "balanced_dirichlet", "inner_dirichlet") else {}
    federation = load("mnist", tmp_path, partition={"name": partitioner, **clients, **few}, verify=False)
    assert same(everything(federation, "train"), *sets["train"])
    assert same(everything(federation, "test"), *sets["t10k"])


@pytest.mark.parametrize(("version", "classes", "first"), [("balanced", 47, 0), ("letters", 26, 1)])
def test_emnist_stands_upright_in_both_forms(version: str, classes: int, first: int, tmp_path: Path) -> None:
    sets = write_idx(tmp_path / "idx" / "gzip", f"emnist-{version}-{{}}", "test", classes, first)
    (tmp_path / "mat").mkdir()
    content = {
        part: {"images": pixels.reshape(len(pixels), -1), "labels": (labels + first)[:, None]}
        for part, (pixels, labels) in sets.items()
    }
    savemat(tmp_path / "mat" / f"emnist-{version}.mat", {"dataset": content})
    for form in ("idx", "mat"):
        federation = load("emnist", tmp_path / form, version=version, partition={"name": "iid", "clients": 2})
        assert federation.task.classes == classes
        for part, (pixels, labels) in sets.items():
            assert same(everything(federation, part), pixels.swapaxes(2, 3), labels)
    with pytest.raises(BadInputError, match="lacks the version digits of EMNIST; it must hold one of emnist-balanced"):
        load("emnist", tmp_path / "idx", version="digits")
    damaged = tmp_path / "mat" / f"emnist-{version}.mat"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(
        DamagedFileError, match=rf"emnist-{version}\.mat is damaged: it is no complete file of Matlab's"
    ):
        load("emnist", tmp_path / "mat", version=version)


def test_house_numbers_whose_zero_is_ten(tmp_path: Path) -> None:
    sets = {"train": made(60, 10, 32, 3), "test": made(20, 10, 32, 3), "extra": made(30, 10, 32, 3)}
    for part, (pixels, labels) in sets.items():
        y = np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)
        savemat(tmp_path / f"{part}_32x32.mat", {"X": pixels.transpose(2, 3, 1, 0), "y": y})
    options = {"partition": {"name": "iid", "clients": 3}, "verify": False}
    federation = load("svhn", tmp_path, **options)
    assert same(everything(federation, "train"), *sets["train"])
    assert same(everything(federation, "test"), *sets["test"])
    assert len(everything(load("svhn", tmp_path, extra=True, **options), "train")[1]) == 90
    savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]])})
    with pytest.raises(BadInputError, match=r"test_32x32\.mat has the label 11 for picture 2; labels are 0 to 9"):
        load("svhn", tmp_path, **options)


def write_cifar100(folder: Path, form: str, sets: dict) -> Path:
    files = {}
    names = {"fine": [f"kind{number}" for number in range(100)], "coarse": [f"group{number}" for number in range(20)]}
    for part, (pixels, labels) in sets.items():
        flat, coarse = pixels.reshape(len(pixels), -1), labels // 5
        if form == "python":
            of_part = {"data": flat, "fine_labels": labels.tolist(), "coarse_labels": coarse.tolist()}
            files[part] = pickle.dumps(of_part, protocol=3)
        else:
            files[f"{part}.bin"] = (
                np.concatenate([coarse[:, None], labels[:, None], flat], 1).astype(np.uint8).tobytes()
            )
    if form == "python":
        files["meta"] = pickle.dumps({f"{kind}_label_names": listed for kind, listed in names.items()}, protocol=2)
    else:
        files |= {f"{kind}_label_names.txt": "\n".join(listed).encode() for kind, listed in names.items()}
    folder.mkdir()
    path = folder / f"cifar-100-{form}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"cifar-100-{form}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_cifar100_in_both_forms(tmp_path: Path) -> None:
    sets = {"train": made(300, 100, 32, 3), "test": made(100, 100, 32, 3)}
    options = {"partition": {"name": "iid", "clients": 3}, "verify": False}
    for form in ("python", "binary"):
        path = write_cifar100(tmp_path / form, form, sets)
        federation = load("cifar100", tmp_path / form, **options)
        assert same(everything(federation, "train"), *sets["train"])
        assert federation.task.label_names[7] == "kind7"
        coarse = load("cifar100", tmp_path / form, labels="coarse", **options)
        assert (coarse.task.classes, coarse.task.label_names[3]) == (20, "group3")
        path.write_bytes(path.read_bytes()[:3000])
        with pytest.raises(DamagedFileError, match=r"tar\.gz is damaged: it cannot be unpacked"):
            load("cifar100", tmp_path / form, **options)


@pytest.mark.slow
def test_real_digits_train_on_both_engines(tmp_path: Path) -> None:
    if not (DIGITS / "train-labels-idx1-ubyte.gz").is_file():
        pytest.skip(f"needs {DIGITS}")
    federation = load("mnist", DIGITS, partition={"name": "shards", "clients": 600})
    assert (federation.num_clients, federation.num_samples) == (600, 70_000)
    agree(federation, tmp_path, model="logistic_regression", evaluation={"max_clients": 20})


@pytest.mark.slow
def test_the_real_fashion_mnist(tmp_path: Path) -> None:
    if not FASHION.is_dir():
        pytest.skip(f"needs {FASHION}, or FASHION_MNIST_FOLDER")
    federation = load("fashion_mnist", FASHION, partition={"name": "dirichlet", "clients": 100})
    assert (federation.num_clients, federation.num_samples) == (100, 70_000)
    agree(federation, tmp_path, model="logistic_regression")
