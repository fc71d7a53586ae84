"""Test what an installed package promises before it computes anything."""

import ast
import importlib.metadata
import importlib.resources
import json
import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import regard


def test_types_are_shipped_and_only_numpy_is_required():
    files = importlib.resources.files("regard")
    assert files.joinpath("py.typed").is_file()
    assert "def " in files.joinpath("_core.pyi").read_text()
    assert regard.__version__ == importlib.metadata.version("regard")
    required = importlib.metadata.requires("regard") or []
    names = [re.match(r"[\w.-]+", line)[0] for line in required if "extra ==" not in line]
    assert names == ["numpy"]


def test_import_pulls_in_little_and_prints_nothing(output_of):
    """In addition to NumPy, it imports the extension module and the modules of attention and its
    stages. Packages (caches, layers, gradients, statistics, the command line) wait until they are
    used."""
    script = """
    import json, sys
    import numpy
    before = set(sys.modules)
    import regard
    print(json.dumps(sorted(set(sys.modules) - before)))
    """
    loaded = set(json.loads(output_of(script)))
    assert {"regard", "regard._attention.dense", "regard._attention.stages"} <= loaded
    others = {name for name in loaded if name.partition(".")[0] != "regard"}
    assert others <= {"__future__", "dataclasses", "platform"}
    packages = {name.split(".")[1] for name in loaded if name.count(".") > 1}
    assert packages == {"_arguments", "_attention", "_core", "_runtime", "_weights"}


def test_names_are_imported_on_first_use(output_of):
    """Each name is used first once, so that none depends on what another one imported."""
    script = """
    import sys
    import regard
    for name in (*regard._MODULES_OF, *(regard._SUBMODULES - {"plot"})):
        for module in [each for each in sys.modules if each.startswith("regard._")]:
            if not module.startswith("regard._core"):
                del sys.modules[module]
        vars(regard).pop(name, None)
        assert name in dir(regard), name
        getattr(regard, name)
    try:
        regard.nonsense
    except AttributeError as error:
        print(error)
    """
    assert output_of(script) == "module 'regard' has no attribute 'nonsense'"


def test_type_checkers_are_told_the_same_names():
    tree = ast.parse(Path(regard.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    told = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            told[node.name] = None
        elif isinstance(node, ast.ImportFrom):
            told |= {each.name: node.module for each in node.names if each.asname == each.name}
    assert sorted(told) == regard._NAMES
    assert {name: told[name] or of for name, of in regard._MODULES_OF.items()} == regard._MODULES_OF
    assert {name for name, module in told.items() if module == "regard"} == regard._SUBMODULES


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL"
)
def test_import_leaves_the_gil_off(output_of):
    assert output_of("import sys, regard; print(sys._is_gil_enabled())") == "False"


@pytest.mark.parametrize("threads", [1, 3])
def test_kernels_keep_subnormals_in_every_worker(threads, dtype, target):
    """There are enough elements for each thread: a thread that flushed subnormals would leave
    zeros."""
    least = np.finfo(dtype).smallest_subnormal
    tiny = np.arange(1, 100_001, dtype=dtype).reshape(4, 5, 5000) * least
    assert tiny.max() < np.finfo(dtype).tiny
    assert np.array_equal(regard.scale(tiny, 1.0, threads=threads), tiny)
    assert np.array_equal(regard.apply_mask(tiny, np.ones(1, bool), threads=threads), tiny)
    assert np.array_equal(regard.apply_mask(-tiny, tiny, threads=threads), np.zeros_like(tiny))
    one, column = np.ones((4, 1, 1), dtype), tiny.reshape(4, 25_000, 1)
    assert np.array_equal(regard.matmul(column, one, threads=threads), column)
    query, key = np.ones((4, 300, 4), dtype), np.zeros((4, 1, 4), dtype)
    output = regard.scaled_dot_product_attention(query, key, tiny[:, :1, :64], threads=threads)
    assert np.array_equal(output, np.repeat(tiny[:, :1, :64], 300, axis=1))
