"""The shipped kernel on the same problem, with one core and with all, plain and causal."""

import functools

import measure
import numpy as np
import stable

from regard import explain, scaled_dot_product_attention

if __name__ == "__main__":
    query, key, value = measure.problem()
    square = np.ones(2 * [measure.LENGTH], bool)
    eps = np.finfo(np.float32).eps

    for is_causal, seen in ((False, square), (True, np.tril(square))):
        mask = np.where(seen, 0, -np.inf)
        expected = stable.attention(
            *(array.astype(float) for array in (query, key, value)), mask
        )
        outputs = [
            scaled_dot_product_attention(
                query, key, value, is_causal=is_causal, threads=threads
            )
            for threads in (1, 2, 3, 5)
        ]
        np.testing.assert_allclose(outputs[0], expected, rtol=0, atol=16 * eps)
        for output in outputs[1:]:
            np.testing.assert_array_equal(output, outputs[0], strict=True)

        name = "causal" if is_causal else "full"
        print(f"{name}: off by {abs(outputs[0] - expected).max():.1e}")
        for row, cores in (("one core", 1), ("all cores", measure.CORES)):
            call = functools.partial(
                scaled_dot_product_attention,
                *(query, key, value),
                is_causal=is_causal,
                threads=cores,
                out=np.empty_like(query),
            )
            row = f"shipped, {name}, {row}"
            measure.report("shipped.py", call, cores=cores, is_causal=is_causal, row=row)

    print(explain(query, key, value, is_causal=True, threads=1))
