"""Time another version of regard with the measuring code of this repository."""

import importlib.util
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent / "python" / "regard" / "_bench"


def load_this_bench():
    """Load `regard._bench` from this repository, whichever version of regard is installed."""
    if "regard._bench" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "regard._bench", BENCH / "__init__.py", submodule_search_locations=[str(BENCH)]
    )
    sys.modules["regard._bench"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["regard._bench"])
