"""What every role says, from files in the published layouts: nothing lost, nothing that is not said."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from play_files import BREAD, DIALOGUE, GUTENBERG, OMELET, write_zip

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.plays import Role, read_bosak, read_dialogue, read_gutenberg

FINE, PRINCE, MISTAKES = "ALLS FINE THAT ENDS FINE", "THE TRAGEDY OF A PRINCE", "THE COMEDY OF MISTAKES"
PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "shakespeare"


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_gutenberg_without_stage_directions(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "1994-01-100.zip", {"100.txt": GUTENBERG.replace("\n", "\r\n")})
    roles = read_gutenberg(archive, "speech")
    assert {(role.play, role.name): role.text.split("\n") for role in roles} == {
        (FINE, "KING"): ["Good morrow to you all. The sun is up,", "and so am I.", "Night falls."],
        (FINE, "HELENA"): ["My liege, I bring you news", "from the south, and bread.", "It does."],
        (FINE, "SIR TOBY"): [
            "Bread!",
            "Who is this?",
            "A song, then!",
            "It was a baker and his loaf,",
            "With a hey, and a crust,",
            "That over the table did pass,",
            "In the baking time.",
            "How well they sing!",
        ],
        (FINE, "PAGE"): ["Only me, sir."],
        (PRINCE, "BER"): ["Who's there?", "Long live the King!"],
        (PRINCE, "FRAN"): ["Nay, answer me. Stand", "and unfold yourself."],
        (PRINCE, "MRS. PAGE"): ["I am from another play."],
        (MISTAKES, "DUKE"): [
            "Proceed, good Dromio,",
            "and be brief. I wait.",
            "What noise is this?",
            "I thought as much.",
            "Here he comes again.",
        ],
        (MISTAKES, "DROMIO OF ROME"): ["A cat, my lord.", "Sir, it was", "a dog."],
    }
    assert [role.id for role in roles][2] == "ALLS_FINE_THAT_ENDS_FINE_SIR_TOBY"


def test_gutenberg_as_leaf_reads_it(tmp_path: Path) -> None:
    roles = read_gutenberg(written(tmp_path / "100.txt", GUTENBERG), "leaf")
    assert {(role.play, role.name): role.text for role in roles} == {
        (FINE, "KING"): "Good morrow to you all. The sun is up, and so am I. [Rises] Night falls. ",
        (
            FINE,
            "HELENA",
        ): "[To the KING] My liege, I bring you news from the south, [Shows a letter] and bread. Exit It does. ",
        (FINE, "SIR TOBY"): (
            "Bread! Enter a PAGE Who is this? A song, then! SONG. It was a baker and his loaf, "
            "With a hey, and a crust, That over the table did pass, In the baking time. The trumpet sounds. All dance. "
        ),
        # Those who say one or two lines are left out, but directions are lines.
        (FINE, "PAGE"): "Only me, sir. Exeunt all but KING ",
        (MISTAKES, "DUKE"): (
            "Proceed, good Dromio, and be brief. I wait. [Noise within] What noise is this? "
            "I thought as much. Enter DROMIO OF ROME Here he comes again. "
        ),
        (MISTAKES, "AND MAY BE DISTRIBUTED"): "SO LONG AS NOBODY IS CHARGED.>> " * 2,
        (MISTAKES, "DROMIO OF ROME"): "A cat, my lord. Sir, it was a dog. ",
    }


def test_bosak(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "plays.zip", {"a/omelet.xml": OMELET, "a/play.dtd": "", "a/bread.xml": BREAD})
    roles = read_bosak(archive)
    assert {role.id: (role.play, role.text) for role in roles} == {
        "THE_TRAGEDY_OF_OMELET_PRINCE_OF_EGGS_OMELET": (
            "The Tragedy of Omelet, Prince of Eggs",
            "To fry, or not to fry:\nthat is the question.",
        ),
        "THE_TRAGEDY_OF_OMELET_PRINCE_OF_EGGS_NURSE": (
            "The Tragedy of Omelet, Prince of Eggs",
            "Butter & salt!\nStir.",
        ),
        "THE_TRAGEDY_OF_OMELET_PRINCE_OF_EGGS_POACHED_AND_SCRAMBLED": (
            "The Tragedy of Omelet, Prince of Eggs",
            "We both.\nAgain.",
        ),
        "BREAD_NURSE": ("Bread", "Knead it."),
    }
    folder = tmp_path / "plays"
    folder.mkdir()
    written(folder / "omelet.xml", OMELET)
    written(folder / "bread.xml", BREAD)
    assert sorted(read_bosak(folder), key=lambda role: role.id) == sorted(roles, key=lambda role: role.id)


def test_dialogue(tmp_path: Path) -> None:
    assert read_dialogue(written(tmp_path / "tiny.txt", DIALOGUE)) == [
        Role("", "FIRST COOK", "Before we proceed, hear me:\nspeak not.\nYou are resolved?"),
        Role("", "ALL", "Speak, speak."),
    ]


@pytest.mark.parametrize("reading", ["speech", "leaf"])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nothing\nat all\n", "100.txt has no speaking role: this must be Gutenberg's edition of 1994"),
        ("THE POEM\n\nby William Shakespeare\n\n  It rhymes. It has no act.\n", "has no speaking role"),
        (GUTENBERG.encode().replace(b"  Ber. Who's", b"  Ber. Who\x92s"), r"100.txt, line 110: byte 0x92 is not UTF-8"),
        ("\n" * 9 + "by William Shakespeare\n", "100.txt, line 10: there is no title above"),
        (GUTENBERG + "\n\nTHE TRAGEDY OF A PRINCE\n\nby William Shakespeare\n", "is there twice, before in .*line 103"),
    ],
)
def test_texts_that_are_not_gutenbergs(tmp_path: Path, reading: str, text: str | bytes, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence) as refusal:
        read_gutenberg(written(tmp_path / "100.txt", text), reading)
    assert str(tmp_path / "100.txt") in str(refusal.value)


@pytest.mark.parametrize(
    ("play", "sentence"),
    [
        (OMELET.replace("</SPEECH>", "", 1), r"b.xml, line 8: the XML is malformed at column 92: mismatched tag"),
        (OMELET[:400], r"b.xml, line \d+: the XML is malformed .*: "),
        (b"<PLAY><TITLE>\xe9</TITLE></PLAY>", "b.xml, line 1: the XML is malformed"),
        ("<PLAY><PERSONAE/></PLAY>", "b.xml is not a play: it must be a PLAY with a TITLE, not PLAY ''"),
        ("<BOOK><TITLE>A</TITLE></BOOK>", "b.xml is not a play: .*, not BOOK 'A'"),
        (BREAD.replace("Bread", "BREAD "), r"b.xml: the play 'BREAD' is there twice, before in .*a.xml"),
    ],
)
def test_plays_that_cannot_be_read(tmp_path: Path, play: str | bytes, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        read_bosak(write_zip(tmp_path / "plays.zip", {"a.xml": BREAD, "b.xml": play}))


def test_archives_without_plays_and_plays_without_roles(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"plays.zip has no plays: it must hold XML files"):
        read_bosak(write_zip(tmp_path / "plays.zip", {"readme.txt": "none"}))
    with pytest.raises(BadInputError, match=r"plays.zip has no speaking role: no SPEECH"):
        read_bosak(write_zip(tmp_path / "plays.zip", {"a.xml": "<PLAY><TITLE>A</TITLE></PLAY>"}))
    with pytest.raises(BadInputError, match=r"must hold one .txt file with the complete works, not 2"):
        read_gutenberg(write_zip(tmp_path / "two.zip", {"100.txt": GUTENBERG, "more.txt": ""}), "speech")


def test_what_file_managers_leave_is_no_play(tmp_path: Path) -> None:
    left = {"__MACOSX/._a.xml": b"\0\5\x16\7", "._a.xml": b"\0\5\x16\7"}
    roles = read_bosak(write_zip(tmp_path / "plays.zip", {"a.xml": BREAD, **left}))
    assert [role.id for role in roles] == ["BREAD_NURSE"]
    (tmp_path / "plays" / "__MACOSX").mkdir(parents=True)
    for name, content in {"a.xml": BREAD, **left}.items():
        written(tmp_path / "plays" / name, content)
    assert read_bosak(tmp_path / "plays") == roles
    texts = write_zip(tmp_path / "1994-01-100.zip", {"100.txt": GUTENBERG, "__MACOSX/._100.txt": b"\0\5\x16\7"})
    assert len(read_gutenberg(texts, "speech")) == 9


def test_elements_in_elements(tmp_path: Path) -> None:
    nested = "<B>" * 20_000 + "all " + "</B>" * 20_000
    line = f"<LINE>Knead <STAGEDIR>with <B>both</B> hands</STAGEDIR><B>it</B>, {nested}day.</LINE>"
    (role,) = read_bosak(written(tmp_path / "a.xml", BREAD.replace("<LINE>Knead it.</LINE>", line)))
    assert role.text == "Knead it, all day."


def test_damaged_archives(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "plays.zip", {"a.xml": BREAD * 50})
    whole = archive.read_bytes()
    for damaged in (
        whole[:-30],
        whole[: len(whole) // 2],
        whole[:60] + bytes([whole[60] ^ 255]) + whole[61:],
        whole[:-5] + b"\xff" + whole[-4:],  # members that begin before the file does
    ):
        archive.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"plays.zip is damaged: it cannot be unpacked"):
            read_bosak(archive)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "COOK:\nHear me.\n\nI have no name.\n",
            "line 4: a speech must begin with a line 'NAME:', not 'I have no name.'",
        ),
        ("COOK:\n\nGHOST:\n", "has no speaking role"),
        (b"COOK:\nHear me.\n\nCAF\xc9:\nNo.\n", "line 4: byte 0xc9 is not UTF-8"),
        (b"\n", "is empty"),
    ],
)
def test_dialogues_that_cannot_be_read(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence) as refusal:
        read_dialogue(written(tmp_path / "tiny.txt", text))
    assert str(tmp_path / "tiny.txt") in str(refusal.value)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_the_published_xml() -> None:
    roles = read_bosak(PUBLISHED / "nltk_shakespeare_xml.zip")
    assert len({role.play for role in roles}) == 8
    # 297 different first SPEAKERs, of whom one is empty and two are spelled in two ways, and one who always speaks with
    # others; ten groups of people who speak together.
    assert len(roles) == 297 - 1 - 2 - 1 + 10
    assert sum(len(role.text) for role in roles) == 929_993
    assert sum(len(role.text) >= 1000 for role in roles) == 127
    hamlet = next(role for role in roles if role.id == "THE_TRAGEDY_OF_HAMLET_PRINCE_OF_DENMARK_HAMLET")
    assert hamlet.text.startswith("A little more than kin, and less than kind.\n")
    assert hamlet.text.endswith("The rest is silence.")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_every_word_of_the_published_xml_is_said_once() -> None:
    import zipfile

    said = unsaid = 0
    with zipfile.ZipFile(PUBLISHED / "nltk_shakespeare_xml.zip") as archive:
        for name in archive.namelist():
            if name.endswith(".xml"):
                play = ElementTree.fromstring(archive.read(name))
                for speech in play.iter("SPEECH"):
                    words = sum(len("".join(line.itertext()).split()) for line in speech.iter("LINE"))
                    done = sum(
                        len((d.text or "").split()) for line in speech.iter("LINE") for d in line.iter("STAGEDIR")
                    )
                    said += words - done
                    unsaid += 0 if speech.findtext("SPEAKER") else words - done
    roles = read_bosak(PUBLISHED / "nltk_shakespeare_xml.zip")
    assert sum(len(role.text.split()) for role in roles) == said - unsaid


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_the_published_dialogue() -> None:
    path = PUBLISHED / "tinyshakespeare.txt"
    roles = read_dialogue(path)
    # 309 names, of which ten ghosts say nothing, and seven differ only in case or spaces from others.
    assert len(roles) == 309 - 10 - 7
    assert sum(len(role.text) >= 1000 for role in roles) == 142
    text = path.read_text()
    assert len(text) == 1_115_394
    spoken = sum(len(block.partition(":\n")[2].strip().split("\n")) for block in text.split("\n\n") if ":\n" in block)
    assert sum(len(role.text.split("\n")) for role in roles) == spoken
