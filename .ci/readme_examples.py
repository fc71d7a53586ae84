"""Run the Python examples of the README in order, with the installed regard and nothing else."""

import re
import sys
from pathlib import Path

import numpy

import regard

text = Path(sys.argv[1]).read_text(encoding="utf-8")
blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
if not blocks:
    sys.exit(f"{sys.argv[1]} has no Python examples")
namespace: dict[str, object] = {}
for block in blocks:
    exec(compile(block, sys.argv[1], "exec"), namespace)
print(f"{len(blocks)} examples ran with regard {regard.__version__} and NumPy {numpy.__version__}")
