"""Derivatives of attention.

The modules::

    backward           the gradients of the dense and the ragged call; wanted checks the requested
                       gradients, and sums adds up the gradients of slopes and sinks over rows
    blocks             blocks of queries, of a bounded number of scores, and the keys that they see
    jvp                the derivative along a direction
    double_backward    the gradients of gradients, in NumPy on `matmul`: second_order_sums iterates
                       over heads, and second_order computes one block of queries
    merge_backward     the gradients of `merge_attention_states`, in NumPy
    stages             the gradients of the four stages, in NumPy on the stages
"""
