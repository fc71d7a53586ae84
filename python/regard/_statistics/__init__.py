"""Statistics of attention weights, without storing the weights.

These modules are its parts::

    summary          the functions that return numbers; request checks and names the requested
                     results, and target_keys finds the keys of the previous-token and induction
                     scores
    attention_map    the function that returns pictures
"""
