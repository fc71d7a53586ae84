"""Wrong shapes of attention and its derivatives, of dense and packed calls, and of their masks."""

import numpy as np
import pytest

import regard
from data_kinds import normal
from messages import check, each
from regard.masks import Ranges, stack

pytestmark = pytest.mark.usefixtures("silence")
ATTEND = regard.scaled_dot_product_attention
RAGGED = regard.scaled_dot_product_attention_ragged


# A problem whose sizes are all different: batch 2, 14 heads of 7, 5 queries, 11 keys.
Q, K, V = normal(2, 14, 5, 64), normal(2, 7, 11, 64), normal(2, 7, 11, 32)
OUTPUT, LSE = ATTEND(Q, K, V, return_lse=True)
GIVEN = {"grad_output": OUTPUT, "output": OUTPUT, "lse": LSE}
PACKED = {"query": normal(10, 14, 64), "key": normal(23, 7, 64), "value": normal(23, 7, 32)}
PACKED |= {"query_starts": [0, 4, 10], "key_starts": [0, 12, 23]}
EIGHT = normal(1, 8, 1)
TRIPLE = stack([Ranges(0, np.full(5, 9))] * 3)
HALF = LSE.astype(np.float16)
MASKED = np.ma.array([0, 4, 10], mask=[0, 1, 0])
SHOWN, BIAS, WIDE = np.ones((5, 11), bool), normal(5, 11), normal(5, 1025)
STATE = normal(2, 2, 8, 3)
DOUBLE = normal(5, 4, dtype=float)
OUTS, LSES = [normal(2, 5, 4)] * 3, [normal(2, 5)] * 3
SUM, SUM_LSE = regard.merge_attention_states(OUTS, LSES)
MERGED = {"grad_output": SUM, "outputs": OUTS, "lses": LSES, "output": SUM, "lse": SUM_LSE}


def attend(**changes):
    return ATTEND(**{"query": Q, "key": K, "value": V} | changes)


def backward(**changes):
    good = {"query": Q, "key": K, "value": V} | GIVEN
    return regard.scaled_dot_product_attention_backward(**good | changes)


def jvp(**changes):
    good = {"query": Q, "key": K, "value": V}
    good |= {f"tangent_{name}": array for name, array in good.items()}
    return regard.scaled_dot_product_attention_jvp(**good | changes)


def ragged(**changes):
    return RAGGED(**PACKED | changes)


def linear(**changes):
    good = {"query": normal(2, 4, 5, 8), "key": normal(2, 2, 5, 8), "value": normal(2, 2, 5, 3)}
    return regard.linear_attention(**good | changes)


def linear_backward(**changes):
    good = {"query": normal(2, 4, 5, 8), "key": normal(2, 2, 5, 8), "value": normal(2, 2, 5, 3)}
    return regard.linear_attention_backward(**{"grad_output": normal(2, 4, 5, 3)} | good | changes)


def merge(outputs, lses):
    return regard.merge_attention_states(outputs, lses)


def merge_backward(**changes):
    return regard.merge_attention_states_backward(**MERGED | changes)


FORWARD = [
    (lambda: attend(query=normal(64)), ValueError, "query must have at least ... got shape (64,)"),
    (lambda: attend(value=normal(32)), ValueError, "value must have at least ... got shape (32,)"),
    (lambda: attend(key=normal(2, 7, 11, 48)), ValueError, "query and key must ... got 64 and"),
    (lambda: attend(query=Q[..., :0], key=K[..., :0]), ValueError, "query and key ... got shapes"),
    (lambda: attend(value=normal(2, 7, 13, 32)), ValueError, "key and value must ... got 11 and"),
    (lambda: attend(value=normal(2, 14, 11, 32)), ValueError, "key and value must ... got 7 and"),
    (lambda: attend(query=normal(2, 16, 5, 64)), ValueError, "the heads of query ... got 16 and"),
    (lambda: attend(key=K[:, :0], value=V[:, :0]), ValueError, "the heads of query"),
    (lambda: attend(query=normal(3, 14, 5, 64)), ValueError, "query, key and ... got shapes (3"),
    (
        lambda: attend(query=Q.swapaxes(1, 2), key=K.swapaxes(1, 2), value=V.swapaxes(1, 2)),
        ValueError,
        "the heads of query must be ... got 5 and ... if these are (batch",
    ),
    (lambda: attend(mask=normal(2, 7, 5, 11)), ValueError, "mask must broadcast ... got shape (2"),
    (lambda: attend(mask=Ranges(0, np.full(5, 12))), ValueError, "mask must broadcast ... got a"),
    (lambda: attend(mask=TRIPLE), ValueError, "mask must broadcast to (... ... got a sparse"),
    (lambda: attend(mask=(BIAS, Ranges(0, np.full(5, 9), kv_len=11))), TypeError, "mask must be"),
    (lambda: attend(mask=(TRIPLE, TRIPLE)), TypeError, "mask must be a ... got a ... combine the"),
    (lambda: attend(mask=(TRIPLE,) * 3), TypeError, "mask must be one mask or ... got a tuple"),
    (lambda: attend(device="gpu"), ValueError, "device must be None, 'cpu' or 'cuda', got 'gpu'"),
    (lambda: attend(rows=slice(0, 4, 2), return_weights=True), ValueError, "rows ... got slice(0"),
    (lambda: attend(rows=slice(3), return_weights=True, device="cuda"), TypeError, "rows select"),
    (lambda: attend(rows=slice(3)), TypeError, "rows need return_weights=True ... they select"),
    (lambda: attend(rows=slice(3), return_weights=True, mask=SHOWN[:3]), ValueError, "mask must"),
    (
        lambda: attend(rows=slice(3), return_weights=True, query_offset="start"),
        ValueError,
        "query_offset must be an integer, an ... got 'start'",
    ),
    (lambda: ATTEND(Q, K), TypeError, "scaled_dot_product_attention() missing 1 required"),
    (lambda: ATTEND(Q, K, V, None, True), TypeError, "scaled_dot_product_attention() takes from"),
    (lambda: ATTEND(DOUBLE, DOUBLE, DOUBLE, precision="int8"), ValueError, "precision ... got a"),
    (lambda: ATTEND(WIDE, WIDE, WIDE, precision="int8"), ValueError, "precision ... got 1025"),
    (lambda: regard.explain(Q, K, V, query_starts=[0, 5]), TypeError, "key_starts must be given"),
    (lambda: ragged(query_starts=[0, 4, 9]), ValueError, "query_starts must end with ... got 9"),
    (lambda: ragged(query_starts=[1, 4, 10]), ValueError, "query_starts must begin with 0, got 1"),
    (lambda: ragged(query_starts=[0, 12, 10]), ValueError, "query_starts must not ... got 10"),
    (lambda: ragged(query_starts=[[0, 4, 10]]), ValueError, "query_starts must have"),
    (lambda: ragged(query_starts=[]), ValueError, "query_starts must have shape ... got shape"),
    (lambda: ragged(query_starts=MASKED), TypeError, "query_starts must be a ... got a masked"),
    (lambda: ragged(key_starts=[0, 23]), ValueError, "query_starts and key_starts ... got 3 and"),
    (lambda: ragged(key_starts=[0.0, 12.0, 23.0]), TypeError, "key_starts must be"),
    (lambda: ragged(query=normal(10, 64)), ValueError, "query must have 3 ... got shape (10"),
    (lambda: ragged(key=normal(23, 7, 48)), ValueError, "query and key must share ... got 64 and"),
    (lambda: ragged(mask=np.ones((10, 14, 13), bool)), ValueError, "mask must ... got shape (10"),
    (lambda: ragged(mask=np.ones((9, 1, 1), bool)), ValueError, "mask must ... got shape (9"),
]
LINEAR = [
    (lambda: linear(query=normal(64)), ValueError, "query must have at least ... got shape (64,)"),
    (
        lambda: linear(key=normal(2, 2, 5, 9)),
        ValueError,
        "query and key must share ... got 8 and 9",
    ),
    (lambda: linear(value=normal(2, 2, 6, 3)), ValueError, "query, key and value ... got 5 and 6"),
    (lambda: linear(value=normal(2, 4, 5, 3)), ValueError, "key and value must ... got 2 and 4"),
    (lambda: linear(query=normal(2, 3, 5, 8)), ValueError, "the heads of query must ... got 3 and"),
    (lambda: linear(query=normal(3, 4, 5, 8)), ValueError, "query, key and value ... got shapes"),
    (lambda: linear(decay=normal(2, 4, 5)), ValueError, "decay must ... (2, 2, 5) ... got shape"),
    (lambda: linear(decay=normal(2, 2, 5, 3)), ValueError, "decay must ... column ... got shape"),
    (lambda: linear(beta=normal(2, 2, 5, 8)), ValueError, "beta must broadcast to ... got shape"),
    (lambda: linear(state=normal(2, 2, 3, 8)), ValueError, "state must broadcast ... got shape"),
    (lambda: linear(decay="ab"), TypeError, "decay must be"),
    (lambda: linear(scale=np.inf), ValueError, "scale must be finite, got inf"),
    (lambda: linear(starts=[0, 5]), ValueError, "query must have 3 dimensions ... got shape"),
    (lambda: linear(out=STATE), ValueError, "out must have shape (2, 4, 5, 3), got (2, 2, 8, 3)"),
    (lambda: linear(out=(None, STATE)), TypeError, "out must be an array unless ... got a tuple"),
    (lambda: linear(out=[STATE], return_state=True), ValueError, "out must be a pair ... got 1"),
    (
        lambda: linear(out=(None, Q), return_state=True),
        ValueError,
        "out[1] must have shape ... got",
    ),
    (lambda: linear(out=STATE.astype(float)), TypeError, "out must be an array of float32, got an"),
    (
        lambda: linear(out=(None, STATE), return_state=True, state=STATE[::-1]),
        ValueError,
        "out[1] must not overlap state",
    ),
    (lambda: linear(is_causal=True), TypeError, "no argument is_causal"),
    (lambda: linear(initial_state=STATE), TypeError, "no argument initial_state ... state="),
    (lambda: linear(g=STATE), TypeError, "no argument g ... decay="),
    (
        lambda: linear_backward(grad_output=normal(2, 2, 5, 3)),
        ValueError,
        "grad_output must have the shape of output, (2, 4, 5, 3), got shape (2, 2, 5, 3)",
    ),
    (lambda: linear_backward(grad_state=STATE[0]), ValueError, "grad_state must ... the new state"),
    (lambda: linear_backward(grad_output="a"), TypeError, "grad_output must be an array of"),
    (lambda: linear_backward(state=normal(2, 2, 3, 8)), ValueError, "state must broadcast"),
    (lambda: linear_backward(g=STATE), TypeError, "no argument g ... decay="),
]
DERIVATIVES = [
    (lambda: backward(grad_output=OUTPUT[..., :31]), ValueError, "grad_output must ... got shape"),
    (lambda: backward(output=normal(2, 14, 5, 64)), ValueError, "output must have ... got shape"),
    (lambda: backward(output=OUTPUT.astype(float)), TypeError, "output must be ... got an array"),
    (lambda: backward(lse=normal(2, 14, 11)), ValueError, "lse must have the ... got shape (2"),
    (lambda: backward(lse=HALF), TypeError, "lse must be float32 or float64 ... got float16"),
    (lambda: backward(grad_lse=normal(2, 14, 6)), ValueError, "grad_lse must have ... got shape"),
    (lambda: backward(with_respect_to=["mask"]), ValueError, "with_respect_to contains 'mask'"),
    (lambda: backward(with_respect_to=["mask"], mask=SHOWN), TypeError, "with_respect_to"),
    (lambda: backward(with_respect_to={"sinks"}), ValueError, "with_respect_to contains 'sinks'"),
    (lambda: backward(with_respect_to="query"), TypeError, "with_respect_to must be ... got the"),
    (lambda: backward(precision="int8"), ValueError, "precision must be None or ... got 'int8'"),
    (lambda: backward(out=OUTPUT), TypeError, "out must be an AttentionGradients ... got ndarray"),
    (lambda: jvp(tangent_query=normal(2, 14, 5, 63)), ValueError, "tangent_query"),
    (lambda: jvp(tangent_key=normal(2, 14, 11, 64)), ValueError, "tangent_key must ... got shape"),
    (lambda: merge([], []), ValueError, "outputs and lses must have the ... got 0 and"),
    (lambda: merge(OUTS, LSES[:2]), ValueError, "outputs and lses must have the ... got 3 and"),
    (lambda: merge([*OUTS[:2], SUM], [*LSES[:2], SUM_LSE[:, :4]]), ValueError, "outputs"),
    (lambda: merge(OUTS, [LSES[0][..., None]] * 3), ValueError, "lses[0] must be"),
    (lambda: merge([normal(1, 8, 1, 4)] * 2, [EIGHT, EIGHT[..., None]]), ValueError, "lses[1]"),
    (lambda: merge([OUTS[0], OUTS[0] + 0j], LSES[:2]), TypeError, "outputs[1] ... got complex64"),
    (lambda: merge_backward(grad_output=OUTS[0][..., :3]), ValueError, "grad_output"),
    (lambda: merge_backward(output=normal(2, 6, 4)), ValueError, "output must have ... got shape"),
    (lambda: merge_backward(lses=[normal(2, 6)] * 3), ValueError, "outputs without"),
    (lambda: merge_backward(outputs=3), TypeError, "outputs must be a sequence of ... got int"),
]


@each([*FORWARD, *LINEAR, *DERIVATIVES])
def test_calls(wrong, error, parts):
    check(wrong, error, parts)


@pytest.mark.parametrize("dtype", [bool, np.float32])
@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((2, 11), "mask[:, None, None, :]"),
        ((2, 5, 11), "mask[:, None, :, :]"),
        ((2, 12), None),
        ((2, 14, 11), None),
        ((1, 2, 11), None),
    ],
    ids=str,
)
def test_a_mask_without_its_inner_axes_is_told_how_to_get_them(shape, remedy, dtype):
    mask = (normal(*shape) > 0) if dtype is bool else normal(*shape)
    with pytest.raises(ValueError, match="mask") as raised:
        attend(mask=mask)
    assert str(raised.value).endswith(f"pass {remedy}" if remedy else f"got shape {shape}")
    if remedy:
        entries = [ATTEND(Q[b], K[b], V[b], mask[b]) for b in range(2)]
        assert np.array_equal(attend(mask=eval(remedy, {"mask": mask})), entries)


@pytest.mark.parametrize("resized", ["query", "key", "value"])
@pytest.mark.parametrize(
    "option", ["query_offset", "key_lengths", "left_padding", "threads", "window"]
)
def test_a_number_that_resizes_an_array_while_it_is_read(option, resized):
    """Reading options runs Python code. Whatever this code does to the arrays, the call computes
    with the arrays as they are afterwards, or refuses them."""
    arrays = {name: normal(300, 64) for name in ("query", "key", "value")}

    class Number:
        def __index__(self):
            arrays[resized].resize((0, 64), refcheck=False)
            return 1

        def __array__(self, dtype=None, copy=None):
            return np.array(self.__index__())

    number = (Number(), None) if option == "window" else Number()
    if resized == "query":
        assert ATTEND(**arrays, **{option: number}).shape == (0, 64)
    else:
        with pytest.raises(ValueError, match=resized):
            ATTEND(**arrays, **{option: number})


def test_small_types_of_other_packages():
    """float16 and bfloat16 are accepted; the other types of ml_dtypes are not."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("float8_e4m3fn", "int4"):
        narrow = getattr(ml_dtypes, name)
        for role, array in {"query": Q, "key": K, "value": V, "mask": BIAS}.items():
            wrong = {role: array.astype(narrow)}
            check(lambda: attend(**wrong), TypeError, f"{role} ... {name}")  # noqa: B023
    wrong = LSE.astype(ml_dtypes.bfloat16)
    check(lambda: backward(lse=wrong), TypeError, "lse ... float32 ... float64 ... bfloat16")
    out = np.full(OUTPUT.shape, 7, ml_dtypes.bfloat16)
    check(lambda: attend(out=out), TypeError, "out ... float32 ... bfloat16")
    for name in {"complex32", "bcomplex32"} & set(vars(ml_dtypes)):
        number = getattr(ml_dtypes, name)(2)
        check(lambda: attend(scale=number), TypeError, "scale must be a real number")  # noqa: B023


def test_an_empty_list_is_one_of_no_batch_entries():
    assert ATTEND(Q[:0], K[:0], V[:0], key_lengths=[], query_offset=()).shape == (0, 14, 5, 32)
