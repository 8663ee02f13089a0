"""Recordings: WAV by the standard library, FLAC, MP3 and others by soundfile where it is installed."""

from __future__ import annotations

import io
import struct
import wave
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.store.schema import AnyArray

SampleRate = Annotated[int, Field(ge=1, le=192_000)]
_PCM_BYTES = (1, 2, 3, 4)
_USUAL_HEADER = struct.Struct("<4xI4s4sIHHIIHH4sI")
_USUAL_KINDS = [b"WAVE", b"fmt ", 16, 1, 1]  # ..., plain samples, one channel


def waveform(content: bytes, sample_rate: int, where: str) -> AnyArray:
    """The samples of a recording as integers of 16 bits, the mean of its channels; it must have the sample rate."""
    if content[:4] == b"RIFF":
        rate, samples = _usual_wav(content) or _wav(content, where)
    else:
        rate, samples = _others(content, where)
    if rate != sample_rate:
        raise BadInputError(
            f"{where} has {rate:,} samples a second, not {sample_rate:,}; resample it, or set federation.sample_rate"
        )
    return samples


def fixed_length(samples: AnyArray, length: int) -> AnyArray:
    """The first samples of a recording, with silence behind a shorter one."""
    if len(samples) >= length:
        return samples[:length]
    padded = np.zeros(length, dtype=samples.dtype)
    padded[: len(samples)] = samples
    return padded


def _usual_wav(content: bytes) -> tuple[int, AnyArray] | None:
    """What nearly all WAV files are, a header of 44 bytes and samples of 16 bits in one channel; None for any other.

    For recordings of a second, to open them with the standard library takes as long as all else together.
    """
    if len(content) < _USUAL_HEADER.size:
        return None
    whole, *kinds, rate, _, _, bits, data, size = _USUAL_HEADER.unpack_from(content)
    is_usual = kinds == _USUAL_KINDS and bits == 16 and data == b"data" and size % 2 == 0
    if not is_usual or _USUAL_HEADER.size + size > min(len(content), whole + 8):  # the first 8 bytes are not counted
        return None
    return rate, np.frombuffer(content, "<i2", size // 2, _USUAL_HEADER.size)


def _wav(content: bytes, where: str) -> tuple[int, AnyArray]:
    try:
        with wave.open(io.BytesIO(content)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.getnframes()
            data = file.readframes(frames)
    except (wave.Error, EOFError) as error:
        if "unknown format" in str(error):  # floating point, or compressed
            return _others(content, where)
        raise DamagedFileError(f"{where} is no complete WAV file ({error or 'it ends too early'})") from None
    if width not in _PCM_BYTES or not channels or len(data) != frames * width * channels:
        raise DamagedFileError(f"{where} is no complete WAV file: it has {len(data):,} bytes of samples")
    if width == 2:
        values = np.frombuffer(data, "<i2")
    elif width == 1:
        values = (np.frombuffer(data, np.uint8).astype(np.int16) - 128) << 8
    else:  # the two highest bytes of each
        values = np.frombuffer(data, np.uint8).reshape(-1, width)[:, -2:].copy().view("<i2")[:, 0]
    return rate, _one_channel(values.reshape(-1, channels))


def _others(content: bytes, where: str) -> tuple[int, AnyArray]:
    try:
        import soundfile
    except ImportError:
        raise BadInputError(
            f"{where} is no plain WAV file; to read others, such as FLAC and MP3: pip install 'fedarena[audio]'"
        ) from None
    library: Any = soundfile
    try:
        values, rate = library.read(io.BytesIO(content), dtype="int16", always_2d=True)
    except (library.SoundFileError, RuntimeError, TypeError):
        raise DamagedFileError(f"{where} is not a recording that can be read") from None
    return int(rate), _one_channel(values)


def _one_channel(values: AnyArray) -> AnyArray:
    if values.shape[1] == 1:
        return values[:, 0]
    mean: AnyArray = np.rint(values.mean(axis=1)).astype(np.int16)
    return mean
