"""Time regard and other engines; ``python -m regard bench`` and ``benchmarks/`` use these modules.

- `machine`: the processor, its caches and the memory
- `engines`: attention in regard, NumPy, PyTorch and ONNX Runtime
- `problems`: arrays, their work, and rows of the result in float64; cases from shapes as text
- `rounds`, `fresh_process`, `measuring`: interleaved timing of all engines, in a separate process
- `results`, `report`, `plot`: the results as JSON, as text and as a picture
"""
