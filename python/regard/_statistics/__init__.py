"""Statistics of attention weights, without storing the weights.

The modules::

    summary          the functions that return numbers; request checks and names the requested
                     results, and target_keys finds the keys of the previous-token and induction
                     scores
    result           summaries, also as pandas tables and as dictionaries
    of_layers        the results for each layer of a recording
    attention_map    the function that returns pictures
    rollout          the products of the weights of all layers, on the gradient of the values
"""
