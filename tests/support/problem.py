"""Problems of attention: arrays and options, and the calls for them."""

import dataclasses

import numpy as np

import gradient_reference
import regard
from error_limits import judge


def drawn(shape, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Arrays, options, the gradients that the problem's gradients start from, the calls, and the
    smaller problems within, whose results are parts of the whole result."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    options: dict
    grad_output: np.ndarray | None = None
    grad_lse: np.ndarray | None = None

    @property
    def arrays(self):
        return self.query, self.key, self.value

    @property
    def batch(self):
        return np.broadcast_shapes(*(x.shape[:-3] for x in self.arrays))

    def with_masks(self, change):
        """Return the options in use with a function applied to the mask, or to both masks."""
        mask = self.options.get("mask")
        if mask is None:
            return dict(self.options)
        is_pair = isinstance(mask, tuple)
        changed = tuple(change(np.asarray(part)) for part in (mask if is_pair else (mask,)))
        return self.options | {"mask": changed if is_pair else changed[0]}

    @property
    def inputs(self):
        """Return the inputs with a gradient, by name; for a pair of masks, the float mask."""
        named = dict(zip(("query", "key", "value"), self.arrays, strict=True))
        mask = self.options.get("mask")
        for part in mask if isinstance(mask, tuple) else (mask,):
            if part is not None and part.dtype != bool:
                named["mask"] = part
        more = ("alibi_slopes", "distance_bias", "sinks")
        return named | {name: self.options[name] for name in more if name in self.options}

    def attend(self, **extra):
        """Return the output and lse."""
        options = self.options | {"return_lse": True} | extra
        return regard.scaled_dot_product_attention(*self.arrays, **options)

    def gradients(self, state=None, **extra):
        """Return the gradient of every input that has one. `state` is the forward call's output and
        lse."""
        state = self.attend() if state is None else state
        options = {"grad_lse": self.grad_lse, "with_respect_to": tuple(self.inputs)}
        return regard.scaled_dot_product_attention_backward(
            self.grad_output, *self.arrays, *state, **self.options | options | extra
        )

    def expected(self):
        """Return the exact gradients, and their limits."""
        grads = {"grad_lse": self.grad_lse}
        return judge(gradient_reference.backward, self, self.grad_output, *self.arrays, **grads)

    def whole(self):
        """Return the problem without broadcasting of the arrays or a float mask."""
        arrays = [np.broadcast_to(x, self.batch + x.shape[-3:]).copy() for x in self.arrays]
        shape = (*self.grad_lse.shape, self.key.shape[-2])
        options = self.with_masks(
            lambda mask: mask if mask.dtype == bool else np.broadcast_to(mask, shape).copy()
        )
        return Problem(*arrays, options, self.grad_output, self.grad_lse)

    def entry(self, index):
        """Return one batch entry by itself, as arrays of three axes."""

        def select(array):
            array = array.reshape((1,) * (3 - array.ndim) + array.shape)
            return np.broadcast_to(array, self.batch + array.shape[-3:])[index]

        options = self.with_masks(select)
        for name in ("query_offset", "key_lengths", "left_padding"):
            if options.get(name) is not None:
                options[name] = int(np.broadcast_to(options[name], self.batch)[index])
        slopes = options.get("alibi_slopes")
        if np.ndim(slopes) > 1:
            slopes = np.broadcast_to(slopes, (*self.batch, slopes.shape[-1]))
            options["alibi_slopes"] = slopes[index]
        if "dropout_p" in options and self.batch:
            number = int(np.ravel_multi_index(index, self.batch))
            first, *others = options.get("dropout_origin", (0, 0, 0))
            options["dropout_origin"] = (first + number, *others)
        grads = self.grad_output[index], self.grad_lse[index]
        return Problem(*map(select, self.arrays), options, *grads)

    def head(self, h):
        """Return one head of a problem without batch, as arrays of two axes."""
        heads, kv_h = len(self.query), h // (len(self.query) // len(self.key))

        def select(mask):
            return np.broadcast_to(mask, (heads, *mask.shape[1:]))[h] if mask.ndim > 2 else mask

        options = self.with_masks(select)
        for name in options.keys() & {"alibi_slopes", "distance_bias", "sinks"}:
            options[name] = options[name][h : h + 1]
        for name in options.keys() & {"scale", "softcap"}:
            options[name] = np.broadcast_to(options[name], heads)[h]
        if options.get("softcap") == np.inf:  # no number, but an array, may contain it
            options["softcap"] = None
        return Problem(self.query[h], self.key[kv_h], self.value[kv_h], options)

    def rows(self, start, stop):
        """Return some consecutive queries, at their original positions."""

        def select(mask):
            has_rows = mask.ndim > 1 and mask.shape[-2] > 1
            return mask[..., start:stop, :] if has_rows else mask

        offset = np.asarray(self.options.get("query_offset", 0)) + start
        options = self.with_masks(select) | {"query_offset": offset}
        query, grad_output = (x[..., start:stop, :] for x in (self.query, self.grad_output))
        grads = grad_output, self.grad_lse[..., start:stop]
        return Problem(query, self.key, self.value, options, *grads)

    def keys(self, start, stop):
        """Return some consecutive keys, and the queries at the same distance from them."""

        def select(mask):
            return mask[..., start:stop] if mask.ndim and mask.shape[-1] > 1 else mask

        options = self.with_masks(select)
        options["query_offset"] = np.asarray(options.get("query_offset", 0)) - start
        for name in ("key_lengths", "left_padding"):
            if options.get(name) is not None:
                options[name] = np.clip(np.asarray(options[name]) - start, 0, stop - start)
        if "dropout_p" in options:
            *origin, position = options.get("dropout_origin", (0, 0, 0))
            options["dropout_origin"] = (*origin, position + start)
        return Problem(self.query, *(x[..., start:stop, :] for x in self.arrays[1:]), options)
