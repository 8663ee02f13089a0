"""Pictures from the bytes of their files. Pillow reads them; it is needed only where a dataset consists of pictures."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from fedarena.core.errors import BadInputError, DamagedFileError

if TYPE_CHECKING:
    from PIL.Image import Image


def need_pillow(federation: str) -> None:
    """Raises a sentence that says what to install, before anything else is done."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise BadInputError(
            f"The federation {federation!r} is made of pictures, which need Pillow: pip install 'fedarena[images]'"
        ) from None


def decode_picture(content: bytes, mode: str, where: str) -> Image:
    """The picture in a file's bytes, as grey values ("L") or colours ("RGB"); `where` is for error messages."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            return picture.convert(mode)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise DamagedFileError(f"{where} is not a picture that can be read") from None
