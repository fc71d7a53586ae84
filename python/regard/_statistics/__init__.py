"""What attention's weights are like, without having them.

These modules are its parts::

    summary          the functions that say it in numbers; request checks and names what is asked
                     for, and target_keys finds the keys of the previous-token and induction scores
    attention_map    the function that makes pictures
"""
