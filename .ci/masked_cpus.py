"""Run a command as on older x86-64 CPUs: python .ci/masked_cpus.py COMMAND...

The features that a CPU lacks are masked in regard, NumPy and OpenBLAS alike, so that all of them
round as they would on that CPU.
"""

import os
import subprocess
import sys

import numpy as np

import regard._core

# Name: the features masked in regard, the prefixes of those masked in NumPy, and OpenBLAS's core.
VNNI = "avx512_vnni avx_vnni"
CPUS = {
    "AVX-512 without VNNI": (VNNI, ("AVX512_ICL", "AVX512_SPR"), "SkylakeX"),
    "AVX2 without VNNI": (f"avx512f {VNNI}", ("AVX512", "X86_V4"), "Haswell"),
    "baseline": (f"avx512f avx2 fma {VNNI}", ("",), "Nehalem"),
}


def main():
    """Run the command as on each CPU that differs from the previous ones, until it fails."""
    present = {name for name, (is_present, _) in regard._core.cpu_features().items() if is_present}
    tested = set()
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    for name, (features, beginnings, core) in CPUS.items():
        left = frozenset(present.difference(features.split()))
        if left in tested:
            print(f"--- {name}: skipped, this CPU has no further features to mask", flush=True)
            continue
        tested.add(left)
        print(f"--- {name}", flush=True)
        environment = os.environ | {
            "REGARD_DISABLE_CPU_FEATURES": features,
            "NPY_DISABLE_CPU_FEATURES": " ".join(x for x in found if x.startswith(beginnings)),
        }
        # OpenBLAS must not be told to use AVX-512 on a CPU without it.
        if core != "SkylakeX" or any(x.startswith(("AVX512", "X86_V4")) for x in found):
            environment["OPENBLAS_CORETYPE"] = core
        if subprocess.run(sys.argv[1:], env=environment).returncode:
            sys.exit(f"failed with the features of: {name}")


main()
