"""Recordings by who speaks: words, sentences that are written down, and sentences alone; made and real ones."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from both_engines import agree
from picture_maps import HEADING, put, write_table
from publishers_files import groups_of, load, real
from wav_files import tone, wav

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.by_client import audio
from fedarena.data.by_client.audio import waveform


def test_waveforms_of_all_widths_and_channels() -> None:
    samples = np.array([0, 256, -512, 32512], dtype=np.int16)
    for width in (1, 2, 3):
        assert waveform(wav(samples, 16000, width), 16000, "a.wav").tolist() == samples.tolist()
    stereo = np.stack([samples, np.zeros(4, np.int16)], axis=1)
    assert waveform(wav(stereo), 8000, "a.wav").tolist() == [0, 128, -256, 16256]
    with pytest.raises(BadInputError, match=r"a\.wav has 8,000 samples a second, not 16,000; resample it"):
        waveform(wav(samples), 16000, "a.wav")
    with pytest.raises(DamagedFileError, match=r"a\.wav is no complete WAV file"):
        waveform(wav(samples)[:-3], 8000, "a.wav")
    with pytest.raises(DamagedFileError, match=r"a\.wav is no complete WAV file"):
        waveform(wav(samples)[:20], 8000, "a.wav")


@pytest.mark.parametrize("behind", [b"", b"LIST\4\0\0\0abcd", b"\0"], ids=["nothing", "a chunk", "a byte"])
def test_the_usual_header_is_read_as_the_standard_library_does(behind: bytes) -> None:
    """Files with the header that nearly all have, and others that differ from it in any one byte."""
    content = wav(tone(1, 40)) + behind
    rng = np.random.default_rng(0)
    for place in range(4, 44):
        changed = bytearray(content)
        changed[place] = rng.integers(256)
        found = audio._usual_wav(bytes(changed))
        if found is not None:
            rate, samples = audio._wav(bytes(changed), "a.wav")
            assert found[0] == rate
            assert found[1].tolist() == samples.tolist()
    assert audio._usual_wav(content)[1].tolist() == tone(1, 40).tolist()
    assert audio._usual_wav(wav(np.stack([tone(1, 4)] * 2, axis=1))) is None


def test_what_is_no_wav_needs_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    with pytest.raises(BadInputError, match=r"a\.mp3 is no plain WAV file; .*pip install 'fedarena\[audio\]'"):
        waveform(b"ID3", 8000, "a.mp3")


RECORDINGS = {
    **{f"bed/{speaker}_nohash_0.wav": tone(place, 900) for place, speaker in enumerate(["aa", "bb", "cc", "dd"])},
    "cat/aa_nohash_1.wav": tone(9, 400),
}
LISTS = {"validation_list.txt": "bed/cc_nohash_0.wav\n", "testing_list.txt": "bed/dd_nohash_0.wav\n"}


def write_archive(path: Path) -> None:
    files = {**{name: wav(samples) for name, samples in RECORDINGS.items()}}
    files |= {name: text.encode() for name, text in LISTS.items()}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def test_words_of_the_publishers_archive_and_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    write_archive(tmp_path / "archive" / "speech_commands_v0.02.tar.gz")
    for name, samples in RECORDINGS.items():
        put(tmp_path / "folder" / "speech_commands_v0.02" / name, wav(samples))
    for name, text in LISTS.items():
        put(tmp_path / "folder" / "speech_commands_v0.02" / name, text.encode())
    put(tmp_path / "folder" / "speech_commands_v0.02" / "_background_noise_" / "a.wav", b"")
    for form in ("archive", "folder"):
        federation = load("google_speech", tmp_path / form, sample_rate=8000, seconds=0.1)
        assert groups_of(federation) == {"aa": "train", "bb": "train", "cc": "validation", "dd": "test"}
        assert (federation.task.classes, federation.task.sample_rate) == (35, 8000)
        samples = federation.samples(federation.clients("test"), "test").columns
        assert samples["x"].dtype == np.int16
        np.testing.assert_array_equal(samples["x"], [RECORDINGS["bed/dd_nohash_0.wav"][:800]])
        assert federation.task.label_names[samples["y"][0]] == "bed"
        short = federation.samples(federation.clients("train"), "train").columns
        assert sorted((row == 0).sum() >= 400 for row in short["x"]) == [False, False, True]
    with pytest.raises(BadInputError, match=r"bed/aa_nohash_0\.wav has 8,000 samples a second, not 16,000"):
        load("google_speech", tmp_path / "folder")
    put(tmp_path / "folder" / "speech_commands_v0.02" / "bad" / "aa_nohash_0.wav", wav(tone(1, 9)))
    with pytest.raises(BadInputError, match="there is no word 'bad' among the 35; did you mean 'bed'"):
        load("google_speech", tmp_path / "folder", sample_rate=8000)
    (tmp_path / "archive" / "speech_commands_v0.02.tar.gz").write_bytes(b"\x1f\x8bnothing")
    with pytest.raises(DamagedFileError, match=r"speech_commands_v0\.02\.tar\.gz is damaged: it cannot be unpacked"):
        load("google_speech", tmp_path / "archive")


def test_words_of_fedscales_maps(tmp_path: Path) -> None:
    for group, file in {"train": "bed_aa_nohash_0.wav", "test": "cat_bb_nohash_0.wav"}.items():
        put(tmp_path / group / file, wav(tone(1, 80)))
        rows = [HEADING, (0, file, file[:3], 0)]
        write_table(tmp_path / "client_data_mapping" / f"{group}.csv", rows)
    federation = load("google_speech", tmp_path, sample_rate=8000, seconds=0.01)
    assert groups_of(federation) == {"train-0": "train", "test-0": "test"}
    assert federation.samples(federation.clients("test"), "test").columns["y"].tolist() == [23]
    write_table(tmp_path / "client_data_mapping" / "test.csv", [HEADING, (0, "gone.wav", "cat", 0)])
    with pytest.raises(
        BadInputError, match=r"test\.csv, line 2 names 'gone\.wav', but there is no file .*test/gone\.wav"
    ):
        load("google_speech", tmp_path, sample_rate=8000)


def test_sentences_with_their_recordings(tmp_path: Path) -> None:
    rows = [
        ("client_id", "path", "sentence"),
        ("ann", "1.wav", "Hé, ab"),
        ("ann", "2.wav", "b"),
        ("bob", "3.wav", "a" * 9),
    ]
    for number in (1, 2, 3):
        put(tmp_path / "clips" / f"{number}.wav", wav(tone(number, 100 if number == 2 else 60)))
    (tmp_path / "validated.tsv").write_text("\n".join("\t".join(row) for row in rows))
    options = {"sample_rate": 8000, "seconds": 0.01, "length": 8, "split": "within_client", "train_fraction": 1.0}
    federation = load("common_voice", tmp_path, **options)
    assert groups_of(federation) == {"ann": "train"}  # the others say too much, or for too long
    samples = federation.samples(federation.clients(), "train").columns
    names = federation.task.label_names
    assert [names[token] for token in samples["y"][0]] == ["h", "é", ",", " ", "a", "b", "<none>", "<none>"]
    np.testing.assert_array_equal(samples["x"][0], np.pad(tone(1, 60), (0, 20)))
    texts = load("common_voice", tmp_path, **{**options, "inputs": "text", "alphabet": 2, "length": 20})
    assert texts.task.label_names == ("<padding>", "<unknown>", " ", "a")  # the most frequent, then the alphabet
    (tmp_path / "clips" / "1.wav").unlink()
    with pytest.raises(BadInputError, match=r"validated\.tsv, line 2 names a recording, but there is no file .*1\.wav"):
        load("common_voice", tmp_path, **{**options, "length": 7})


def test_fedscales_sentences(tmp_path: Path) -> None:
    for group, client in (("train", 3), ("test", 4)):
        put(tmp_path / f"{group}.wav", wav(tone(client, 60)))
        (tmp_path / f"{group}.txt").write_text("AB\n")
        write_table(tmp_path / f"{group}.csv", [("wav", "txt", "client"), (f"{group}.wav", f"{group}.txt", client)])
    (tmp_path / "labels.json").write_text(json.dumps(["_", "A", "B", " "]))
    federation = load("common_voice", tmp_path, sample_rate=8000, seconds=0.01, length=4)
    assert groups_of(federation) == {"train-3": "train", "test-4": "test"}
    assert federation.task.label_names == ("<none>", " ", "a", "b")
    (tmp_path / "test.txt").unlink()
    with pytest.raises(
        BadInputError, match=r"test\.csv, line 2 names the transcript 'test\.txt', but there is no file"
    ):
        load("common_voice", tmp_path, sample_rate=8000)


def test_readers_of_books(tmp_path: Path) -> None:
    for speaker in ("10", "11"):
        stem = tmp_path / "LibriTTS" / "train-clean-100" / speaker / "2" / f"{speaker}_2_0_0"
        put(stem.with_name(f"{stem.name}.wav"), wav(tone(1, 60), 24000))
        put(stem.with_name(f"{stem.name}.normalized.txt"), b"Hello")
    federation = load("libritts", tmp_path, seconds=0.01, length=6)
    assert sorted(groups_of(federation)) == ["10", "11"]
    assert federation.task.sample_rate == 24000
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "some_text_sid.txt").write_text("a/b.wav|Hello|10\nc\n")
    with pytest.raises(BadInputError, match=r"has sentences without recordings; set federation\.inputs=text"):
        load("libritts", tmp_path / "list")
    with pytest.raises(BadInputError, match=r"some_text_sid\.txt, line 2 must be path\|text\|speaker"):
        load("libritts", tmp_path / "list", inputs="text")


def test_real_words_train_on_both_engines(tmp_path: Path) -> None:
    federation = load("google_speech", real("speech"))
    assert (federation.num_clients, federation.num_samples) == (41, 300)
    small = {"name": "speech_cnn", "bands": 8, "channels": [2, 2], "hidden": 4}
    agree(federation, tmp_path, model=small, cohort=2, local={"steps": 1, "batch_size": 2, "lr": 0.01, "epochs": None})


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "folder", "clients", "samples"),
    [("common_voice", "common_voice_tsv", 151, 1476), ("libritts", "libritts_text", 123, 20080)],
)
def test_real_sentences_train_on_both_engines(
    name: str, folder: str, clients: int, samples: int, tmp_path: Path
) -> None:
    federation = load(name, real(folder), inputs="text")
    assert (federation.num_clients, federation.num_samples) == (clients, samples)
    agree(load(name, real(folder), inputs="text", length=20, fraction=0.2), tmp_path)


def test_real_digits_of_sixty_speakers(tmp_path: Path) -> None:
    """AudioMNIST's digits, which are among Speech Commands' words, in the form of these."""
    digits = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    with np.load(real("speech") / "audiomnist_60spk_8k_3reps.npz") as found:
        samples, offsets, spoken, speakers = (found[name] for name in ("wav", "offset", "digit", "speaker"))
    root = tmp_path / "raw" / "speech_commands_digits"
    for place in range(0, len(spoken), 9):
        heard = samples[offsets[place] : offsets[place + 1]]
        put(root / digits[spoken[place]] / f"s{speakers[place]}_nohash_{place}.wav", wav(heard, 8000))
    federation = load("google_speech", tmp_path / "raw", sample_rate=8000)
    assert federation.num_clients == 60
    assert federation.num_samples == 200
    # There are no lists of speakers for testing, so that clients are divided.
    assert [len(federation.clients(group)) for group in ("train", "validation", "test")] == [48, 6, 6]
    words = {federation.task.label_names[label] for label in np.flatnonzero(federation.label_counts)}
    assert words <= set(digits)
    assert len(words) >= 8
