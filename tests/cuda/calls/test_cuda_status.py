"""Test what regard.cuda reports: without the module, without a driver, with an unsuitable driver,
without a device, and with one."""

import json

import numpy as np
import pytest

import regard

NO_MODULE = """
import sys
sys.modules["regard._cuda"] = None  # importing it raises ModuleNotFoundError
"""
BROKEN_MODULE = """
import sys, tempfile, pathlib, regard
folder = tempfile.mkdtemp()
pathlib.Path(folder, "_cuda.py").write_text("raise ImportError('libnothing.so: not found')")
regard.__path__.append(folder)
sys.path_importer_cache.clear()
regard.__path__.insert(0, regard.__path__.pop())
"""
ASK = """
import json, numpy as np, regard, regard.cuda
x = np.ones((2, 3, 4), np.float32)
errors = []
for call in (
    lambda: regard.scaled_dot_product_attention(x, x, x, device="cuda"),
    lambda: regard.scaled_dot_product_attention_ragged(x, x, x, [0, 2], [0, 2], device="cuda"),
    lambda: regard.cuda.scaled_dot_product_attention(x, x, x),
    lambda: regard.cuda.to_device(x),
):
    try:
        call()
    except Exception as error:
        errors.append([type(error).__name__, str(error)])
config = regard.show_config(mode="dicts")["cuda"]
print(json.dumps([regard.cuda.is_available(), regard.cuda.status(), errors, config]))
"""


def asked(output_of, before):
    return json.loads(output_of(before + ASK))


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (NO_MODULE, ["built without CUDA", "toolkit", "12.0"]),
        (BROKEN_MODULE, ["cannot be loaded", "libnothing.so: not found"]),
    ],
    ids=["none", "broken"],
)
def test_without_the_module(before, words, output_of):
    available, status, errors, config = asked(output_of, before)
    assert not available
    assert all(word in status for word in words)
    assert errors == [["RuntimeError", status]] * 4
    assert config.pop("status") == status
    assert not any(config.values())


def test_a_module_that_is_built_loads_without_a_driver(output_of):
    """On a machine with a suitable GPU, this test has nothing to check."""
    available, status, errors, config = asked(output_of, "")
    if config["toolkit"] is None:
        pytest.skip("regard was built without CUDA")
    if available:
        pytest.skip("CUDA is available here")
    assert errors == [["RuntimeError", status]] * 4
    assert config["kernels"]
    assert "driver" in status or "device" in status


MACHINES = {
    "no driver": ({"driver": 0}, ["no NVIDIA driver is loaded"]),
    "old driver": (
        {"driver": 11040},
        ["driver is for CUDA 11.4", "built with CUDA 12.0", "update"],
    ),
    "no device": ({"devices": 0}, ["no CUDA device"]),
    "old device": ({"capability": (7, 5)}, ["8.0 or newer", "Emulated Device 0 (sm_75)"]),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_missing(name, machine, cuda):
    changes, words = MACHINES[name]
    machine.set(**changes)
    assert cuda.is_available() is False
    assert all(word in cuda.status() for word in words)
    config = regard.show_config(mode="dicts")["cuda"]
    assert (config["available"], config["status"]) == (False, cuda.status())
    assert {kernel["proof"] for kernel in config["kernels"]}


def test_two_devices_and_the_proof_of_every_kernel(machine, cuda, capsys):
    from regard._cli import main

    machine.set(devices=2, capability=(9, 0))
    assert cuda.is_available()
    assert "Emulated Device 0 (sm_90), Emulated Device 1 (sm_90)" in cuda.status()
    config = json.loads(json.dumps(regard.show_config(mode="dicts")))["cuda"]
    assert (config["toolkit"], config["driver"]) == ("12.0", "13.0")
    assert [device["compute_capability"] for device in config["devices"]] == [[9, 0]] * 2
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert "device 0: Emulated Device 0, sm_90, 1 GiB" in text
    for kernel in cuda.kernels():
        assert kernel["name"] in text
        assert kernel["proof"] in text


def test_one_device_too_old_among_others(machine, cuda):
    x = cuda.to_device(np.ones((2, 3, 4), np.float32))
    status = __import__("sys").modules["regard.cuda._status"]
    status.check_available()
    status.check_device.cache_clear()
    machine.set(capability=(7, 5))
    with pytest.raises(RuntimeError, match=r"device 0 has compute capability 7\.5"):
        cuda.scaled_dot_product_attention(x, x, x)
