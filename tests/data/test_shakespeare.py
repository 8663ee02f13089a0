"""Shakespeare: roles as clients, samples of both kinds, and no character both in training and in testing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from alphabets import decode, decode_sequences
from hypothesis import given
from hypothesis import strategies as st
from play_files import BREAD, DIALOGUE, GUTENBERG, OMELET, write_zip

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation, load_federation
from fedarena.data.splits import PARTS, Split, split_samples
from fedarena.data.text.characters import ASCII, LEAF_LETTERS, Sequences, Windows
from fedarena.data.text.sequences import PADDING

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "shakespeare"
FIRST_CODE = 1000  # so that neither padding nor an unknown letter is the code of a position
BOTH = pytest.mark.parametrize("kind", [Sequences, Windows])
PERCENT = st.integers(1, 98).flatmap(lambda train: st.tuples(st.just(train), st.integers(0, 99 - train)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "raw"
    place.mkdir()
    return place


def load(folder: Path, **options: object) -> Federation:
    return load_federation("shakespeare", {"folder": str(folder), "verify": False, **options})


def gutenberg(folder: Path) -> Path:
    write_zip(folder / "1994-01-100.zip", {"100.txt": GUTENBERG})
    return folder


def samples_of(federation: Federation, client: str, part: str = "train") -> dict[str, np.ndarray]:
    place = federation.client_ids(federation.clients()).index(client)
    return federation.samples([place], part).columns


@BOTH
@given(percent=PERCENT, characters=st.integers(0, 300), length=st.integers(1, 40))
def test_no_character_is_in_two_parts(kind: type, percent: tuple[int, int], characters: int, length: int) -> None:
    """Every character has a code of its own: its position."""
    positions = FIRST_CODE + np.arange(characters)
    division = Split("within_client", percent[0] / 100, percent[1] / 100, 0)
    parts = kind(length).divide(positions, division, 0, "train")
    seen = [{int(code) for column in parts[part].values() for code in column.ravel()} - {PADDING} for part in PARTS]
    assert seen[0] | seen[1] | seen[2] <= set(positions.tolist())
    for earlier, later in ((0, 1), (1, 2), (0, 2)):
        assert not seen[earlier] & seen[later]
        if seen[earlier] and seen[later]:
            assert max(seen[earlier]) < min(seen[later])


@BOTH
@given(characters=st.integers(0, 300), length=st.integers(1, 40))
def test_by_client_every_character_that_can_be_a_label_is_one(kind: type, characters: int, length: int) -> None:
    positions = FIRST_CODE + np.arange(characters)
    columns = kind(length).divide(positions, Split("by_client", 0.8, 0.0, 0), 0, "test")["test"]
    if kind is Sequences:
        labels, first = columns["tokens"][:, 1:].ravel(), 1
        labels = labels[labels != PADDING]
    else:
        labels, first = columns["y"], length
        assert (columns["x"] == columns["y"][:, None] - np.arange(length, 0, -1)).all()
    assert labels.tolist() == positions[first:].tolist()
    assert len(next(iter(columns.values()))) == kind(length).count(positions)


def test_a_gap_of_one_window_less_would_share_a_character() -> None:
    length = 80
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(1000), length + 1)
    for gap, shared in ((length, []), (length - 1, [815])):
        train, _, test = split_samples(len(windows), (0.8, 0.0, 0.2), order="in_order", gap=gap)
        assert np.intersect1d(windows[train], windows[test]).tolist() == shared


@BOTH
def test_what_the_gap_costs(kind: type) -> None:
    """Windows lose as many samples as they are long; of sequences only the character where they meet is no label."""
    positions = FIRST_CODE + np.arange(1000)
    parts = kind(80).divide(positions, Split("within_client", 0.8, 0.0, 0), 0, "train")
    if kind is Windows:
        assert [len(parts[part]["y"]) for part in PARTS] == [736, 0, 920 - 736 - 80]
        assert parts["train"]["y"][-1] + 1 == parts["test"]["x"][0, 0]
    else:
        assert [len(parts[part]["tokens"]) for part in PARTS] == [10, 0, 3]
        assert parts["test"]["tokens"][0, :2].tolist() == [1800, 1801]


def test_leafs_letters_have_leafs_numbers() -> None:
    assert len(LEAF_LETTERS) == 80 + 1
    assert LEAF_LETTERS.encode("\n Aa}é<").tolist() == [0, 1, 25, 53, 79, 80, 80]
    assert decode(LEAF_LETTERS, LEAF_LETTERS.encode("Words, words.")) == "Words, words."


def test_what_follows_a_window_must_be_a_letter() -> None:
    tokens = LEAF_LETTERS.encode("abcé" * 3)
    columns = Windows(2).divide(tokens, Split("by_client", 0.8, 0.0, 0), 0, "train")["train"]
    assert [decode(LEAF_LETTERS, x) for x in columns["x"]] == [
        "ab",
        "c\ufffd",
        "\ufffda",
        "ab",
        "c\ufffd",
        "\ufffda",
        "ab",
    ]
    assert decode(LEAF_LETTERS, columns["y"]) == "cabcabc"
    assert Windows(2).count(tokens) == 7


def test_windows_as_leaf_makes_them(folder: Path) -> None:
    federation = load(gutenberg(folder), reading="leaf", samples="windows", sequence_length=10, split="by_client")
    samples = samples_of(federation, "THE_COMEDY_OF_MISTAKES_DROMIO_OF_ROME", "all")
    text = "A cat, my lord. Sir, it was a dog. "
    assert [decode(LEAF_LETTERS, x) for x in samples["x"]] == [text[i : i + 10] for i in range(len(text) - 10)]
    assert decode(LEAF_LETTERS, samples["y"]) == text[10:]
    assert (federation.task.kind, federation.task.classes, federation.task.tokens) == ("classification", 80, 81)
    ids = federation.client_ids(federation.clients())
    plays = federation.attributes(federation.clients())["play"]
    assert dict(zip(ids, plays, strict=True)) == {
        **{
            f"ALLS_FINE_THAT_ENDS_FINE_{role}": "ALLS FINE THAT ENDS FINE"
            for role in ("KING", "HELENA", "SIR_TOBY", "PAGE")
        },
        **{
            f"THE_COMEDY_OF_MISTAKES_{role}": "THE COMEDY OF MISTAKES"
            for role in ("DUKE", "DROMIO_OF_ROME", "AND_MAY_BE_DISTRIBUTED")
        },
    }


def test_sequences_within_clients(folder: Path) -> None:
    federation = load(gutenberg(folder), sequence_length=20)
    assert (federation.task.kind, federation.task.classes) == ("next_token", 98)
    duke = "Proceed, good Dromio,\nand be brief. I wait.\nWhat noise is this?\nI thought as much.\nHere he comes again."
    parts = [samples_of(federation, "THE_COMEDY_OF_MISTAKES_DUKE", part)["tokens"] for part in ("train", "test")]
    texts = [decode_sequences(ASCII, tokens) for tokens in parts]
    assert "".join(texts) == duke
    assert len(texts[0]) == round(0.8 * len(duke))


def test_who_is_too_short_to_be_tested_is_left_out(folder: Path) -> None:
    options = {"samples": "windows", "sequence_length": 10}
    everybody = load(gutenberg(folder), split="by_client", **options)
    divided = load(folder, **options)
    within = set(divided.client_ids(divided.clients()))
    assert within < set(everybody.client_ids(everybody.clients()))
    for client, size in zip(
        everybody.client_ids(everybody.clients()), everybody.counts(everybody.clients()), strict=True
    ):
        tested = len(split_samples(int(size), (0.8, 0.0, 0.2), order="in_order", gap=10)[2])
        assert (client in within) == (tested > 0)
    assert (divided.counts(divided.clients(), "train") > 0).all()
    assert (divided.counts(divided.clients(), "test") > 0).all()
    with pytest.raises(BadInputError, match=r"No role of .*100.zip has enough text for a train and a test part"):
        load(folder, samples="windows", sequence_length=60)


def test_users_are_sampled_as_in_leaf(folder: Path) -> None:
    everybody = load(gutenberg(folder), sequence_length=5, split="by_client")
    sizes = everybody.counts(everybody.clients())
    some = load(folder, sequence_length=5, split="by_client", fraction=0.4, sampling_seed=3)
    assert 0.4 * sizes.sum() <= some.num_samples < 0.4 * sizes.sum() + sizes.max()
    large = load(folder, sequence_length=5, split="by_client", minimum_samples=10)
    assert large.num_clients == (sizes >= 10).sum() < len(sizes)


def test_which_form_is_read(folder: Path) -> None:
    (folder / "tinyshakespeare.txt").write_text(DIALOGUE)
    dialogue = load(folder, split="by_client")
    assert dialogue.client_ids(dialogue.clients()) == ["FIRST_COOK", "ALL"]
    assert dialogue.manifest.attributes == {}
    (folder / "shakespeare").mkdir()
    (folder / "shakespeare" / "omelet.xml").write_text(OMELET)
    xml = load(folder, split="by_client")
    assert set(xml.attributes(xml.clients())["play"]) == {"The Tragedy of Omelet, Prince of Eggs"}
    gutenberg(folder)
    assert "THE_TRAGEDY_OF_A_PRINCE_BER" in load(folder, split="by_client").client_ids([4])
    again = load(folder, split="by_client", format="xml")
    assert again.client_ids(again.clients()) == xml.client_ids(xml.clients())
    with pytest.raises(BadInputError, match=r"reading=leaf is a way to read Gutenberg's text, not .*raw/shakespeare$"):
        load(folder, format="xml", reading="leaf")


def test_files_that_are_missing_or_not_the_published_ones(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        BadInputError, match=r"raw holds none of the files of Shakespeare; it must hold one of 1994-01-100.zip, shak"
    ):
        load(folder)
    with pytest.raises(BadInputError, match=r"There is no folder .*nowhere with the files of Shakespeare"):
        load(tmp_path / "nowhere")
    (folder / "tinyshakespeare.txt").write_text(DIALOGUE)
    with pytest.raises(
        BadInputError, match=r"format is xml, but .*raw has no shakespeare.zip; it has tinyshakespeare.txt"
    ):
        load(folder, format="xml")
    with pytest.raises(DamagedFileError, match=r"is not the published tinyshakespeare.txt: its checksum differs"):
        load(folder, verify=True)


def test_nothing_is_left_of_a_store_that_could_not_be_built(folder: Path, built_once: Path) -> None:
    before = set(built_once.iterdir())
    archive = write_zip(folder / "shakespeare.zip", {"a.xml": BREAD})
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(DamagedFileError, match=r"shakespeare.zip is damaged: it cannot be unpacked"):
        load(folder)
    write_zip(archive, {"a.xml": BREAD})
    with pytest.raises(BadInputError, match="minimum_samples is 50, but nobody has more than 1 samples"):
        load(folder, minimum_samples=50)
    assert set(built_once.iterdir()) == before


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_the_published_xml() -> None:
    federation = load(PUBLISHED, verify=True)
    assert federation.num_clients == 302  # one says less than the ten characters it takes to be trained and tested on
    assert federation.label_counts[ASCII.unknown] == 0
    assert len(set(federation.attributes(federation.clients())["play"])) == 8
    windows = load(PUBLISHED, samples="windows", split="by_client")
    assert windows.num_clients == 252  # who says more than 80 characters
    assert windows.num_samples == 907_620
