"""Rules that say in which states a phone is available, such as ``screen locked and wifi and charging``.

A rule is names of states with ``and``, ``or``, ``not`` and parentheses, and comparisons of the battery's percentage. It
is taken apart here and never given to Python.

>>> rule = parse_rule("charging and battery >= 80")
>>> states = {"charging": np.array([True, True, False]), "battery": np.array([79.0, 80.0, 90.0])}
>>> rule(states.__getitem__).tolist()
[False, True, False]
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.registry import nearest
from fedarena.fleet.arrays import AnyArray, BoolArray

# From the name of a state to its value at many moments: true or false, or the battery's percentage.
States = Callable[[str], AnyArray]
Rule = Callable[[States], BoolArray]

BATTERY = "battery"
NETWORKS = ("wifi", "2g", "3g", "4g", "5g")
SWITCHES = ("charging", *NETWORKS, "cellular", "screen_on", "screen_off", "screen_locked", "screen_unlocked")
_WORDS = {"and", "or", "not", BATTERY}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z0-9_.%]+)|(?P<sign><=|>=|==|!=|[<>()])|(?P<other>\S))")
_TWO_WORDS = re.compile(r"\bscreen\s+(on|off|locked|unlocked)\b", re.IGNORECASE)
_MAX_DEPTH = 50


def parse_rule(text: str) -> Rule:
    """The rule in words as a function of the states."""
    tokens = []
    for found in _TOKEN.finditer(_TWO_WORDS.sub(r"screen_\1", text).rstrip()):
        if found["other"]:
            raise BadInputError(f"The rule {text!r} must not contain {found['other']!r}")
        tokens.append((found["word"] or found["sign"]).lower())
    parser = _Parser(text, tokens)
    rule = parser.alternatives(0)
    if parser.next is not None:
        parser.refuse("the end")
    return rule


class _Parser:
    """Takes a rule apart: alternatives of conditions, each of which holds together with others."""

    def __init__(self, text: str, tokens: list[str]):
        self._text, self._tokens, self._position = text, tokens, 0

    @property
    def next(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def refuse(self, expected: str) -> NoReturn:
        found = "ends" if self.next is None else f"has {self.next!r}"
        raise BadInputError(f"The rule {self._text!r} {found} where {expected} should be")

    def _take(self) -> str | None:
        token = self.next
        self._position += 1
        return token

    def alternatives(self, depth: int) -> Rule:
        rule = self._conditions(depth)
        while self.next == "or":
            self._take()
            rule = _combined(np.logical_or, rule, self._conditions(depth))
        return rule

    def _conditions(self, depth: int) -> Rule:
        rule = self._condition(depth)
        while self.next == "and":
            self._take()
            rule = _combined(np.logical_and, rule, self._condition(depth))
        return rule

    def _condition(self, depth: int) -> Rule:
        if depth > _MAX_DEPTH:
            raise BadInputError(f"The rule {self._text[:60]!r}… is nested more than {_MAX_DEPTH} times")
        if self.next == "not":
            self._take()
            inner = self._condition(depth + 1)
            return lambda states: ~inner(states)
        if self.next == "(":
            self._take()
            rule = self.alternatives(depth + 1)
            if self.next != ")":
                self.refuse("')'")
            self._take()
            return rule
        if self.next == BATTERY:
            self._take()
            return self._comparison()
        return self._switch()

    def _switch(self) -> Rule:
        name = self.next
        if name is None or name in _WORDS or not (name[0].isalnum() or name[0] == "_"):
            self.refuse("a state")
        if name not in SWITCHES:
            known = nearest(str(name), [*SWITCHES, BATTERY])
            raise BadInputError(f"The rule {self._text!r} has no state {name!r}; {known}")
        self._take()
        return lambda states: np.asarray(states(name), dtype=np.bool_)

    def _comparison(self) -> Rule:
        compare = _COMPARISONS.get(self.next or "")
        if compare is None:
            self.refuse("a comparison such as '>= 80'")
        self._take()
        try:
            percentage = float((self.next or "").removesuffix("%"))
        except ValueError:
            self.refuse("a number")
        self._take()
        return lambda states: np.asarray(compare(states(BATTERY), percentage), dtype=np.bool_)


def _combined(how: Callable[[BoolArray, BoolArray], BoolArray], first: Rule, second: Rule) -> Rule:
    return lambda states: how(first(states), second(states))
