"""Bugs in the caches of all layers, and in attention to the pages of other engines."""

from planted_bug import Bug

CACHE = "python/regard/_cache/"
TABLE = "cpp/dispatch/page_table.cpp"
STEP = "cpp/dispatch/append_step.cpp"
LAYERS = ("tests/cache/test_cache_layers.py", "tests/cache/test_cache_states.py")
PAGED = ("tests/cache/test_paged_attention.py",)

BUGS = [
    Bug(
        "all layers see the tokens of an unfinished step",
        TABLE,
        "step_ && step_->has_stored(layer) ? step_->after",
        "step_ ? step_->after",
        LAYERS,
        "a layer that has not appended yet, while another has",
    ),
    Bug(
        "a step takes effect when one layer is missing",
        STEP,
        "  return std::find(has_stored_.begin(), has_stored_.end(), 0) == has_stored_.end();\n",
        "  return std::count(has_stored_.begin(), has_stored_.end(), 0) <= 1;\n",
        LAYERS,
        "KVCaches: a step of all layers but one",
    ),
    Bug(
        "the pages of a step that is undone have an owner",
        TABLE,
        "  if (step_) pools_->give_back(step_->taken);\n  step_ = nullptr;\n",
        "  step_ = nullptr;\n",
        LAYERS,
        "KVCaches: rollback of a step that has taken pages",
    ),
    Bug(
        "a shared page is copied for the first array only",
        "cpp/dispatch/page_pool.cpp",
        "for (const PageRegion& region : layout.regions)\n",
        "for (const PageRegion& region : {layout.regions[0]})\n",
        LAYERS,
        "KVCaches: appending to a fork within a page",
    ),
    Bug(
        "layers append different numbers of tokens",
        STEP,
        "  if (more == counts) return;\n",
        "  return;\n",
        LAYERS,
        "KVCaches: a layer that appends fewer tokens than the first: no error",
    ),
    Bug(
        "all layers have the window of the first layer",
        "python/regard/_cache/geometry.py",
        "pools.index(layer.pool), layer.forms",
        "0, layer.forms",
        LAYERS,
        "KVCaches with windows in some layers",
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
        "      problem.are_keys_upright = rows_->are_keys_upright;\n",
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
