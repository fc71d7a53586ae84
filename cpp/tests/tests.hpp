// The tests of each source, for one target at a time.
#pragma once

// CPU features read by the dispatch, against the compiler's run-time library, if that is linked.
void test_cpu_features();

// The pages of caches, which need no kernels.
void test_page_table();

// Attention of every kind of case.
template <class T>
void test_attention();

// bfloat16 products, and attention computed with them.
void test_bfloat16();

// Gradients, and derivatives along a direction.
template <class T>
void test_gradients();

// Attention to keys and values in pages, and in int8.
void test_kv_rows();

// The same in float8 and in 4 bits, and the rounding of rows to these types.
void test_fewer_bits();

// Distance biases, per-head numbers, functions of scores.
template <class T>
void test_score_options();

// Attention under sparse masks.
template <class T>
void test_sparse_mask();

// Statistics and maps of weights.
template <class T>
void test_summary();

// Attention to the keys that a query sees by position.
template <class T>
void test_visibility();
