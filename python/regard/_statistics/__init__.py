"""Statistics of attention weights, without storing the weights.

The modules::

    summary          the functions that return numbers; target_keys finds the keys of the
                     previous-token and induction scores
    result           summaries as named tuples, dictionaries and pandas tables
    attention_map    the function that returns pictures
    calls            query, key and lse of these functions, and the layers of a recording
    rollout          the products of the weights of all layers, on the gradient of the values
"""
