"""The cases that are timed during development, comparisons of regard with itself, and the goals.

``python -m benchmarks.table`` measures them with `regard._bench`, in the root of the repository.
"""
