"""Archives read in place, against Python's zipfile; broken ones get a sentence, wherever they are broken."""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path

import pytest

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.raw.trees import RawTree, open_tree

CONTENTS = {
    "top/b/2.png": b"two" * 50,
    "top/b/10.png": b"ten",
    "top/a/1.png": bytes(range(256)),
    "top/a/empty.png": b"",
    "top/a/list.mit": b"not asked for",
}
PICTURES = re.compile(r"\.png$")
SORTED = ["top/a/1.png", "top/a/empty.png", "top/b/10.png", "top/b/2.png"]


def write_archive(path: Path, method: int = zipfile.ZIP_DEFLATED, comment: bytes = b"") -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.comment = comment
        archive.mkdir("top")
        for name, content in CONTENTS.items():
            archive.writestr(name, content)
    return path


def everything(tree: RawTree) -> dict[str, bytes]:
    return {name: tree.read(index) for index, name in enumerate(tree.names)}


@pytest.mark.parametrize(
    ("method", "comment"),
    [(zipfile.ZIP_STORED, b""), (zipfile.ZIP_DEFLATED, b"made by a test"), (zipfile.ZIP_DEFLATED, b"x" * 0xFFFF)],
)
def test_an_archive_and_its_folder_are_alike(tmp_path: Path, method: int, comment: bytes) -> None:
    path = write_archive(tmp_path / "all.zip", method, comment)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "unpacked")
        infos = [archive.getinfo(name) for name in SORTED]
    keys = [info.file_size << 32 | info.CRC for info in infos]
    for place in (path, tmp_path / "unpacked"):
        with open_tree(place, PICTURES) as tree:
            assert tree.names == SORTED
            assert everything(tree) == {name: CONTENTS[name] for name in SORTED}
            assert tree.keys(lambda done: None).tolist() == keys
            assert tree.read(3) == tree.read(3)  # in any order, again and again


@pytest.mark.slow
def test_large_archives_have_longer_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of more than 65,535 members or 4 GB; zipfile is made to believe that this is one."""
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 2)
    path = write_archive(tmp_path / "all.zip")
    assert b"PK\x06\x06" in path.read_bytes()
    with open_tree(path, PICTURES) as tree:
        assert everything(tree) == {name: CONTENTS[name] for name in SORTED}
    check_every_cut(path)
    check_every_byte(path)


def check_every_cut(path: Path) -> None:
    whole = path.read_bytes()
    cut = path.with_name("cut.zip")
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with (
            pytest.raises(DamagedFileError, match=r"cut\.zip is (damaged|not a complete \.zip)"),
            open_tree(cut, PICTURES) as tree,
        ):
            everything(tree)


def check_every_byte(path: Path) -> None:
    """Whatever byte is wrong, no member ever has a content that it did not have."""
    whole = bytearray(path.read_bytes())
    changed = path.with_name("changed.zip")
    refused = 0
    for place in range(len(whole)):
        for mask in (0xFF, 0x01):
            whole[place] ^= mask
            changed.write_bytes(whole)
            whole[place] ^= mask
            try:
                with open_tree(changed, PICTURES) as tree:
                    found = everything(tree)
            except BadInputError:
                refused += 1
                continue
            assert all(CONTENTS[name] == content for name, content in found.items() if name in CONTENTS)
    assert refused > len(whole) // 2


@pytest.mark.slow
def test_a_cut_archive_and_wrong_bytes(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "all.zip")
    check_every_cut(path)
    check_every_byte(path)


def test_members_that_are_not_counted(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "all.zip")
    whole = bytearray(path.read_bytes())
    whole[-12] -= 1  # the number of members
    path.write_bytes(whole)
    with pytest.raises(DamagedFileError, match=r"table of contents that ends a \.zip is broken"):
        open_tree(path, PICTURES)


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "page.zip").write_bytes(b"<html>Sorry, too many downloads</html>")
    with pytest.raises(DamagedFileError, match=r"page\.zip is not a complete \.zip"):
        open_tree(tmp_path / "page.zip", PICTURES)
    with pytest.raises(BadInputError, match=r"nothing\.zip cannot be read: No such file"):
        open_tree(tmp_path / "nothing.zip", PICTURES)


def test_an_archive_that_must_be_unpacked_first(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "all.zip", zipfile.ZIP_BZIP2)
    with open_tree(path, PICTURES) as tree, pytest.raises(BadInputError, match=r"compressed in an unusual way; unpack"):
        everything(tree)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"one")
    with open_tree(tmp_path, PICTURES) as tree:
        assert tree.keys(lambda done: None).tolist() == [3 << 32 | zlib.crc32(b"one")]
        (tmp_path / "1.png").unlink()
        with pytest.raises(BadInputError, match=r"1\.png cannot be read: No such file"):
            tree.read(0)


def test_links_to_folders(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1.png").write_bytes(b"one")
    (tmp_path / "all" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "all" / "same").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "all" / "nowhere.png").symlink_to(tmp_path / "nowhere.png")
    with open_tree(tmp_path / "all", PICTURES) as tree:
        assert everything(tree) == {"link/1.png": b"one", "same/1.png": b"one"}
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "all")
    with pytest.raises(BadInputError, match="back is a link to a folder that it is in"):
        open_tree(tmp_path / "all", PICTURES)


def test_two_members_with_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.png", b"1")
        archive.writestr("b.png", b"2")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.png", b"3")
    with pytest.raises(BadInputError, match=r"all\.zip has the file a\.png twice"):
        open_tree(path, PICTURES)


def test_names_that_are_not_utf_8_stay_apart_as_in_zipfile(tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("Zo1/a.png", "Zo2/a.png", "Zo3/a.png", "Zoé.png"):  # the last one says that it is UTF-8
            archive.writestr(name, name)
    content = path.read_bytes().replace(b"Zo1/", b"Zo\x82/").replace(b"Zo2/", b"Zo\x89/")
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive, open_tree(path, PICTURES) as tree:
        assert tree.names == sorted(archive.namelist()) == ["Zo3/a.png", "Zoé.png", "Zoé/a.png", "Zoë/a.png"]
    path.write_bytes(content.replace("Zoé.png".encode(), b"Zo\xff\xff.png"))
    with pytest.raises(DamagedFileError, match=r"the table of contents .* is broken"):
        open_tree(path, PICTURES)


def test_names_that_are_utf_8_without_saying_so(tmp_path: Path) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("Zo12/a.png", "as a Mac writes it")
    path.write_bytes(path.read_bytes().replace(b"Zo12/", "Zoé/".encode()))
    with open_tree(path, PICTURES) as tree:
        assert tree.names == ["Zoé/a.png"]
