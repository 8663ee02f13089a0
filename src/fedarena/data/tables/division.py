"""Who is a client, and which of its samples are for training, validation and test."""

from __future__ import annotations

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.data.divided_clients import DividedClients, group_of
from fedarena.data.many_users.clients import divide_samples
from fedarena.data.store.schema import GROUPS, PARTS, Group, IntArray
from fedarena.data.tables.options import TableOptions
from fedarena.data.tables.raw_table import RawTable
from fedarena.data.tables.values import NOTHING, Where, Words, read_names

# How parts and groups are called in tables.
_CALLED = {
    "train": ("train", "training", "trn", "tr"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing", "tst", "te", "eval", "evaluation"),
}
_CODE_OF = {word: PARTS.index(part) for part in PARTS for word in _CALLED[part]}


def divide(table: RawTable, clients: Words, rows: IntArray, how: TableOptions, where: Where) -> DividedClients:
    """The clients of some rows, in the order of their first, each with its rows by part."""
    present, first, owner = np.unique(clients.codes[rows], return_index=True, return_inverse=True)
    rank = np.empty(len(present), dtype=np.int64)
    by_first_row = np.argsort(first, kind="stable")
    rank[by_first_row] = np.arange(len(present))
    owner = rank[owner.reshape(-1)]
    ids = [clients.words[code] for code in present[by_first_row]]
    order = np.argsort(owner, kind="stable")
    rows, owner = rows[order], owner[order]
    sizes = np.bincount(owner, minlength=len(ids))
    if how.split is not None:
        groups = how.split.groups(len(ids))
        within, counts = divide_samples(how.split, groups, np.arange(len(ids)), sizes, how.order)
        return DividedClients(ids, groups, counts, rows[within])
    groups_said = (
        None if how.group is None else _groups(_codes(table, how.group, "group", where), rows, owner, ids, how)
    )
    if how.part is None:
        assert groups_said is not None
        parts = np.array([GROUPS.index(group) for group in groups_said])[owner]
    else:
        parts = _codes(table, how.part, "part", where)[rows]
    counts = np.bincount(owner * len(PARTS) + parts, minlength=len(ids) * len(PARTS)).reshape(len(ids), len(PARTS))
    groups = groups_said or [group_of(mine) for mine in counts]
    return DividedClients(ids, groups, counts, rows[np.lexsort((parts, owner))])


def _codes(table: RawTable, column: str, option: str, where: Where) -> IntArray:
    """The part or the group that a column names in every row."""
    names = read_names(column, table.column(column, option), option)
    codes = np.array([_CODE_OF.get(word.lower(), NOTHING) for word in names.words] + [NOTHING], dtype=np.int64)
    found: IntArray = codes[names.codes]
    wrong = np.flatnonzero(found == NOTHING)
    if len(wrong):
        row = int(wrong[0])
        said = None if names.codes[row] == NOTHING else names.words[names.codes[row]]
        what = "nothing" if said is None else quoted(said)
        raise BadInputError(
            f"{option}: column {quoted(column)} says {what} in {where(row)}; {nearest(said or '', PARTS)}"
        )
    return found


def _groups(codes: IntArray, rows: IntArray, owner: IntArray, ids: list[str], how: TableOptions) -> list[Group]:
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    said = codes[rows]
    differs = np.flatnonzero(said != said[starts][owner])
    if len(differs):
        row = int(differs[0])
        raise BadInputError(
            f"group: column {quoted(how.group)} puts client {quoted(ids[owner[row]])} into the groups "
            f"{GROUPS[said[starts[owner[row]]]]} and {GROUPS[said[row]]}; a client belongs to one."
        )
    return [GROUPS[code] for code in said[starts]]
