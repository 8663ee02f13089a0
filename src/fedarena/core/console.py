"""The terminal, to which text from outside gets only as text: nothing in it is a command, a style or an emoji."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedarena.core.outside_text import harmless, harmless_lines


class Screen(Console):
    """A console on which control characters can be seen and do nothing, wherever they come from."""

    def __init__(self, **options: Any):
        super().__init__(emoji=False, **options)

    def say(self, sentence: str, style: str | None = None) -> None:
        """Prints a sentence as it is, on a line of its own."""
        self.print(plain(sentence, style), soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """Whatever is printed as a string: a line, the cell of a table."""
        return super().render_str(harmless_lines(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Whatever is printed at all, such as texts within bars."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                yield Segment(harmless_lines(segment.text), segment.style)
            else:
                yield segment


def titled_table(title: str, caption: str | None = None) -> Table:
    """A table with its title above it and notes below it, which has no columns yet."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        caption=caption,
        caption_justify="left",
    )


def plain(text: str, style: str | None = None) -> Text:
    """Text from outside on one line, for whatever shows texts."""
    return Text(harmless(text), style or "")


def as_markup(text: str) -> str:
    """Text from outside on one line, to stand among rich's markup."""
    return escape(harmless(text))
