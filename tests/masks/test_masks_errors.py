"""Test errors of masks: their class, and a message that names the argument and what was passed."""

import numpy as np
import pytest

from regard import masks


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: masks.causal(2.0), TypeError, "q_len must be an int, got float"),
        (lambda: masks.causal(True), TypeError, "q_len must be an int, got bool"),
        (lambda: masks.causal(-1), ValueError, "q_len must be at least 0, got -1"),
        (lambda: masks.causal(2, "3"), TypeError, "kv_len must be an int, got str"),
        (lambda: masks.causal(2, [3]), TypeError, "kv_len must be an int, got list"),
        (lambda: masks.causal(2, -3), ValueError, "kv_len must be at least 0, got -3"),
        (
            lambda: masks.causal(2, query_offset=1.0),
            TypeError,
            "query_offset must be an int or an integer array, got float64",
        ),
        (
            lambda: masks.causal(2, query_offset=True),
            TypeError,
            "query_offset must be an int or an integer array, got bool",
        ),
        (
            lambda: masks.causal(2, query_offset="start"),
            ValueError,
            "query_offset must be an int, an integer array or \"end\", got 'start'",
        ),
        (
            lambda: masks.causal(3, query_offset=None),
            TypeError,
            "query_offset must be an int or an integer array, got NoneType",
        ),
        (
            lambda: masks.causal(3, query_offset={1, 2}),
            TypeError,
            "query_offset must be an int or an integer array, got set",
        ),
        (
            lambda: masks.causal(3, query_offset=[2**70, 1]),
            ValueError,
            f"query_offset must fit in 64 bits, got {2**70}",
        ),
        (
            lambda: masks.causal(3, query_offset=np.array([1, 2], object)),
            TypeError,
            "query_offset must be an int or an integer array, got object",
        ),
        (
            lambda: masks.causal(3, query_offset=[1, None]),
            TypeError,
            "query_offset must be an int or an integer array, got object",
        ),
        (lambda: masks.window(-1, window=(0, 0)), ValueError, "q_len must be at least 0, got -1"),
        (
            lambda: masks.window(2, 2.5, window=(0, 0)),
            TypeError,
            "kv_len must be an int, got float",
        ),
        (
            lambda: masks.window(2, window=3),
            TypeError,
            "window must be a pair (left, right), got int",
        ),
        (
            lambda: masks.window(2, window="10"),
            TypeError,
            "window must be a pair (left, right), got str",
        ),
        (
            lambda: masks.window(2, window=np.array(10)),
            TypeError,
            "window must be a pair (left, right), got ndarray",
        ),
        (
            lambda: masks.window(2, window={1, 0}),
            TypeError,
            "window must be a pair (left, right), got set",
        ),
        (
            lambda: masks.window(2, window={0: 1, 1: 0}),
            TypeError,
            "window must be a pair (left, right), got dict",
        ),
        (
            lambda: masks.window(2, window=np.array([1, 0, 0])),
            ValueError,
            "window must be a pair (left, right), got 3 numbers",
        ),
        (
            lambda: masks.window(2, window=np.array([1.0, 0.0])),
            TypeError,
            "window[0] must be an int, got float64",
        ),
        (
            lambda: masks.window(2, window=None),
            TypeError,
            "window must be a pair (left, right), got NoneType",
        ),
        (
            lambda: masks.window(2, window=(1,)),
            ValueError,
            "window must be a pair (left, right), got 1 numbers",
        ),
        (
            lambda: masks.window(2, window=(1.0, 0)),
            TypeError,
            "window[0] must be an int, got float",
        ),
        (
            lambda: masks.window(2, window=(1, True)),
            TypeError,
            "window[1] must be an int, got bool",
        ),
        (
            lambda: masks.window(2, window=(0, -1)),
            ValueError,
            "window[1] must be at least 0, got -1",
        ),
        (
            lambda: masks.window(2, window=(None, None), query_offset=0.5),
            TypeError,
            "query_offset must be an int or an integer array, got float64",
        ),
        (lambda: masks.padding(2, 3.0), TypeError, "kv_len must be an int, got float"),
        (
            lambda: masks.padding([2, 4], 3),
            ValueError,
            "key_lengths must be in 0 .. kv_len = 3, got 4",
        ),
        (
            lambda: masks.padding(-1, 3),
            ValueError,
            "key_lengths must be in 0 .. kv_len = 3, got -1",
        ),
        (
            lambda: masks.padding(10**30, 3),
            ValueError,
            f"key_lengths must be in 0 .. kv_len = 3, got {10**30}",
        ),
        (
            lambda: masks.padding([2.0], 3),
            TypeError,
            "key_lengths must be an int or an integer array, got float64",
        ),
        (
            lambda: masks.padding([True], 3),
            TypeError,
            "key_lengths must be an int or an integer array, got bool",
        ),
        (
            lambda: masks.padding(2, 3, side="both"),
            ValueError,
            'side must be "right" or "left", got \'both\'',
        ),
        (
            lambda: masks.segments([0.0, 1.0]),
            TypeError,
            "query_segments must be an integer array, got float64",
        ),
        (
            lambda: masks.segments([0, 1], [True, False]),
            TypeError,
            "key_segments must be an integer array, got bool",
        ),
        (
            lambda: masks.segments(3),
            ValueError,
            "query_segments must have one number for each row, got a single number",
        ),
        (
            lambda: masks.segments(np.zeros((2, 3), int), np.zeros((4, 3), int)),
            ValueError,
            "batch axes of query_segments and key_segments must broadcast, got shapes (2, 3) and "
            "(4, 3)",
        ),
        (
            lambda: masks.prefix(3, prefix_lengths=4),
            ValueError,
            "prefix_lengths must be in 0 .. kv_len = 3, got 4",
        ),
        (
            lambda: masks.prefix(3, prefix_lengths=[1, 1.5]),
            TypeError,
            "prefix_lengths must be an int or an integer array, got float64",
        ),
        (
            lambda: masks.prefix(3, prefix_lengths=[1, 2], query_offset=[1, 2, 3]),
            ValueError,
            "prefix_lengths and query_offset must broadcast, got shapes (2,) and (3,)",
        ),
        (
            lambda: masks.as_additive(np.tri(3)),
            TypeError,
            "mask must be bool (True = may attend), got float64",
        ),
        (
            lambda: masks.as_additive([1, 0]),
            TypeError,
            "mask must be bool (True = may attend), got int64",
        ),
        (
            lambda: masks.as_additive([True], np.int32),
            TypeError,
            "dtype must be floating-point, got int32",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message


INTEGERS = {
    "query_offset": [
        lambda numbers: masks.causal(3, query_offset=numbers),
        lambda numbers: masks.window(3, window=(1, 0), query_offset=numbers),
        lambda numbers: masks.prefix(3, prefix_lengths=1, query_offset=numbers),
    ],
    "prefix_lengths": [lambda numbers: masks.prefix(3, prefix_lengths=numbers)],
    "key_lengths": [lambda numbers: masks.padding(numbers, 3)],
    "query_segments": [masks.segments],
    "key_segments": [lambda numbers: masks.segments([1, 2], numbers)],
    "mask": [masks.as_additive, masks.check],
}
EACH = [(name, call) for name, calls in INTEGERS.items() for call in calls]


@pytest.mark.parametrize(("name", "call"), EACH)
def test_arguments_that_are_not_arrays_are_named(name, call):
    with pytest.raises(ValueError, match=f"^{name} must be an array or a regular nested list"):
        call([[1, 2], [3]])
    with pytest.raises(TypeError, match=f"^{name} must be a plain array, got a masked array"):
        call(np.ma.array([1, 2], mask=[False, True]))
    with pytest.raises(TypeError, match=f"^{name} must be "):
        call(["1", "2"])
