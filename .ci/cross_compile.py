"""Cross-compile every C++ source that needs no Python for other systems.

    python .ci/cross_compile.py BUILD [TRIPLE ...]

The compiler is Zig's Clang, which includes the headers of every system. The Python that runs this
script must have the package ziglang, and CMake must be on the path. CMake determines the sources
and their flags: each platform is configured as for the C++ tests. Nothing is optimized or linked.
The compiler still reports headers, vectors and features that a target lacks, in a tenth of the
time. Warnings are errors.

If Clang is installed, it must also accept every option that CMake passes to clang-cl. It does not
compile the sources, since Visual Studio's headers are not available.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Platform:
    """A system and a processor, under Clang's and CMake's names, and the targets to compile."""

    triple: str
    system: str
    processor: str
    targets: str = "all"


ZIG = [
    Platform("x86_64-windows-gnu", "Windows", "AMD64"),
    Platform("aarch64-windows-gnu", "Windows", "ARM64"),
    Platform("aarch64-macos.11.0", "Darwin", "arm64"),
    # The native compiler already compiles every target with the calling convention of these two.
    Platform("x86_64-macos.11.0", "Darwin", "x86_64", targets="baseline"),
    Platform("x86_64-linux-musl", "Linux", "x86_64", targets="baseline"),
]
CLANG_CL = [
    Platform("x86_64-pc-windows-msvc", "Windows", "AMD64"),
    Platform("aarch64-pc-windows-msvc", "Windows", "ARM64"),
]


def commands(platform: Platform, build: Path, *options: str) -> list[dict[str, str]]:
    """Return the commands by which CMake would compile the C++ tests for a platform."""
    command = [
        *("cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja"),
        "-DREGARD_CPP_TESTS=ON",
        f"-DREGARD_TARGETS={platform.targets}",
        f"-DCMAKE_SYSTEM_NAME={platform.system}",
        f"-DCMAKE_SYSTEM_PROCESSOR={platform.processor}",
        f"-DCMAKE_CXX_COMPILER_TARGET={platform.triple}",
        "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
        "-DCMAKE_CXX_COMPILER_LAUNCHER=",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        "-DCMAKE_INSTALL_NAME_TOOL=true",  # CMake requires one to exist if the system is Darwin
        *options,
    ]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{platform.triple}: CMake failed\n{ran.stdout}{ran.stderr}")
    return json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))


def compile_all(platform: Platform, build: Path) -> int:
    """Compile every source for a platform with Zig, and return the number of failures."""
    compiler = f"-DCMAKE_CXX_COMPILER={sys.executable};-m;ziglang;c++"
    refused = 0
    sources = commands(platform, build, compiler)
    started = time.monotonic()
    for source in sources:
        # The last -O option wins.
        command = [*shlex.split(source["command"]), "-O0", "-Werror"]
        Path(build, command[command.index("-o") + 1]).parent.mkdir(parents=True, exist_ok=True)
        refused += bool(subprocess.run(command, cwd=source["directory"]).returncode)
    seconds = time.monotonic() - started
    accepted = f"{len(sources) - refused} of {len(sources)} sources"
    print(f"{platform.triple}: {accepted} compiled in {seconds:.0f} s", flush=True)
    return refused


def check_options(platform: Platform, build: Path) -> int:
    """Pass each set of options to clang-cl with an empty source; return the number of failures."""
    build.mkdir(parents=True, exist_ok=True)
    clang_cl = build / "clang-cl"  # the name makes it accept cl's options
    clang_cl.unlink(missing_ok=True)
    clang_cl.symlink_to(shutil.which("clang"))
    empty = build / "empty.cpp"
    empty.touch()
    # CMake requires the linker and the Windows tools to exist. It runs none of them, since it does
    # not test the compiler.
    tools = [f"-DCMAKE_{tool}=true" for tool in ("AR", "LINKER", "MT", "RC_COMPILER")]
    options = set()
    for source in commands(
        platform,
        build,
        f"-DCMAKE_CXX_COMPILER={clang_cl}",
        "-DCMAKE_CXX_COMPILER_FORCED=ON",
        *tools,
    ):
        *command, separator, _ = shlex.split(source["command"])
        assert separator == "--", source["command"]
        options.add(tuple(part for part in command if not part.startswith(("/Fo", "/Fd", "-D"))))
    command_tail = [
        "/WX",
        "/clang:-Werror=unknown-argument",
        f"/Fo{build / 'empty.obj'}",
        "--",
        str(empty),
    ]
    refused = sum(bool(subprocess.run([*command, *command_tail]).returncode) for command in options)
    accepted = f"{len(options) - refused} of {len(options)} sets of options"
    print(f"{platform.triple}: clang-cl accepts {accepted}", flush=True)
    return refused


def main() -> None:
    """Compile for the platforms named on the command line, or for all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="an empty folder")
    parser.add_argument(
        "triples", nargs="*", metavar="triple", help="a platform (default: all of them)"
    )
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    for cache in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
        os.environ.setdefault(cache, str(build / "zig"))

    def chosen(platforms: list[Platform]) -> list[Platform]:
        return [p for p in platforms if p.triple in arguments.triples or not arguments.triples]

    if shutil.which("clang"):
        refused = sum(
            check_options(platform, build / platform.triple) for platform in chosen(CLANG_CL)
        )
    else:
        refused = 0
        print("skipped: clang-cl's options, since clang is not installed")
    refused += sum(compile_all(platform, build / platform.triple) for platform in chosen(ZIG))
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
