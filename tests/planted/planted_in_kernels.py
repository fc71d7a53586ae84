"""Bugs in the kernels of one family, of which a build compiles little."""

from planted_bug import Bug

KERNELS = "cpp/kernels/"
OPTIONS = ("tests/attention/test_options.py",)
DECODE = ("tests/attention/test_decode.py", "tests/attention/test_bit_equality.py", *OPTIONS)
BACKWARD = ("tests/attention/test_backward.py",)
SUMMARY = ("tests/attention/test_summary.py",)
JVP = ("tests/attention/test_jvp.py",)
MATMUL = ("tests/attention/test_stages.py", "tests/attention/test_bit_equality.py")

BUGS = [
    Bug(
        "sinks of a later strip begin with the task's first head",
        KERNELS + "attention/forward.hpp",
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
        ("tests/attention/test_numerics.py", "tests/attention/test_containment.py"),
        "NaN or inf in the last column of a hidden value, in tiles that hide some keys",
    ),
    Bug(
        "returned weights are not those after dropout",
        KERNELS + "attention/forward.hpp",
        "drop_weights<kVectors>(problem, task, strip, block.begin, &all, 1, work.weights);",
        "drop_weights<kVectors>(problem, task, strip, block.begin, &all, 0, work.weights);",
        ("tests/attention/test_dropout.py",),
        "dropout with return_weights",
    ),
    Bug(
        "a merged output keeps its reference",
        KERNELS + "attention/strip_output.hpp",
        "part : load<T>(to) * shares.total + part",
        "part : load<T>(to) + part",
        OPTIONS,
        "more than 1536 keys, or a sink, and a later chunk with a greater score",
    ),
    Bug(
        "rows of a second vector merge with the first vector's factors",
        KERNELS + "decode/decode.hpp",
        "broadcast(shares[row / kLanes<T>].part[row % kLanes<T>])",
        "broadcast(shares[0].part[row % kLanes<T>])",
        DECODE,
        "a decode of more rows than a vector has lanes (float64, or 128 bits), of several chunks",
    ),
    Bug(
        "a vector of keys that waits for another is left out",
        KERNELS + "decode/register_scores.hpp",
        "if (waiting == 1) {",
        "if (waiting == 1 && kRows > 1) {",
        DECODE,
        "512 bits: a decode of one row, and an odd number of whole vectors of keys",
    ),
    Bug(
        "the last key takes the scores of the one before",
        KERNELS + "decode/rows_in_lanes.hpp",
        "const int last = block.count - begin - 1;",
        "const int last = block.count - begin - 2;",
        DECODE,
        "16 registers: a decode of 4 or 8 rows",
    ),
    Bug(
        "four more rows take the weights of the first four",
        KERNELS + "decode/values.hpp",
        "const T* weights = work.scores + row * kBlock;",
        "const T* weights = work.scores;",
        DECODE,
        "16 registers: a decode of more than 4 rows",
    ),
    Bug(
        "queries of a decode are rounded to float32",
        KERNELS + "decode/scores.hpp",
        "static_cast<T>(widen(from[i * problem.query.column_stride]))",
        "static_cast<float>(widen(from[i * problem.query.column_stride]))",
        DECODE,
        "a decode in float64",
    ),
    Bug(
        "a decode takes the mask of the group's first head",
        KERNELS + "decode/visibility.hpp",
        "(task.row_begin + row) % group * mask.head_stride + key * mask.column_stride",
        "0 * group * mask.head_stride + key * mask.column_stride",
        DECODE,
        "a decode with groups and a mask for each head",
    ),
    Bug(
        "a sum keeps its reference while the output moves",
        KERNELS + "decode/weights.hpp",
        "    state.sum[row] *= factor;\n",
        "",
        ("tests/attention/test_numerics.py", *DECODE),
        "a decode whose reference moves after its first block",
    ),
    Bug(
        "gradients of slopes come after the cap",
        KERNELS + "backward/backward.hpp",
        "    if (task.slope_terms) Block::add_slope_terms(runs, work, key, "
        "work.grad_queries + head_dim * width);\n"
        "    if (work.softcap != T(0)) Block::apply_cap(runs, work);\n",
        "    if (work.softcap != T(0)) Block::apply_cap(runs, work);\n"
        "    if (task.slope_terms) Block::add_slope_terms(runs, work, key, "
        "work.grad_queries + head_dim * width);\n",
        BACKWARD,
        "the gradient of alibi_slopes with a softcap",
    ),
    Bug(
        "NaN in a query's last column is not looked for",
        KERNELS + "backward/backward.hpp",
        "!are_finite(work.query_rows, work.strip.rows, forward.head_dim)",
        "!are_finite(work.query_rows, work.strip.rows, forward.head_dim - 1)",
        ("tests/attention/test_backward_containment.py",),
        "NaN or inf in the last column of a query, and the gradients of keys hidden from it",
    ),
    Bug(
        "slopes of a later strip begin with the group's first head",
        KERNELS + "backward/strip.hpp",
        "(strip.first_row + lane) % group",
        "lane % group",
        BACKWARD,
        "gradients with alibi_slopes, and a group that does not divide a strip's lanes",
    ),
    Bug(
        "the cap's derivative is left out along the keys alone",
        KERNELS + "tangent/block.hpp",
        "if (has_tangents) apply_cap_to_tangents",
        "if (task.tangent_query) apply_cap_to_tangents",
        JVP,
        "forward mode with a softcap and tangent_key alone",
    ),
    Bug(
        "NaN in a hidden tangent of values is not looked for",
        KERNELS + "tangent/tangent.hpp",
        "are_finite(block.values, count, forward.value_dim) &&\n"
        "                              are_finite(block.tangent_values, count, forward.value_dim);",
        "are_finite(block.values, count, forward.value_dim);",
        JVP,
        "forward mode with NaN or inf in tangent_value at a hidden key",
    ),
    Bug(
        "of equal weights one takes two places",
        KERNELS + "summary/top_keys.hpp",
        "const Mask<T> moves = weight > here,",
        "const Mask<T> moves = (weight > here) | ((weight == here) & (weight > Vec<T>{})),",
        SUMMARY,
        "top_k where two keys of a query have the same weight",
    ),
    Bug(
        "the mean in int8 counts padding",
        KERNELS + "int8/keys.hpp",
        "const std::int64_t first = clamp(task.key_begin - key, 0, count);",
        "const std::int64_t first = clamp(task.key_begin - key, 0, 0);",
        ("tests/attention/test_int8.py",),
        "precision int8 with left_padding: bits follow from what padding holds",
    ),
    Bug(
        "the fourth maximum is left out",
        KERNELS + "rows/softmax.hpp",
        "maximum<T>(tops[2], tops[3])",
        "tops[2]",
        ("tests/attention/test_stages.py",),
        "softmax of a row whose largest element is far above the others, at some places",
    ),
    Bug(
        "the sum of no exponentials is divided by",
        KERNELS + "rows/softmax.hpp",
        "select<T>(sum == Vec<T>{}, Vec<T>{}, broadcast(T(1)) / sum)",
        "broadcast(T(1)) / sum",
        ("tests/attention/test_stages.py",),
        "softmax along another axis than the last, of rows of -inf",
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
        "few rows begin each interval of depth anew",
        KERNELS + "matmul/few_rows.hpp",
        "const bool adds = k > 0;",
        "const bool adds = k > task.depth_begin;",
        ("tests/attention/test_stages.py", "tests/attention/test_narrow_weights.py"),
        "matmul of few rows that is so deep that it looks at the stop signal between",
    ),
    Bug(
        "each wave of depth begins anew",
        KERNELS + "matmul/matmul.hpp",
        "{nullptr, 0, 0, panels}, depth, k > 0}",
        "{nullptr, 0, 0, panels}, depth, k > wave.depth_begin}",
        MATMUL,
        "matmul of many rows and columns, and a depth of more than 512",
    ),
]
