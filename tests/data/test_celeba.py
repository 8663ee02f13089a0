"""CelebA from small files with the form of those that its authors give out."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation, load_federation
from fedarena.data.registry import cache_folder
from fedarena.data.sources import celeba

IDENTITIES, ATTRIBUTES, PICTURES = "identity_CelebA.txt", "list_attr_celeba.txt", "img_align_celeba.zip"
NAMES = ["5_o_Clock_Shadow", "Male", "Smiling", "Young"]
# Who is on picture 000001.jpg, 000002.jpg, ...
PEOPLE = [2880, 2937, 12, 2880, 12, 2880, 2880, 12, 2880, 12, 12, 2937, 2937]


def has(attribute: str, picture: int) -> bool:
    return picture % (2 + NAMES.index(attribute)) == 0


def jpeg(picture: int) -> bytes:
    """A face of one colour above and another below, in the size of the published ones."""
    pixels = np.zeros((218, 178, 3), np.uint8)
    pixels[:109] = (10 * picture, 0, 200)
    pixels[109:] = (0, 250 - 10 * picture, 0)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def pictures() -> dict[str, bytes]:
    return {f"img_align_celeba/{picture:06d}.jpg": jpeg(picture) for picture in range(1, len(PEOPLE) + 1)}


def save_pictures(folder: Path, contents: dict[str, bytes]) -> None:
    with zipfile.ZipFile(folder / PICTURES, "w") as archive:
        archive.mkdir("img_align_celeba")
        for name, content in contents.items():
            archive.writestr(name, content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "raw"
    place.mkdir()
    numbers = range(1, len(PEOPLE) + 1)
    identities = [f"{picture:06d}.jpg {person}\n" for picture, person in zip(numbers, PEOPLE, strict=True)]
    (place / IDENTITIES).write_text("".join(identities))
    rows = [f"{p:06d}.jpg " + " ".join(f"{1 if has(name, p) else -1:>2}" for name in NAMES) + "\n" for p in numbers]
    (place / ATTRIBUTES).write_text(f"{len(PEOPLE)}\n{' '.join(NAMES)} \n{''.join(rows)}")
    save_pictures(place, pictures())
    return place


def load(folder: Path, **options: object) -> Federation:
    return load_federation("celeba", {"folder": str(folder), "verify": False, "split": "by_client", **options})


def samples_of(federation: Federation, client: str, part: str = "all") -> dict[str, np.ndarray]:
    (index,) = (i for i, name in enumerate(federation.client_ids(federation.clients())) if name == client)
    return federation.samples(np.array([index]), part).columns


def of(person: int) -> list[int]:
    return [place + 1 for place, other in enumerate(PEOPLE) if other == person]


def replace_line(folder: Path, name: str, number: int, line: bytes) -> None:
    lines = (folder / name).read_bytes().split(b"\n")
    lines[number - 1] = line
    (folder / name).write_bytes(b"\n".join(lines))


def test_everybody_has_their_pictures(folder: Path) -> None:
    federation = load(folder, minimum_samples=1)
    assert federation.client_ids(federation.clients()) == ["12", "2880", "2937"]
    assert federation.task.label_names == ("not Smiling", "Smiling")
    for person in set(PEOPLE):
        samples = samples_of(federation, str(person))
        assert samples["y"].tolist() == [int(has("Smiling", picture)) for picture in of(person)]
        assert samples["x"].shape == (len(of(person)), 3, 84, 84)
        assert samples["x"].dtype == np.uint8
        for x, picture in zip(samples["x"].astype(int), of(person), strict=True):
            # Channels first, the upper colour above the lower; JPEG changes colours a little.
            assert np.abs(x[:, :38] - np.array([10 * picture, 0, 200])[:, None, None]).max() <= 4
            assert np.abs(x[:, 46:] - np.array([0, 250 - 10 * picture, 0])[:, None, None]).max() <= 4


def test_another_attribute(folder: Path) -> None:
    federation = load(folder, attribute="Young")
    assert federation.task.label_names == ("not Young", "Young")
    assert samples_of(federation, "2880")["y"].tolist() == [int(has("Young", picture)) for picture in of(2880)]
    with pytest.raises(
        BadInputError, match=r"federation\.attribute is 'Smilling', but .*list_attr.* did you mean 'Smiling'\?"
    ):
        load(folder, attribute="Smilling")


def test_an_unpacked_archive_with_more_pictures_is_the_same(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "unpacked"
    shutil.copytree(folder, place)
    with zipfile.ZipFile(place / PICTURES) as archive:
        archive.extractall(place)
    (place / PICTURES).unlink()
    (place / "img_align_celeba" / "999999.jpg").write_bytes(b"nobody's")
    (place / "img_align_celeba" / "._000001.jpg").write_bytes(b"left by a file manager")
    one, other = load(folder), load(place)
    assert one.client_ids(one.clients()) == other.client_ids(other.clients())
    for name, column in one.samples(one.clients(), "all").columns.items():
        np.testing.assert_array_equal(column, other.samples(other.clients(), "all").columns[name])


def test_fewer_people(folder: Path) -> None:
    federation = load(folder)  # LEAF leaves out who has fewer than five
    assert federation.client_ids(federation.clients()) == ["12", "2880"]
    with pytest.raises(BadInputError, match="minimum_samples is 6, but nobody has more than 5 samples"):
        load(folder, minimum_samples=6)
    few = [load(folder, minimum_samples=1, fraction=0.01, sampling_seed=seed) for seed in range(8)]
    assert {federation.num_clients for federation in few} == {1}
    assert len({federation.client_ids([0])[0] for federation in few}) > 1


def test_splits(folder: Path) -> None:
    inside = load(folder, split="within_client", train_fraction=0.6, validation_fraction=0.2)
    sizes = [len(samples_of(inside, "12", part)["y"]) for part in ("train", "validation", "test")]
    assert sizes == [3, 1, 1]
    apart = load(folder, train_fraction=0.5)
    assert (len(apart.clients("train")), len(apart.clients("test"))) == (1, 1)


def test_built_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(folder)
    monkeypatch.setattr(celeba, "open_tree", None)
    assert load(folder).path == first.path
    shutil.rmtree(folder)
    assert load(folder).path == first.path


def test_what_is_missing(folder: Path, tmp_path: Path) -> None:
    (folder / ATTRIBUTES).unlink()
    (folder / PICTURES).unlink()
    with pytest.raises(
        BadInputError,
        match=r"lacks list_attr_celeba\.txt, img_align_celeba\.zip; .*CelebA\.html says where to get them",
    ):
        load(folder)
    with pytest.raises(BadInputError, match=r"There is no folder .*nowhere with the files of CelebA"):
        load(tmp_path / "nowhere")


def test_other_files_than_the_published_ones(folder: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"is not the published identity_CelebA\.txt: its checksum differs"):
        load(folder, verify=True)


def test_a_truncated_archive(folder: Path) -> None:
    path = folder / PICTURES
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DamagedFileError, match=r"img_align_celeba\.zip is not a complete \.zip"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "number", "line", "sentence"),
    [
        (IDENTITIES, 3, b"000003.jpg", "line 3 must have the name of a picture and the number of a person"),
        (IDENTITIES, 4, b"000004.jpg 7 1", "line 4 must have the name .* not '000004.jpg 7 1'"),
        (IDENTITIES, 5, b"000005.jpg Ann", "line 5 must have the name"),
        (IDENTITIES, 5, b"000005.jpg " + b"9" * 5000, "line 5 must have the name"),
        (IDENTITIES, 6, b"000002.jpg 2937", "line 6: there was a line on 000002.jpg before"),
        (IDENTITIES, 7, b"999999.jpg 2880", "line 7: .*list_attr_celeba.txt has no line on 999999.jpg"),
        (IDENTITIES, 2, b"000002.jpg \xff\xfe", "line 2: this is not UTF-8 text"),
        (ATTRIBUTES, 1, b"image_id Male", "line 1 must be the number of pictures, not 'image_id Male'"),
        (ATTRIBUTES, 1, b"9" * 5000, "line 1 must be the number of pictures, not '9{40}'"),
        (ATTRIBUTES, 4, b"000002.jpg 1 1 1", "line 4 has 4 columns; .* and 4 attributes"),
        (ATTRIBUTES, 5, b"000003.jpg 1 1 2 1", "line 5: Smiling must be 1 or -1, not '2'"),
        (ATTRIBUTES, 6, b"000001.jpg 1 1 1 1", "line 6: there was a line on 000001.jpg before"),
        (ATTRIBUTES, 7, b"\x80", "line 7: this is not UTF-8 text"),
        (ATTRIBUTES, 15, b"", "is damaged: line 1 promises 13 pictures, and 12 follow"),
    ],
)
def test_wrong_lines(folder: Path, name: str, number: int, line: bytes, sentence: str) -> None:
    replace_line(folder, name, number, line)
    with pytest.raises(BadInputError, match=sentence) as refusal:
        load(folder)
    assert str(refusal.value).startswith(str(folder / name))


def test_a_byte_order_mark(folder: Path) -> None:
    for name in (IDENTITIES, ATTRIBUTES):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    assert load(folder, minimum_samples=1).num_samples == len(PEOPLE)


def test_an_empty_file(folder: Path) -> None:
    (folder / ATTRIBUTES).write_text("13\n")
    with pytest.raises(BadInputError, match=r"has no such attribute; there are none"):
        load(folder)
    (folder / ATTRIBUTES).write_text("\u00a0", encoding="utf-8")  # a space that bytes.strip leaves
    with pytest.raises(BadInputError, match=r"line 1 must be the number of pictures, not ''"):
        load(folder)
    (folder / IDENTITIES).write_text("")
    (folder / ATTRIBUTES).write_text("")
    with pytest.raises(BadInputError, match=r"list_attr_celeba\.txt is empty"):
        load(folder)


def without_two(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in contents.items() if "000004" not in name and "000012" not in name}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (without_two, r"img_align_celeba\.zip lacks 2 of the pictures that .*identity_CelebA\.txt names: 000004\.jpg"),
        (
            lambda contents: {**contents, "img_align_celeba/000009.jpg": jpeg(9)[:-200]},
            r"img_align_celeba/000009\.jpg in .*img_align_celeba\.zip is not a picture that can be read",
        ),
        (
            lambda contents: {**contents, "other/000009.jpg": jpeg(1)},
            r"celeba\.zip has two pictures of the same name, img_align_celeba/000009\.jpg and other/000009\.jpg",
        ),
    ],
)
def test_missing_and_damaged_pictures(
    folder: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]], sentence: str
) -> None:
    save_pictures(folder, change(pictures()))
    with pytest.raises(BadInputError, match=sentence):
        load(folder)
    assert not list(cache_folder().glob(".*.tmp"))
