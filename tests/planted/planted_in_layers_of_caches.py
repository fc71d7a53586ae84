"""Bugs in the caches of all layers, and in attention to the pages of other engines."""

from planted_bug import Bug

CACHE = "python/regard/_cache/"
LAYERS = ("tests/cache/test_cache_layers.py",)
PAGED = ("tests/cache/test_paged_attention.py",)

BUGS = [
    Bug(
        "all layers see the tokens of an unfinished step",
        CACHE + "layer.py",
        " and self.number in step.layers:",
        ":",
        LAYERS,
        "a layer that has not appended yet, while another has",
    ),
    Bug(
        "a step takes effect when one layer is missing",
        CACHE + "content.py",
        "if len(step.layers) + 1 == self.geometry.layers:",
        "if len(step.layers) + 2 >= self.geometry.layers:",
        LAYERS,
        "KVCaches: a step of all layers but one",
    ),
    Bug(
        "the pages of an unfinished step have no owner",
        CACHE + "content.py",
        "return [np.setdiff1d(after, before)]",
        "return [np.zeros(0, np.int32)]",
        LAYERS,
        "KVCaches: an interruption elsewhere in the middle of a step, then other appends",
    ),
    Bug(
        "a shared page is copied for the first layer only",
        CACHE + "storage/rows.py",
        "array[to, :, :, :tokens] = array[page, :, :, :tokens]",
        "array[to, :1, :, :tokens] = array[page, :1, :, :tokens]",
        LAYERS,
        "KVCaches: appending to a fork within a page",
    ),
    Bug(
        "layers append different numbers of tokens",
        CACHE + "step.py",
        "if not np.array_equal(counts, self.counts):",
        "if False:",
        LAYERS,
        "KVCaches: a layer that appends fewer tokens than the first: no error",
    ),
    Bug(
        "a child writes to the pages of its parent",
        CACHE + "layer.py",
        "            if room.is_foreign():\n                return False\n",
        "",
        LAYERS,
        "os.fork(), then a token for the fork of a cache in a file",
    ),
    Bug(
        "a page after the last one of a pool is read",
        CACHE + "paged.py",
        "(table < 0) | (table >= count)",
        "(table < 0) | (table > count)",
        PAGED,
        "paged_attention with the number of pages in block_table: a different error, raised later",
    ),
    Bug(
        "scales of heads are used as scales of rows",
        CACHE + "paged.py",
        "scales = scales[:, None] if heads_at == 1 else scales",
        "scales = scales if heads_at == 1 else scales",
        PAGED,
        "paged_attention to int8 in HND with a scale for each head",
    ),
    Bug(
        "int8 keys of other engines are multiplied with rotated queries",
        "cpp/bindings/cached_attention.cpp",
        "      problem.are_keys_upright = rows.are_keys_upright;\n",
        "",
        PAGED,
        "paged_attention to int8",
    ),
    Bug(
        "steps that cross a page are read in place",
        "cpp/kernels/decode/decode_block.hpp",
        "problem.page_rows % kDecodeStep == 0 &&",
        "true &&",
        PAGED,
        "paged_attention, decodes of pages whose size is not a multiple of 8",
    ),
    Bug(
        "int8 scales are read as if they were contiguous",
        "cpp/kernels/kv_rows.hpp",
        "static_cast<T>(from[i * stride])",
        "static_cast<T>(from[i])",
        PAGED,
        "paged_attention to int8 in NHD, or with one scale for many rows",
    ),
]
