"""Test what a type checker makes of the public calls: the type of each result, and what it
refuses."""

import re
import subprocess
import sys

import pytest

pytest.importorskip("mypy")

ARRAY, PAIR, TRIPLE = "Array", "tuple[Array, Array]", "tuple[Array, Array, Array]"
DENSE = "regard.scaled_dot_product_attention(x, x, x{})"
RAGGED = "regard.scaled_dot_product_attention_ragged(x, x, x, [0, 3], [0, 3]{})"
CACHED = "regard.KVCache(1, 1, 4).attend(x{})"
RESULTS = {
    "": ARRAY,
    ", return_weights=False, return_lse=False": ARRAY,
    ", return_weights=True": PAIR,
    ", return_lse=True": PAIR,
    ", return_weights=True, return_lse=True": TRIPLE,
}
OPTIONS = [
    "",
    ", None, is_causal=True, query_offset=np.arange(2), window=(1, None), key_lengths=[2, 3]",
    ", mask=x > 0, scale=0.5, softcap=30.0, alibi_slopes=[0.5], sinks=x[0], out=x, threads=2",
    ", precision='int8'",
    ", device='cuda'",
]
OF_CACHES = ["", ", x > 0, is_causal=False, query_offset=[1], precision='bfloat16'"]
TYPES = {
    call.format(options + wanted): result
    for call, all_options in ((DENSE, OPTIONS), (RAGGED, OPTIONS), (CACHED, OF_CACHES))
    for options in all_options
    for wanted, result in RESULTS.items()
} | {
    "regard.explain(x, x, x, is_causal=True, window=(1, None), threads=2)": "regard.Explanation",
    "regard.merge_attention_states([x], [x])": PAIR,
    "regard.linear_attention(x, x, x, decay=x, state=x, return_state=True, out=(x, None))": PAIR,
    "regard.linear_attention_backward(x, x, x, x, beta=x).key": ARRAY,
    "regard.attend_stream(x, regard.KeyValueChunks(x, x), x > 0, return_lse=True)": PAIR,
    "regard.KVCache(1, 1, 4, keep_last=3).fork()": "regard.KVCache",
    "regard.KVCache.load('x', mmap=True).lengths": "NDArray[np.int64]",
    "len(regard.KVCache(1, 1, 4, 5, dtype='int8', capacity=3, page_size=16))": "int",
    "regard.masks.window(3, window=(1, None), query_offset='end')": "NDArray[np.bool_]",
}
WRONG = ["dropout=0.1", 'scale="small"', "window=3", "is_causal=None", "threads=1.5", "None, True"]
REFUSED = [
    *(
        call.format(f", {wrong}")
        for call in (DENSE, RAGGED, "regard.explain(x, x, x{})")
        for wrong in (*WRONG, "precision='int4'")
    ),
    "regard.positional.rotary(x, theta=500.0)",
    "regard.MultiHeadAttention(8, 2, embed_dim=8)",
    "regard.MultiHeadAttention(8, 2)(x, attn_mask=None)",
    "regard.KVCache(1, 1, 4).attend(x, key_lengths=[3])",
    "regard.KVCache.load('x', 'w')",
]
HEAD = """\
from typing import Any, assert_type
import numpy as np
from numpy.typing import NDArray
import regard
Array = NDArray[Any]
x = np.ones((3, 4), np.float32)
"""


@pytest.mark.slow
def test_types_of_results_and_arguments(tmp_path):
    accepted = [f"assert_type({call}, {type_})" for call, type_ in TYPES.items()]
    statements = accepted + REFUSED
    (tmp_path / "script.py").write_text(HEAD + "\n".join(statements) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--config-file="]
    done = subprocess.run(
        [*command, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert re.search(r"^Found \d+ error", done.stdout, re.MULTILINE), done
    found = re.findall(r"^script\.py:(\d+): error: ", done.stdout, re.MULTILINE)
    refused = {statements[int(line) - len(HEAD.splitlines()) - 1] for line in found}
    assert refused == {*REFUSED}, done.stdout
