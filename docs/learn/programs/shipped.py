"""The shipped kernel on the same problem, with one core and with all, plain and causal."""

import functools

import measure
import numpy as np
import stable

from regard import explain, scaled_dot_product_attention

ARRAYS = measure.problem()


def attention(is_causal: bool, threads: int) -> np.ndarray:
    """Return the output of the shipped kernel."""
    return scaled_dot_product_attention(*ARRAYS, is_causal=is_causal, threads=threads)


if __name__ == "__main__":
    square = np.ones(2 * [measure.LENGTH], bool)
    for is_causal, seen in ((False, square), (True, np.tril(square))):
        expected = stable.attention(*ARRAYS.astype(float), np.where(seen, 0, -np.inf))
        output = attention(is_causal, 1)
        tolerance = 16 * np.finfo(np.float32).eps
        np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance)
        for threads in (2, 3, 5):
            np.testing.assert_array_equal(attention(is_causal, threads), output, strict=True)
        print(f"{'causal' if is_causal else 'full'}: off by {abs(output - expected).max():.1e}")

    for is_causal, name in ((False, "full"), (True, "causal")):
        for cores, where in ((1, "one core"), (measure.CORES, "all cores")):
            call = functools.partial(attention, is_causal, cores)
            row = f"shipped, {name}, {where}"
            measure.report("shipped.py", call, cores=cores, is_causal=is_causal, row=row)
    print()
    print(explain(*ARRAYS, is_causal=True))
