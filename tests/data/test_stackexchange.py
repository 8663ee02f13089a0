"""Posts of Stack Exchange with their tags: small dumps in the published form, and two real ones."""

from __future__ import annotations

import bz2
import gzip
import lzma
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from interrupted_builds import build_in_spite_of_interruptions
from post_files import POSTS, dump, load, posts_of, write

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.many_users import buckets, posts
from fedarena.data.many_users.posts import labels_of_bits, tag_bits, tag_columns

REAL = Path(__file__).parents[3] / "shared" / "data" / "stackexchange"


def test_everybody_has_their_posts_with_the_tags_of_questions(tmp_path: Path) -> None:
    federation = load(write(tmp_path))
    assert posts_of(federation) == {
        "7": [("which hops ? are hops < 3 ?", ["hops"]), ("very", ["history"])],
        "8": [("citra hops", ["hops"]), ("old ale how old", ["history"])],
        "9": [("answers hops", ["hops"])],
    }
    task = federation.task
    assert (task.kind, task.classes, task.label_names) == ("multi_label", 2, ("hops", "history"))
    assert (task.padding, task.unknown, federation.columns["x"].shape) == (0, 1, (100,))
    assert federation.notes == (
        "Posts that were left out because their owner was deleted: 2.",
        "Answers that were left out because their question is not there: 1.",
    )


def test_options(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert posts_of(load(folder, posts="questions", length=2)) == {
        "7": [("which hops", ["hops"])],
        "8": [("old ale", ["history"])],
    }
    assert sorted(posts_of(load(folder, posts="answers"))) == ["7", "8", "9"]
    everything = posts_of(load(folder, untagged="kept"))
    assert ("rare", []) in everything["9"]
    assert sum(map(len, everything.values())) == 6
    assert load(folder, tags=4).task.label_names == ("hops", "history", "taste", "rare")
    assert load(folder, vocabulary=3).task.token_names == ("<PAD>", "<UNK>", "hops")
    assert sorted(posts_of(load(folder, minimum_samples=2))) == ["7", "8"]


@pytest.mark.parametrize(("ending", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress), (".bz2", bz2.compress)])
def test_packed_dumps_are_the_same(tmp_path: Path, ending: str, pack) -> None:
    plain, packed = write(tmp_path / "plain"), write(tmp_path / "packed", pack(dump()), f"beer_Posts.xml{ending}")
    assert posts_of(load(packed)) == posts_of(load(plain))
    write(tmp_path / "packed", pack(dump())[:-20], f"cut_Posts.xml{ending}")
    with pytest.raises(DamagedFileError, match=f"cut_Posts.xml{ending} is damaged"):
        load(packed, site="cut")


def test_several_sites(tmp_path: Path) -> None:
    write(tmp_path, dump(POSTS[:1]), "ale_Posts.xml")
    write(tmp_path, dump(), "beer/Posts.xml")
    with pytest.raises(BadInputError, match=r"has the posts of 2 sites; choose one with federation.site: ale, beer"):
        load(tmp_path)
    assert len(posts_of(load(tmp_path, site="ale"))) == 1
    assert len(posts_of(load(tmp_path, site="beer"))) == 3
    with pytest.raises(BadInputError, match=r"no posts of a site called 'bear'; did you mean 'beer'"):
        load(tmp_path, site="bear")


def test_many_tags_as_bits() -> None:
    tags = [f"tag{number}" for number in range(150)]
    of_posts = ["tag0 tag62", "tag63 other tag149", "", "tag64 tag125 tag126"]
    bits = tag_bits(of_posts, tags)
    labels = labels_of_bits(list(bits.T), 150)
    assert (bits.shape, len(tag_columns(150)), labels.shape) == ((4, 3), 3, (4, 150))
    assert [np.flatnonzero(row).tolist() for row in labels] == [[0, 62], [63, 149], [], [64, 125, 126]]


@pytest.mark.parametrize("form", ["one row a line", "everything in one line", "rows with an end tag", "packed"])
def test_an_interrupted_build_goes_on_and_gives_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    random = np.random.default_rng(1)
    rows = [
        {
            "Id": number,
            "PostTypeId": 1 if number <= 40 else 2,
            **({"Tags": f"<t{number % 5}><t{number % 3}>"} if number <= 40 else {"ParentId": random.integers(1, 41)}),
            "OwnerUserId": random.integers(30),
            "Body": "<p>" + " ".join(random.choice(list("äbcdefgh"), 5)) + "</p>",
        }
        for number in range(1, 201)
    ]
    content = dump(rows)
    if form == "everything in one line":
        content = content.replace(b"\n", b"")
    if form == "rows with an end tag":
        content = content.replace(b" />", b">\n</row>")
    folder = write(tmp_path / "raw", content if form != "packed" else lzma.compress(content))
    if form == "packed":
        (folder / "Posts.xml").rename(folder / "Posts.xml.xz")
    monkeypatch.setattr(posts, "BLOCK_BYTES", 997)
    monkeypatch.setattr(posts, "PIECE_BYTES", 1_500)
    monkeypatch.setattr(buckets, "CHECKPOINT_BYTES", 1_000)
    monkeypatch.setattr(buckets, "INPUT_BYTES_PER_BUCKET", 8_000)
    steps: list[float] = []
    whole = load(folder, lambda fraction, words: steps.append(fraction), tags=5)
    assert steps == sorted(steps)
    assert sum(len(found) for found in posts_of(whole).values()) == 200
    whole.path.rename(tmp_path / "whole")
    again, seen = build_in_spite_of_interruptions(lambda progress: load(folder, progress, tags=5), 3 * len(steps))
    assert again.fingerprint == whole.fingerprint
    assert len(seen) > (5 if form == "packed" else 15)


FIRST = {"Id": 1, "PostTypeId": 1, "OwnerUserId": 7, "Body": "a", "Tags": "<t>"}
ENTITIES = b'<!DOCTYPE posts [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;">]><posts><row Body="&b;"/></posts>'


@pytest.mark.parametrize(
    ("content", "kind", "sentence"),
    [
        (b"", BadInputError, "Posts.xml is empty"),
        (b"<users><row Id='1'/></users>", BadInputError, "no Posts.xml of a .* site: <users> is where <posts>"),
        (b"<posts><line/></posts>", BadInputError, "<line> is where <row> should be"),
        (b"<posts><row Id='1'><p/></row></posts>", BadInputError, "a row has content"),
        (b"Id,Body\n1,text\n", DamagedFileError, "after 0 complete rows it is no XML"),
        (dump()[:-300], DamagedFileError, "after \\d complete rows it is no XML"),
        (dump()[:-9], DamagedFileError, "is damaged"),
        (ENTITIES, BadInputError, "declares a document type"),
        (dump().replace(b"<posts>", b"<posts>\xff"), DamagedFileError, "is damaged"),
        (dump().replace(b"utf-8", b"iso-8859-1"), BadInputError, "is in 'iso-8859-1'; dumps .* are in UTF-8"),
        (dump([FIRST, {"PostTypeId": 1}]), BadInputError, "Row 2 of .* has no Id"),
        (dump([{**FIRST, "Id": "one"}]), BadInputError, "Row 1 of .* has the Id 'one', which is no number"),
        (dump([{"Id": 1}]), BadInputError, "Row 1 of .* has no PostTypeId"),
        (dump([{"Id": 2, "PostTypeId": 2}]), BadInputError, "Row 1 of .* has no ParentId"),
        (dump([FIRST, FIRST]), BadInputError, "has the post with Id 1 twice"),
        (dump([FIRST]), BadInputError, "posts with 1 different tags; federation.tags must not be above, unlike 2"),
        (dump([]), BadInputError, "posts with 0 different tags"),
    ],
)  # fmt: skip
def test_bad_dumps_are_one_sentence(tmp_path: Path, content: bytes, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence) as error:
        load(write(tmp_path, content))
    assert str(tmp_path / "Posts.xml") in str(error.value)
    assert type(error.value) is kind


def test_a_row_that_never_ends_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posts, "MAX_ROW_BYTES", 50_000)
    monkeypatch.setattr(posts, "BLOCK_BYTES", 10_000)
    content = dump()[: -len("</posts>")] + b'<row Body="' + b"x" * 200_000
    with pytest.raises(BadInputError, match="what begins after 9 rows does not end"):
        load(write(tmp_path, content))


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"holds none of the files of a Stack Exchange site; it must hold"):
        load(tmp_path)


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the dumps of two sites")
@pytest.mark.parametrize(("site", "file"), [("posts", "Posts.xml.xz"), ("matheducators", "matheducators_Posts.xml.xz")])
def test_real_sites_against_another_parser(site: str, file: str) -> None:
    """All posts that have an owner and one of the ten tags are there, counted with another XML parser."""
    with lzma.open(REAL / file) as opened:
        rows = [row.attrib for row in ElementTree.parse(opened).getroot()]
    tags_of = {row["Id"]: row["Tags"].strip("<>").split("><") for row in rows if row["PostTypeId"] == "1"}
    of_post = [
        (row["OwnerUserId"], tags_of[row["Id"] if row["PostTypeId"] == "1" else row["ParentId"]])
        for row in rows
        if row["PostTypeId"] in "12" and "OwnerUserId" in row
    ]
    frequent = Counter(tag for _, tags in of_post for tag in tags).most_common(10)
    federation = load(REAL, site=site, tags=10)
    kept = [(owner, tags) for owner, tags in of_post if {tag for tag, _ in frequent} & set(tags)]
    assert dict(zip(federation.task.label_names, federation.label_counts.tolist(), strict=True)) == dict(frequent)
    sizes = dict(zip(federation.client_ids(federation.clients()), federation.counts(federation.clients()), strict=True))
    assert sizes == Counter(owner for owner, _ in kept)
