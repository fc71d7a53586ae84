"""Bugs in how problems are divided, and in the code that reads arrays and arguments."""

from planted_bug import Bug

DISPATCH = "cpp/dispatch/"
BINDINGS = "cpp/bindings/"
ERRORS = ("tests/wrong_calls/test_wrong_stages.py", "tests/attention/test_layouts.py")
OPTIONS = ("tests/attention/test_options.py", "tests/attention/test_attention.py")

BUGS = [
    Bug(
        "of keys with equal indices, the last are selected",
        DISPATCH + "attention/selection.cpp",
        "a.index == b.index && a.key < b.key",
        "a.index == b.index && a.key > b.key",
        ("tests/attention/test_select_keys.py",),
        "keys that an index selects, if several have the same index",
    ),
    Bug(
        "chunks are merged from the last to the first",
        DISPATCH + "attention/chunks.cpp",
        "for (std::size_t i = 0; i < chunks.size(); ++i)\n      kernel.merge",
        "for (std::size_t i = chunks.size(); i-- > 0;)\n      kernel.merge",
        ("tests/attention/test_decode.py", "tests/process/test_threads.py"),
        "bits of a decode whose keys several threads share",
    ),
    Bug(
        "heads share the memory of partial gradients",
        DISPATCH + "attention/backward.cpp",
        "has_partials ? wave.bytes + i * partial_bytes : -1",
        "has_partials ? i * partial_bytes : -1",
        ("tests/attention/test_derivatives.py",),
        "gradients of queries of several heads and several chunks of keys",
    ),
    Bug(
        "the remainder after equal shares belongs to no thread",
        DISPATCH + "threads/parallel_for.cpp",
        "ranges[i].end = tasks * (i + 1) / range_count;",
        "ranges[i].end = tasks / range_count * (i + 1);",
        ("tests/attention/test_stages.py", "tests/process/test_threads.py"),
        "matmul on several threads, whose number does not divide the number of tasks",
    ),
    Bug(
        "statistics of a group read other keys",
        DISPATCH + "attention/summary.cpp",
        "HeadPlace(problem_.forward, entry, head / group)",
        "HeadPlace(problem_.forward, entry, head % problem_.forward.kv_heads)",
        ("tests/attention/test_summary.py",),
        "statistics with groups and several key heads",
    ),
    Bug(
        "entries with different padding share keys in int8",
        DISPATCH + "attention/int8_waves.cpp",
        "identity{task.key, task.pages, task.key_begin, task.kv_len}",
        "identity{task.key, task.pages, 0, task.kv_len}",
        ("tests/attention/test_int8.py",),
        "precision int8, keys that are broadcast over the batch, left_padding for each entry",
    ),
    Bug(
        "'end' means the end of the array",
        DISPATCH + "attention/tasks.cpp",
        ": task.kv_len - queries_of(problem, entry);",
        ": keys_of(problem, entry) - queries_of(problem, entry);",
        OPTIONS,
        "query_offset='end' with key_lengths",
    ),
    Bug(
        "bytes in the other order are read without swapping",
        BINDINGS + "arrays.cpp",
        "if (type->byteorder == '>' || type->byteorder == '<') return false;",
        "if (type->byteorder == '<') return false;",
        ("tests/attention/test_layouts.py",),
        "big-endian arrays on a little-endian CPU",
    ),
    Bug(
        "an axis of length 1 is traversed",
        BINDINGS + "arrays.cpp",
        "axis >= missing && view.shape[own] != 1;",
        "axis >= missing;",
        ("tests/attention/test_layouts.py", "tests/attention/test_attention.py"),
        "batch axes of length 1 that are broadcast",
    ),
    Bug(
        "memory before a reversed array's first element does not count as its own",
        BINDINGS + "result.cpp",
        "(reach < 0 ? extent.begin : extent.end) += reach;",
        "if (reach > 0) extent.end += reach;",
        ERRORS,
        "an out with negative strides that overlaps an input: no error",
    ),
    Bug(
        "out may overlap the table of distances",
        BINDINGS + "attention_call.cpp",
        "  if (options.distance_bias.array) keep_input(options.distance_bias);\n",
        "",
        ("tests/attention/test_overlap.py",),
        "an out that overlaps distance_bias: wrong numbers",
    ),
    Bug(
        "output may be wider than the inputs",
        BINDINGS + "backward_call.cpp",
        "  check_type(output, call);\n",
        "",
        ("tests/wrong_calls/test_wrong_attention.py",),
        "gradients with a float64 output and float32 inputs: no error",
    ),
    Bug(
        "one evicted token may be requested",
        BINDINGS + "cached_attention.cpp",
        "if (queries == 0 || lowest >= kept || highest < first) return;",
        "if (queries == 0 || lowest + 1 >= kept || highest < first) return;",
        ("tests/cache/test_cache_window.py", "tests/cache"),
        "a cache's query that would see only the last evicted position: no error",
    ),
    Bug(
        "rows of a broadcast mask become one row",
        BINDINGS + "stages.cpp",
        "if (!continues(&Axis::input) || !continues(&Axis::mask) || !continues(&Axis::output)) "
        "continue;",
        "if (!continues(&Axis::input) || !continues(&Axis::output)) continue;",
        ("tests/attention/test_stages.py",),
        "apply_mask with a mask that is broadcast",
    ),
    Bug(
        "a window's right side overrides causality",
        BINDINGS + "options.cpp",
        "problem.window_right = options.is_causal ? 0 : options.window_right;",
        "problem.window_right =\n"
        "      options.is_causal && options.window_right == kUnbounded ? 0 : options.window_right;",
        OPTIONS,
        "is_causal with a window that has a right side",
    ),
]
