"""Derivatives of attention.

The modules::

    backward           the gradients of the dense and the ragged call; wanted checks the requested
                       gradients
    jvp                the derivative along a direction
    formula            the formula, in PyTorch or JAX, which differentiate it
    linear_backward    the gradients of `linear_attention`
    merge_backward     the gradients of `merge_attention_states`, in NumPy
    stages             the gradients of the four stages, in NumPy on the stages
"""
