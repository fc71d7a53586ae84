"""threadpoolctl finds regard and limits its threads, once regard is registered with it."""

import pytest

pytest.importorskip("threadpoolctl")

ORDERS = {
    "threadpoolctl first": "import threadpoolctl, regard",
    "regard first": "import regard, threadpoolctl; regard.register_with_threadpoolctl()",
}


@pytest.fixture(params=ORDERS)
def imports(request):
    return ORDERS[request.param] + "\nimport numpy as np\n"


def test_limits_are_regards_too(imports, output_of):
    script = """
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits
def of_regard():
    return regard.get_num_threads()
def of_blas():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}
assert of_regard() == 3
blas = of_blas()
with threadpool_limits(1):
    assert of_regard() == 1 and of_blas() <= {1}
    with threadpool_limits(2, user_api="regard"):
        assert of_regard() == 2 and of_blas() <= {1}
    assert of_regard() == 1
assert of_regard() == 3 and of_blas() == blas
with threadpool_limits(1, user_api="blas"):
    assert of_regard() == 3 and of_blas() <= {1}
with ThreadpoolController().limit(limits={"regard": 1}):
    assert of_regard() == 1 and of_blas() == blas
    x = np.random.default_rng(0).standard_normal((4, 300, 64))
    limited = regard.explain(x, x, x)
    assert limited.threads == 1
    alone = regard.scaled_dot_product_attention(x, x, x).tobytes()
assert regard.explain(x, x, x).threads == 3
assert regard.scaled_dot_product_attention(x, x, x).tobytes() == alone
# What the environment chose is its choice again; what the caller chose is the caller's.
assert regard.show_config(mode="dicts")["threads_reason"] == "REGARD_NUM_THREADS"
regard.set_num_threads(2)
with threadpool_limits(1):
    pass
assert (of_regard(), regard.show_config(mode="dicts")["threads_reason"]) == (2, "set_num_threads")
import os
(told,) = [each for each in threadpool_info() if each["user_api"] == "regard"]
assert os.path.samefile(told["filepath"], regard._core.__file__), told
assert told["num_threads"] == 2
assert (told["internal_api"], told["version"]) == ("regard", regard.__version__)
print("done")
"""
    assert output_of(imports + script, REGARD_NUM_THREADS="3") == "done"


def test_without_threadpoolctl(tmp_path, output_of):
    """Its absence is reported as usual. A version too old for controllers is left unchanged."""
    script = f"""
    import importlib, sys
    import regard
    regard.softmax([1.0])
    assert "threadpoolctl" not in sys.modules
    before = list(sys.path)
    sys.path = []
    try:
        import threadpoolctl
    except ModuleNotFoundError as error:
        print(error)
    try:
        regard.register_with_threadpoolctl()
    except ImportError as error:
        print(error)
    sys.path = [{str(tmp_path)!r}, *before]
    open({str(tmp_path / "threadpoolctl.py")!r}, "w").write("LibController = object")
    importlib.invalidate_caches()
    import threadpoolctl
    print(threadpoolctl.LibController is object)
    try:
        regard.register_with_threadpoolctl()
    except ImportError as error:
        print(error)
    """
    missing = "No module named 'threadpoolctl'"
    *first, old = output_of(script).splitlines()
    assert first == [missing, missing, "True"]
    assert "threadpoolctl must be version 3.2 or later" in old
