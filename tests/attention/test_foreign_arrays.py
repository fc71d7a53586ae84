"""Arrays of other libraries are read in place, or refused with an error that says what to do."""

import gc
import warnings
import weakref

import numpy as np
import pytest

import regard
from messages import says
from reference import assert_same_bits

sdpa = regard.scaled_dot_product_attention
QUERY, KEY, VALUE = np.random.default_rng(0).standard_normal((3, 4, 9, 8)).astype(np.float32)
ARRAYS = QUERY, KEY, VALUE
OUTPUT, LSE = sdpa(*ARRAYS, return_lse=True)
STARTS = np.array([0, 4, 9])


class Exporter:
    """An object that has DLPack and nothing else, like arrays of small libraries."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.on = array, device

    def __dlpack__(self, **options):
        assert self.on == (1, 0), "an array on another device was read"
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.on


def strict(array):
    """Return an array that has the Python array API and nothing beyond it."""
    library = pytest.importorskip("array_api_strict", reason="pip install array-api-strict")
    return library.asarray(array, copy=False)


def torch_tensor(array):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch.from_numpy(array)


def jax_array(array):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    return jax.numpy.asarray(array)


def xarray_array(array):
    return pytest.importorskip("xarray", reason="xarray is not installed").DataArray(array)


def dask_array(array):
    module = pytest.importorskip("dask.array", reason="Dask is not installed")
    return module.from_array(array)


LIBRARIES = {
    "DLPack": Exporter,
    "array API": strict,
    "torch": torch_tensor,
    "jax": jax_array,
    "xarray": xarray_array,
}
each_library = pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)


def append(key, value):
    cache = regard.KVCache(batch=1, num_kv_heads=4, head_dim=8)
    cache.append(key, value)
    return cache


def attend_cached(query, key, value, mask, slopes):
    return append(key, value).attend(query, mask, alibi_slopes=slopes)


MASK = np.random.default_rng(1).standard_normal((9, 9)).astype(np.float32)
SHOWN = np.tril(np.ones((9, 9), bool))
SLOPES, SINKS = np.linspace(0, 1, 4, dtype=np.float32), np.zeros(4, np.float32)
LENGTHS, OFFSETS = np.array(7), np.array(1)
ROWS = np.ascontiguousarray(QUERY.swapaxes(0, 1))
ROWS_OUTPUT, ROWS_LSE = regard.scaled_dot_product_attention_ragged(
    ROWS, ROWS, ROWS, STARTS, STARTS, return_lse=True
)

# A call of every function that reads arrays, as a function of only these arrays.
CALLS = {
    "attention": (sdpa, ARRAYS),
    "masked": (lambda q, k, v, m: sdpa(q, k, v, m), (*ARRAYS, MASK)),
    "pair": (lambda q, k, v, s, m: sdpa(q, k, v, (s, m)), (*ARRAYS, SHOWN, MASK)),
    "options": (
        lambda n, i, p, a, s: sdpa(
            *ARRAYS, key_lengths=n, query_offset=i, left_padding=p, alibi_slopes=a, sinks=s
        ),
        (LENGTHS, OFFSETS, OFFSETS, SLOPES, SINKS),
    ),
    "ragged": (regard.scaled_dot_product_attention_ragged, (ROWS, ROWS, ROWS, STARTS, STARTS)),
    "backward": (
        lambda *a: regard.scaled_dot_product_attention_backward(*a)[:3],
        (OUTPUT, *ARRAYS, OUTPUT, LSE),
    ),
    "backward of mask": (
        lambda g, m, s: regard.scaled_dot_product_attention_backward(
            g, *ARRAYS, OUTPUT, LSE, m, sinks=s, with_respect_to=("mask", "sinks"), grad_lse=LSE
        )[3::2],
        (OUTPUT, MASK, SINKS),
    ),
    "ragged backward": (
        lambda *a: regard.scaled_dot_product_attention_ragged_backward(*a)[:3],
        (ROWS_OUTPUT, ROWS, ROWS, ROWS, STARTS, STARTS, ROWS_OUTPUT, ROWS_LSE),
    ),
    "jvp": (regard.scaled_dot_product_attention_jvp, (*ARRAYS, *ARRAYS)),
    "explain": (
        lambda q, k, v, n: regard.explain(q, k, v, key_lengths=n).flops,
        (*ARRAYS, LENGTHS),
    ),
    "linear": (
        lambda q, k, v, b, n: regard.linear_attention(q, k, v, beta=b, starts=n),
        (ROWS, ROWS, ROWS, ROWS_LSE, STARTS),
    ),
    "linear backward": (
        lambda g, q, k, v, b, n: regard.linear_attention_backward(g, q, k, v, beta=b, starts=n)[:3],
        (ROWS_OUTPUT, ROWS, ROWS, ROWS, ROWS_LSE, STARTS),
    ),
    "merge": (
        lambda o, p, a, b: regard.merge_attention_states([o, p], [a, b]),
        (OUTPUT, OUTPUT, LSE, LSE),
    ),
    "matmul": (regard.matmul, (QUERY, KEY.swapaxes(-1, -2))),
    "scale": (lambda x: regard.scale(x, 2.0), (MASK,)),
    "apply_mask": (regard.apply_mask, (MASK, SHOWN)),
    "softmax": (regard.softmax, (MASK,)),
    "cache": (attend_cached, (*ARRAYS, MASK, SLOPES)),
    "summary": (
        lambda q, k, m: regard.summarize_attention(q, k, m, statistics=("entropy",)).entropy,
        (QUERY, KEY, MASK),
    ),
    "map": (lambda q, k, m: regard.attention_map(q, k, m, shape=(3, 3)), (QUERY, KEY, MASK)),
    "layer": (regard.MultiHeadAttention(8, 2, rng=0), (QUERY, KEY, VALUE, SHOWN)),
    "rotary": (regard.positional.rotary, (QUERY, np.arange(9))),
    "rms_norm": (regard.layers.rms_norm, (QUERY, SLOPES.repeat(2))),
    "additive mask": (regard.masks.as_additive, (SHOWN,)),
}
each_call = pytest.mark.parametrize("call", CALLS)


@each_library
@each_call
def test_every_function_reads_foreign_arrays(call, make):
    function, arrays = CALLS[call]
    wanted = function(*arrays)
    for i in range(len(arrays)):  # one at a time, then all
        mixed = [make(x) if j == i else x for j, x in enumerate(arrays)]
        assert_same_bits(function(*mixed), wanted)
    assert_same_bits(function(*map(make, arrays)), wanted)


@each_library
def test_arrays_are_read_where_they_lie(make):
    from regard._arguments.foreign import readable

    array = np.random.default_rng(2).standard_normal((5, 64, 8)).astype(np.float32)[:, ::2]
    foreign = make(array)
    read = readable("query", foreign)
    assert type(read) is np.ndarray
    assert_same_bits(read, array)
    if make is jax_array:
        assert read.ctypes.data == foreign.unsafe_buffer_pointer()
    else:
        assert np.shares_memory(read, array)


def test_memory_of_another_library_is_not_kept():
    class Tracked(np.ndarray):
        pass

    array = QUERY.copy().view(Tracked)
    gone = weakref.ref(array)
    sdpa(Exporter(array), KEY, VALUE)
    del array
    gc.collect()
    assert gone() is None


def with_gradient(array):
    return torch_tensor(array).clone().requires_grad_()


REFUSED = {
    # Dask would compute them as a whole, in this process.
    "dask": (dask_array, r"regard\.dask"),
    "dask in xarray": (lambda array: xarray_array(dask_array(array)), r"regard\.dask"),
    "a GPU": (lambda array: Exporter(array, (2, 0)), "in host memory"),
    "ROCm": (lambda array: Exporter(array, (10, 0)), "in host memory"),
    "a GPU, as of CUDA": (lambda array: OnDevice(), "in host memory"),
    "gradient": (with_gradient, r"regard\.torch.*\.detach\(\)"),
}


@each_call
@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_be_misread_is_refused_for_every_argument(call, kind):
    function, arrays = CALLS[call]
    make, advice = REFUSED[kind]
    for i, array in enumerate(arrays):
        if kind == "gradient" and array.dtype.kind != "f":
            continue
        if "GPU" in kind and i < 3 and call in ("attention", "masked", "pair", "ragged"):
            continue  # these go to regard.cuda
        mixed = [make(x) if j == i else x for j, x in enumerate(arrays)]
        with pytest.raises(TypeError, match=advice):
            function(*mixed)


def test_tensors_that_numpy_would_misread_are_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch._subclasses import FakeTensorMode

    tensor = torch.from_numpy(QUERY)
    pairs = torch.view_as_complex(tensor.reshape(4, 9, 4, 2).clone())
    with FakeTensorMode():
        fake = torch.empty(4, 9, 8)
    refused = {
        "pass query.float(), or query.view(torch.int16)": tensor.bfloat16(),
        "query.float()": tensor.to(torch.float8_e4m3fn),
        "tensor.resolve_neg": torch._neg_view(tensor),
        "tensor.resolve_conj": pairs.conj(),
        "Sparse": tensor.to_sparse(),
        "meta": tensor.to("meta"),
        "regard.torch": fake,
        "gradient": torch.nn.Parameter(tensor.clone()),
    }
    for word, query in refused.items():
        with pytest.raises(TypeError, match=says("query", word)):
            sdpa(query, KEY, VALUE)
    pages = torch.zeros(1, 16, 2, 8).to(torch.float8_e5m2)
    with pytest.raises(TypeError, match=says("key_pages", "ml_dtypes.float8_e5m2")):
        regard.paged_attention(np.zeros((1, 2, 1, 8)), pages, pages, [[0]], [1])
    with warnings.catch_warnings(), torch.autograd.forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's own warning
        dual = torch.autograd.forward_ad.make_dual(tensor, tensor)
        with pytest.raises(TypeError, match=says("query", "gradient", "regard.torch")):
            sdpa(dual, KEY, VALUE)
    for transform in (torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())):
        with pytest.raises(TypeError, match=says("regard.torch")):
            transform(lambda x: torch.from_numpy(sdpa(x, KEY, VALUE)))(tensor)


def test_traced_arrays_of_jax_are_refused():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    given = {"query": QUERY, "key": KEY, "value": VALUE, "sinks": SINKS}
    for name in ("query", "sinks"):
        with pytest.raises(TypeError, match=says(name, "regard.jax")):
            jax.jit(lambda x, name=name: sdpa(**given | {name: x}))(given[name])


class OnDevice:
    __cuda_array_interface__ = {"shape": (9, 9)}  # noqa: RUF012


class Failing:
    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


@each_call
def test_errors_of_an_object_that_is_read_propagate(call):
    function, arrays = CALLS[call]
    invalid = UnicodeDecodeError("utf-8", b"closed", 0, 1, "closed")  # a ValueError
    for error in (OSError("closed"), invalid, KeyboardInterrupt("closed")):
        for i in range(len(arrays)):
            mixed = [Failing(error) if j == i else x for j, x in enumerate(arrays)]
            with pytest.raises(type(error)) as caught:
                function(*mixed)
            assert caught.value is error
    with pytest.raises(OSError, match="closed") as raised:
        sdpa(*ARRAYS, sinks=Failing(OSError("closed")))
    assert raised.value.__notes__ == ["raised while sinks was read"]
