"""Test that calls import nothing: a child that is forked while another thread imports a module
would wait forever for this module."""

from script_calls import CALLS, SETUP

# The calls whose functions are imported when they are first named.
SCRIPT = """
import sys
for each in regard.__all__:
    if each != "plot":
        getattr(regard, each)
class Refuses:
    def find_spec(name, path=None, target=None):
        raise AssertionError(f"a call imports {name}")
"""


def test_calls_import_nothing(output_of):
    calls = "\n".join(
        f"def call_{number}():\n    {call.strip()}\ncall_{number}()"
        for number, (name, call) in enumerate(CALLS.items())
        if name != "errors"  # messages are imported with the first error
    )
    script = f"{SETUP}\n{SCRIPT}\nsys.meta_path.insert(0, Refuses)\n{calls}\nprint('nothing')"
    assert output_of(script) == "nothing"


def test_forks_during_first_uses(output_of):
    """Threads name functions for the first time while the process forks."""
    script = """
    import os, random, threading
    import regard
    names = [each for each in regard.__all__ if each != "plot"]
    random.Random(0).shuffle(names)
    def name_all(names):
        for each in names:
            getattr(regard, each)
    threads = [threading.Thread(target=name_all, args=(names[i:] + names[:i],)) for i in (0, 20)]
    for thread in threads:
        thread.start()
    children = []
    while any(thread.is_alive() for thread in threads) or len(children) < 20:
        children.append(os.fork())
        if not children[-1]:
            name_all(names)
            os._exit(0)
        if len(children) >= 60:
            break
    for thread in threads:
        thread.join()
    print({os.waitpid(child, 0)[1] for child in children})
    """
    assert output_of(script, timeout=120) == "{0}"
