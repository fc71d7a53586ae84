"""Test the end of the interpreter while daemon threads are in calls of every kind: the process ends
well, whatever Python and NumPy code a call runs."""

import textwrap

import pytest

from script_calls import CALLS, SETUP


def leaves(call, output_of):
    script = f"""
{SETUP}
def work(has_computed):
    while True:
{textwrap.indent(textwrap.dedent(call).strip(), " " * 8)}
        has_computed.set()
events = [threading.Event() for _ in range(3)]
for event in events:
    threading.Thread(target=work, args=(event,), daemon=True).start()
for event in events:
    event.wait()
print("left")
"""
    return output_of(script) == "left"


@pytest.mark.parametrize("call", CALLS)
def test_exit_in_a_call(call, output_of):
    assert leaves(CALLS[call], output_of)


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", CALLS)
def test_exit_in_a_call_ten_times(call, output_of):
    for _ in range(10):
        assert leaves(CALLS[call], output_of)
