"""HTML that cannot forget to escape: text is escaped when it enters an element, unless it is `Html`."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Html(str):
    """A piece of finished HTML."""

    __slots__ = ()


_VOID = frozenset({"meta", "br", "input"})


def tag(name: str, /, *children: str, **attributes: str) -> Html:
    """An element. An attribute's final underscore is dropped (`class_`), inner ones become hyphens."""
    settings = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items()
    )
    if name in _VOID:
        return Html(f"<{name}{settings}>")
    return Html(f"<{name}{settings}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """Pieces one after the other."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def embed(name: str, content: str, /, **attributes: str) -> Html:
    """A script or style element. Its content is not escaped: it must be ours or come from `script_safe`."""
    return Html(f"{tag(name, **attributes).removesuffix(f'</{name}>')}{content}</{name}>")


def swatch_colour(colour: str) -> dict[str, str]:
    """Attributes of an element in a method's colour; the page's script replaces it in the dark scheme."""
    return {"style": f"color: {colour}", "data_colour": colour}


def script_safe(json: str) -> str:
    """JSON that no HTML parser can leave a script element in the middle of."""
    return json.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
