"""Time regard and other engines on a user's shapes; ``python -m regard bench`` is the command.

The modules build on each other in this order:

- `machine`: the processor, its caches and the memory
- `engines`: attention in regard, NumPy, PyTorch and ONNX Runtime
- `problems`: arrays, the work that they need, and rows of the result in float64
- `cases`, `shapes`: problems with names and units, from shapes as text
- `rounds`, `measuring`, `fresh_process`: interleaved timing of all engines, in a separate process
- `results`, `text`, `report`, `plot`, `document`: the results as text, as a picture, and as JSON

``benchmarks/table`` adds the cases for the development of regard.
"""
