// The tests of each source, for one target at a time.
#pragma once

// What the dispatch reads from the CPU against what the compiler's own run-time library does, where that is linked.
void test_cpu_features();

// Attention of every kind of case.
template <class T>
void test_attention();

// Products of bfloat16, and attention made of them.
void test_bfloat16();

// Gradients, and derivatives along a direction.
template <class T>
void test_gradients();

// Attention to keys and values in pages, and as int8.
void test_kv_rows();

// The same as float8 and in 4 bits, and how rows are rounded to these.
void test_fewer_bits();

// Biases of distances, numbers of heads, functions of scores.
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
