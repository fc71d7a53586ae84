"""Statistics of attention's weights, computed from all weights, in any precision."""

from typing import NamedTuple

import numpy as np

from reference import offset_of, solve


class Summary(NamedTuple):
    entropy: np.ndarray
    max: np.ndarray
    effective_share: np.ndarray  # effective_count is its inverse
    mean_distance: np.ndarray
    first_mass: np.ndarray
    local_mass: np.ndarray
    column_sums: np.ndarray
    column_means: np.ndarray
    previous_token: np.ndarray
    induction: np.ndarray


def summarize(query, key, value, mask=None, *, first_keys, local_reach, tokens, **options):
    """Return all statistics; for magnitudes, return how far rounding may move them.

    `tokens` are the tokens of the keys, for all batch entries.
    """
    query_offset = offset_of(query, key, options)
    with np.errstate(all="ignore"):
        s = solve(query, key, value, mask, **options)
        *batch, heads, q_len, kv_len = s.seen.shape
        weights = np.where(s.seen, s.weights, 0)
        logs = np.where(weights > 0, np.log(weights), 0)
        moved = weights * s.share
        offsets = np.broadcast_to(query_offset, batch)[..., None, None]
        positions = np.broadcast_to(offsets + np.arange(q_len), (*batch, 1, q_len))
        keys = np.arange(kv_len)
        queries = np.maximum(s.seen.sum(axis=-2), 1)

        def per_row(terms):
            return s.shaped(terms.sum(axis=-1))

        def per_head(target):
            """Return the mean of the weights for the key target[query], -1 for none; 0 without
            any."""
            picked = np.where(keys == np.asarray(target)[..., None], moved, 0).sum(axis=-1)
            found = (np.asarray(target) >= 0).sum(axis=-1)
            found = np.broadcast_to(found, (*batch, heads))
            return s.shaped(np.where(found == 0, 0, picked.sum(axis=-1) / found))

        end = kv_len if options.get("key_lengths") is None else options["key_lengths"]
        start = 0 if options.get("left_padding") is None else options["left_padding"]
        end, start = (np.broadcast_to(x, batch)[..., None, None] for x in (end, start))
        before = positions - 1
        previous = np.where((before >= start) & (before < end), before, -1)
        after = np.array([*_after_the_last(tokens), -1])
        induced = after[np.where((positions >= 0) & (positions < kv_len), positions, kv_len)]
        slopes = np.abs(logs) + 1 if s.is_magnitude else -logs
        return Summary(
            per_row(moved * slopes),
            s.shaped(np.max(moved, axis=-1, initial=0)),
            per_row(effective_share(weights, moved, s.is_magnitude)),
            per_row(np.where(s.seen, moved * s.laid.distance, 0)),
            per_row(np.where(keys < first_keys, moved, 0)),
            per_row(np.where(s.laid.distance <= local_reach, moved, 0)),
            s.shaped(moved.sum(axis=-2)),
            s.shaped(moved.sum(axis=-2) / queries),
            per_head(previous),
            per_head(induced),
        )


def effective_share(weights, moved, is_magnitude):
    """Return the terms of sum w^2 / (sum w)^2."""
    total = weights.sum(axis=-1, keepdims=True)
    total = np.where(total == 0, 1, total)
    weights, moved = weights / total, moved / total
    if not is_magnitude:
        return weights * moved
    return 2 * (weights * moved + weights**2 * moved.sum(axis=-1, keepdims=True))


def _after_the_last(tokens):
    """Yield the position after the last earlier occurrence of each token, or -1 if there is
    none."""
    last = {}
    for position, token in enumerate(tokens):
        yield last.get(token, -2) + 1
        last[token] = position
