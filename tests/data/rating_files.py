"""Small files of ratings in all forms, of users whose taste has a few dimensions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

Rating = tuple[int, int, int]  # user, item, rating


def made_ratings(users: int = 30, items: int = 20, per_user: int = 10) -> list[Rating]:
    """Ratings that a product of two vectors and two levels explains; numbers of items have gaps."""
    random = np.random.default_rng(0)
    taste, kind = random.normal(size=(users, 2)), random.normal(size=(items, 2))
    levels = random.normal(size=items)
    found: list[Rating] = []
    for user in range(users):
        rated = random.choice(items, size=per_user - user % 3, replace=False)
        values = np.clip(np.round(3 + levels[rated] + kind[rated] @ taste[user]), 1, 5).astype(int)
        found += [(1000 - user, 3 * int(item) + 1, int(value)) for item, value in zip(rated, values, strict=True)]
    return found


def write_movielens(folder: Path, name: str, ratings: list[Rating]) -> None:
    between = {"ratings.csv": ",", "u.data": "\t", "ratings.dat": "::"}[name]
    lines = [between.join(map(str, (*rating, 881250949))) for rating in ratings]
    if name == "ratings.csv":
        lines = ["userId,movieId,rating,timestamp", *(line.replace("5,8812", "4.5,8812") for line in lines)]
    (folder / name).write_text("\n".join(lines) + "\n")


def write_netflix(folder: Path, ratings: list[Rating]) -> None:
    """By movie, in four files."""
    movies = sorted({item for _, item, _ in ratings})
    for number, some in enumerate(np.array_split(np.array(movies), 4), 1):
        lines: list[str] = []
        for movie in some.tolist():
            lines += [f"{movie}:", *(f"{user},{value},2005-09-06" for user, item, value in ratings if item == movie)]
        (folder / f"combined_data_{number}.txt").write_text("\n".join(lines) + "\n")
