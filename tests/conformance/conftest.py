"""Leave out ONNX's tests where its package is missing: pip install ".[conformance]"."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("onnx") else ["test_onnx*.py"]
