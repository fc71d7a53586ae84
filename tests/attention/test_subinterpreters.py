"""Test imports in a subinterpreter: they raise, and never wait forever."""

import pytest

SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")  # NumPy warns of subinterpreters
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
else:
    import _xxsubinterpreters as interpreters
IMPORT = '''
import warnings
warnings.simplefilter("ignore")
try:
    MODULE
except ImportError as error:
    print(type(error).__name__, error, flush=True)
'''
FIRST
number = interpreters.create()
failure = interpreters.run_string(number, IMPORT.replace("MODULE", "import regard"))
interpreters.destroy(number)
import regard, numpy as np
print(regard.softmax(np.zeros(2)))
"""


@pytest.mark.parametrize("first", ["", "import regard"], ids=["before", "after"])
def test_import_in_a_subinterpreter(first, output_of):
    """Whether or not the main interpreter has imported regard. It goes on computing."""
    *refused, computed = output_of(SCRIPT.replace("FIRST", first), timeout=60).splitlines()
    assert computed == "[0.5 0.5]"
    assert refused[0].startswith("ImportError")
