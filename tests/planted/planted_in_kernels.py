"""Bugs in the kernels of one family, for which a build compiles little."""

from planted_bug import Bug

KERNELS = "cpp/kernels/"
OPTIONS = ("tests/attention/test_options.py", "tests/attention/test_attention.py")
DECODE = ("tests/attention/test_decode.py", "tests/attention/test_same_bits.py", *OPTIONS)
DERIVATIVES = ("tests/attention/test_derivatives.py",)
SUMMARY = ("tests/attention/test_summary.py",)
MATMUL = ("tests/attention/test_stages.py", "tests/attention/test_same_bits.py")

BUGS = [
    Bug(
        "sinks of a later strip begin with the task's first head",
        KERNELS + "strips/online_softmax.hpp",
        "start_with_sinks(problem, task, strip.first_row, strip.total, lanes)",
        "start_with_sinks(problem, task, task.row_begin, strip.total, lanes)",
        OPTIONS,
        "sinks, more rows than a strip has, and a group that does not divide a strip's lanes",
    ),
    Bug(
        "NaN in a hidden value's last column is not looked for",
        KERNELS + "attention/forward.hpp",
        "all_values_are_finite(block, problem.value_dim)",
        "all_values_are_finite(block, problem.value_dim - 1)",
        ("tests/attention/test_numerics.py", "tests/attention/test_same_bits.py"),
        "NaN or inf in the last column of a hidden value, in tiles that hide some keys",
    ),
    Bug(
        "returned weights do not include dropout",
        KERNELS + "attention/forward.hpp",
        "});\n    if (problem.dropout_factor != 0)\n      drop_weights",
        "});\n    if (problem.dropout_factor < 0)\n      drop_weights",
        ("tests/attention/test_dropout.py",),
        "dropout with return_weights",
    ),
    Bug(
        "a merged output keeps its reference",
        KERNELS + "strips/online_softmax.hpp",
        "added : load<T>(to) * shares.total + added",
        "added : load<T>(to) + added",
        (*OPTIONS, "tests/attention/test_decode.py"),
        "more than 1536 keys, or a sink, and a later chunk with a greater score",
    ),
    Bug(
        "the last key gets the scores of the previous key",
        KERNELS + "decode/decode_block.hpp",
        "const int last = block.count - 1 - key;",
        "const int last = block.count - 2 - key;",
        DECODE,
        "a decode whose last vector of keys is not whole",
    ),
    Bug(
        "four more rows use the weights of the first four",
        KERNELS + "decode/values.hpp",
        "const float* weights = work.scores + row * kDecodeBlock;",
        "const float* weights = work.scores;",
        DECODE,
        "16 registers: a decode of more than 4 rows",
    ),
    Bug(
        "values that begin with the keys are in them",
        KERNELS + "attention/plain_values.hpp",
        " && a.page_stride == b.page_stride",
        "",
        ("tests/cache/test_value_from_key.py",),
        "pages of keys and of values that begin at one address and have other strides",
    ),
    Bug(
        "a decode takes the mask of the group's first head",
        KERNELS + "decode/decode_masks.hpp",
        "(task.row_begin + row) % group * mask.head_stride + key * mask.column_stride",
        "0 * group * mask.head_stride + key * mask.column_stride",
        DECODE,
        "a decode with groups and a mask for each head",
    ),
    Bug(
        "gradients of slopes are computed after the cap",
        KERNELS + "backward/backward.hpp",
        "    if (task.slope_terms) {\n",
        "    if (work.score_factors) Scores::apply_factors(work, number, runs);\n"
        "    if (task.slope_terms) {\n",
        DERIVATIVES,
        "the gradient of alibi_slopes with a softcap",
    ),
    Bug(
        "the cap's derivative is left out in forward mode",
        KERNELS + "tangent/tangent.hpp",
        "        if (transforms_scores<T>(strip))\n          tangent",
        "        if (false)\n          tangent",
        DERIVATIVES,
        "forward mode with a softcap",
    ),
    Bug(
        "other numbers of a block keep their reference",
        KERNELS + "strips/online_softmax.hpp",
        "        if (block.others) rescale(block.others + k * kWidth);\n",
        "",
        DERIVATIVES,
        "forward mode if a later key of a block has a much greater score",
    ),
    Bug(
        "a band uses the first strip's vectors for all strips",
        KERNELS + "backward/products.hpp",
        "const int first = run.vectors[s].begin * kLanes<T>, end = run.vectors[s].end * kLanes<T>;",
        "const int first = run.vectors[0].begin * kLanes<T>, end = run.vectors[0].end * kLanes<T>;",
        DERIVATIVES,
        "gradients of keys at the edge of what queries see, and more queries than a strip has",
    ),
    Bug(
        "a chunk of statistics is counted twice",
        KERNELS + "summary/weighing.hpp",
        "      store(from.log_weight + i, Vec<T>{});\n",
        "",
        ("tests/attention/test_summary.py",),
        "statistics over more than one block of keys",
    ),
    Bug(
        "among equal weights, one takes two places",
        KERNELS + "summary/top_keys.hpp",
        "const Mask<T> moves = weight > here,",
        "const Mask<T> moves = (weight > here) | ((weight == here) & (weight > Vec<T>{})),",
        SUMMARY,
        "top_k if two keys of a query have the same weight",
    ),
    Bug(
        "the mean in int8 counts padding",
        KERNELS + "int8/keys.hpp",
        "const std::int64_t first = clamp(task.key_begin - key, 0, count);",
        "const std::int64_t first = clamp(task.key_begin - key, 0, 0);",
        ("tests/attention/test_int8.py",),
        "precision int8 with left_padding: bits depend on the contents of padding",
    ),
    Bug(
        "a row is divided by an empty sum of exponentials",
        KERNELS + "rows/softmax.hpp",
        "select<T>(sum == Vec<T>{}, Vec<T>{}, broadcast(T(1)) / sum)",
        "broadcast(T(1)) / sum",
        ("tests/attention/test_stages.py",),
        "softmax of rows of -inf along an axis other than the last",
    ),
    Bug(
        "a piece of a row with gaps begins too early",
        KERNELS + "rows/merge_states.hpp",
        "from + begin * stride, stride",
        "from + begin, stride",
        ("tests/attention/test_merge.py",),
        "merge_attention_states of outputs with gaps and more than 256 columns",
    ),
    Bug(
        "the last columns may become infinite",
        KERNELS + "rows/convert_rows.hpp",
        "  found |= overflows<To>(rest);\n",
        "",
        ("tests/cache/test_store_rows.py", "tests/cache"),
        "a cache of 16 bits whose rows are not whole vectors: an overflow there is silent",
    ),
    Bug(
        "each wave of depth restarts its sums",
        KERNELS + "matmul/matmul.hpp",
        "{nullptr, 0, 0, panels}, depth, k > 0}",
        "{nullptr, 0, 0, panels}, depth, k > wave.depth_begin}",
        MATMUL,
        "matmul of many rows and columns, and a depth of more than 512",
    ),
]
