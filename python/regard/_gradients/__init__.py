"""Derivatives of attention.

These modules are its parts::

    backward           the gradients of the dense and the ragged call; wanted checks which are asked
                       for, and sums adds up what rows give to slopes and sinks
    jvp                the derivative along a direction
    double_backward    the gradients of gradients, in NumPy on `matmul`: second_order_sums goes
                       through heads, and second_order computes one
    merge_backward     the gradients of `merge_attention_states`, in NumPy
"""
