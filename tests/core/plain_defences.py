"""Defences written down once more, in plain NumPy: obviously, and slowly. `rows` has a row per client."""

from __future__ import annotations

import math

import numpy as np

Rows = np.ndarray
Vector = np.ndarray


def ceil_share(share: float, count: int) -> int:
    return math.ceil(share * count - 1e-9)


def median(rows: Rows) -> Vector:
    return np.median(rows, axis=0)


def weighted_median(rows: Rows, weights: list[int]) -> Vector:
    return np.median(np.repeat(rows, weights, axis=0), axis=0)


def trimmed_mean(rows: Rows, share: float) -> Vector:
    cut = ceil_share(share, len(rows))
    return np.array([np.mean(sorted(column)[cut : len(rows) - cut]) for column in rows.T])


def krum_order(rows: Rows, corrupted: int) -> list[int]:
    """Positions, the best first."""
    scores = []
    for i, row in enumerate(rows):
        distances = sorted(((row - other) ** 2).sum() for j, other in enumerate(rows) if j != i)
        scores.append((sum(distances[: max(len(rows) - corrupted - 2, 1)]), sum(distances)))
    return sorted(range(len(rows)), key=lambda i: scores[i])


def krum(rows: Rows, share: float) -> Vector:
    return rows[krum_order(rows, ceil_share(share, len(rows)))[0]]


def multi_krum(rows: Rows, share: float, selected: int | None = None) -> Vector:
    corrupted = ceil_share(share, len(rows))
    chosen = krum_order(rows, corrupted)[: len(rows) - corrupted if selected is None else selected]
    return rows[chosen].mean(axis=0)


def bulyan(rows: Rows, share: float) -> Vector:
    corrupted = ceil_share(share, len(rows))
    left, chosen = list(range(len(rows))), []
    while len(chosen) < len(rows) - 2 * corrupted:
        chosen.append(left.pop(krum_order(rows[left], corrupted)[0]))
    found = []
    for column in rows[chosen].T:
        middle = np.median(column)
        nearest = sorted(sorted(column), key=lambda value: abs(value - middle))
        found.append(np.mean(nearest[: len(chosen) - 2 * corrupted]))
    return np.array(found)


def geometric_median(rows: Rows, weights: Vector, iterations: int, smoothing: float) -> Vector:
    point = weights @ rows / weights.sum()
    for _ in range(iterations):
        nearer = np.array(
            [w / max(smoothing, np.linalg.norm(row - point)) for row, w in zip(rows, weights, strict=True)]
        )
        point = nearer @ rows / nearer.sum()
    return point


def centered_clipping(rows: Rows, reference: Vector, bound: float, iterations: int) -> Vector:
    for _ in range(iterations):
        moves = [(row - reference) * min(1.0, bound / np.linalg.norm(row - reference)) for row in rows]
        reference = reference + np.mean(moves, axis=0)
    return reference


def norm_bound(rows: Rows, weights: Vector, bound: float) -> Vector:
    shortened = [row * min(1.0, bound / np.linalg.norm(row)) for row in rows]
    return weights @ np.array(shortened) / weights.sum()


def fools_gold_weights(history: Rows, confidence: float = 1.0) -> Vector:
    """The paper's Algorithm 1, line by line."""
    n = len(history)
    cs = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            cs[i, j] = history[i] @ history[j] / (np.linalg.norm(history[i]) * np.linalg.norm(history[j]))
    v = [max(0.0, *(cs[i, j] for j in range(n) if j != i)) for i in range(n)]  # as in the authors' code
    alpha = np.zeros(n)
    for i in range(n):
        row = []
        for j in range(n):
            if j != i:
                pardoned = cs[i, j] * v[i] / v[j] if v[j] > v[i] else cs[i, j]
                row.append(pardoned)
        alpha[i] = min(max(1 - max(row), 0), 1)
    alpha = alpha / alpha.max()
    weights = []
    for a in alpha:
        logit = math.inf if a >= 1 else -math.inf if a <= 0 else math.log(a / (1 - a))
        weights.append(min(max(confidence * (logit + 0.5), 0), 1))
    return np.array(weights)


def fl_trust(rows: Rows, own: Vector) -> tuple[Vector, Vector]:
    length = np.linalg.norm(own)
    trust = np.array([max(0.0, row @ own / (np.linalg.norm(row) * length)) for row in rows])
    total = sum(t * length / np.linalg.norm(row) * row for t, row in zip(trust, rows, strict=True))
    return total / trust.sum(), trust


def sign_majority(rows: Rows, step: float) -> Vector:
    return step * np.sign(np.sign(rows).sum(axis=0))
