"""Small recordings."""

from __future__ import annotations

import io
import wave

import numpy as np


def wav(samples: np.ndarray, rate: int = 8000, width: int = 2) -> bytes:
    """A WAV file of samples ``[length]`` or ``[length, channels]``, integers of 16 bits."""
    values = np.asarray(samples, dtype="<i2")
    data = values.tobytes()
    if width == 1:
        data = ((values >> 8) + 128).astype(np.uint8).tobytes()
    elif width == 3:
        data = b"".join(b"\0" + value.tobytes() for value in values.ravel())
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1 if values.ndim == 1 else values.shape[1])
        out.setsampwidth(width)
        out.setframerate(rate)
        out.writeframes(data)
    return file.getvalue()


def tone(number: int, length: int) -> np.ndarray:
    """A recording that differs from that of any other number."""
    return np.random.default_rng(number).integers(-3000, 3000, length, dtype=np.int16)
