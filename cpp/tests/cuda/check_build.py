"""Check nvcc's output for the CUDA kernels: registers, spills and instructions.

The script compiles cpp/cuda for each architecture. It fails if a kernel spills registers, needs
more registers than registers.txt allows, or lacks the instructions that it relies on. It prints a
line for each check that the machine cannot run.

    python cpp/tests/cuda/check_build.py [--update]

--update writes the results to registers.txt. Reading SASS needs cuobjdump and nvdisasm, which `pip
install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm` installs.
"""

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
CUDA = HERE.parent.parent / "cuda"
TABLE = HERE / "registers.txt"
ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
SOURCES = ("float16", "bfloat16", "float32")
# Products on tensor cores, copies to shared memory that do not pass through registers, and loads of
# matrices from shared memory.
INSTRUCTIONS = {"float16": ("HMMA", "LDGSTS", "LDSM"), "float32": ("FFMA", "LDGSTS", "LDS")}
INSTRUCTIONS["bfloat16"] = INSTRUCTIONS["float16"]
MANGLED = re.compile(r"(forward|merge_chunks)I(.*?)EEv")


def kernel_of(symbol):
    """Name a kernel by its symbol, such as `forward 64 options`; its source determines the type."""
    which, arguments = MANGLED.search(symbol).groups()
    if which == "merge_chunks":
        return which
    panels, options = re.search(r"Li(\d+)ELb([01])", arguments).groups()
    columns = int(panels) * (32 if "Float32Tile" in arguments else 64)
    return f"forward {columns} {'options' if options == '1' else 'plain'}"


def compiled(source, architecture, folder):
    """Compile one source, and return its cubin and ptxas's report for each kernel."""
    cubin = folder / f"{source}.{architecture}.cubin"
    command = ["nvcc", "-std=c++20", "-O3", f"-arch={architecture}", "-cubin", "-Xptxas", "-v"]
    done = subprocess.run(
        [*command, CUDA / f"{source}.cu", "-o", cubin], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    found = {}
    for part in re.split(r"Compiling entry function '", done.stdout + done.stderr)[1:]:
        stores, loads = re.search(
            r"(\d+) bytes spill stores, (\d+) bytes spill loads", part
        ).groups()
        registers = re.search(r"Used (\d+) registers", part).group(1)
        found[kernel_of(part.split("'")[0])] = int(registers), int(stores) + int(loads)
    return cubin, found


def tool(name):
    """Return the path of a program, which is on PATH or in its wheel."""
    wheels = Path(sysconfig.get_path("purelib")) / "nvidia"
    found = [shutil.which(name), *wheels.glob(f"*/bin/{name}")]
    return next((str(path) for path in found if path), None)


def missing_instructions(cubin, source):
    """Name the kernels whose SASS lacks required instructions."""
    # cuobjdump searches PATH for nvdisasm.
    path = {"PATH": f"{Path(tool('nvdisasm')).parent}:/usr/bin:/bin"}
    sass = subprocess.run(
        [tool("cuobjdump"), "-sass", cubin], capture_output=True, text=True, check=True, env=path
    ).stdout
    for part in sass.split("Function : ")[1:]:
        kernel = kernel_of(part.split()[0])
        if kernel.startswith("forward"):
            for instruction in INSTRUCTIONS[source]:
                if not re.search(rf"\b{instruction}\b", part):
                    yield f"{source} {kernel} has no {instruction}"


def main():
    """Run the checks, and return whether one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write registers.txt")
    update = parser.parse_args().update
    if not shutil.which("nvcc"):
        print("skipped: nvcc was not found")
        return 0
    lines = [] if update else TABLE.read_text(encoding="utf-8").splitlines()
    allowed = {
        name: int(registers) for name, registers in (row.rsplit(maxsplit=1) for row in lines)
    }
    problems, table = [], []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        jobs = list(product(SOURCES, ARCHITECTURES))
        done = pool.map(lambda job: compiled(*job, Path(folder)), jobs)
        for (source, architecture), (cubin, kernels) in zip(jobs, done, strict=True):
            for kernel, (registers, spilled) in sorted(kernels.items()):
                name = f"{architecture} {source} {kernel}"
                table.append(f"{name} {registers}\n")
                if spilled:
                    problems.append(f"{name} spills {spilled} bytes")
                if not update and registers > allowed.get(name, 0):
                    problems.append(f"{name} needs {registers} registers, not {allowed.get(name)}")
            if tool("cuobjdump") and tool("nvdisasm"):
                problems += [
                    f"{architecture} {text}" for text in missing_instructions(cubin, source)
                ]
    if not (tool("cuobjdump") and tool("nvdisasm")):
        print("skipped the instructions: cuobjdump or nvdisasm was not found")
    if update:
        TABLE.write_text("".join(table), encoding="utf-8")
    print(f"{len(table)} kernels compiled", *problems, sep="\n")
    return len(problems) > 0


if __name__ == "__main__":
    sys.exit(main())
