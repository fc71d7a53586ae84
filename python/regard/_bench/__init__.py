"""Time regard and other engines on the same problems; ``python -m regard bench`` is its command.

The modules build on each other in this order:

- `machine`: its processor, caches and memory
- `engines`: attention, products and softmax in regard, NumPy, PyTorch and ONNX Runtime
- `problems`, `cached_problems`: arrays, the work they take, and rows of the result in float64
- `cases`, `shapes`: the table of what is timed, and problems of the user's own
- `rounds`, `measuring`, `fresh_process`: each engine in turn, in a process of its own
- `results`, `goals`: what was measured, and what regard is expected to reach
- `report`, `plot`, `document`: the results as text, as a picture, and as JSON
"""
