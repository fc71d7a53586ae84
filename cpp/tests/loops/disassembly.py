"""The functions and loops in the output of `objdump -d`, and the instructions of each loop.

The output of GNU's and LLVM's objdump is supported, for x86-64 (AT&T syntax) and AArch64.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S.*)$")
# Removed before an instruction is parsed: symbol names of addresses, comments, prefixes, masks.
NOISE = re.compile(
    r"\s*(?:<.*|#.*|//.*)$|\{%k\d\}|\{z\}|\{\w*vex\d?\}\s*|^(?:notrack|bnd|data16)\s+"
)
JUMP = re.compile(r"^(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s.*?\b(?:0x)?([0-9a-f]+)$")
ALWAYS = re.compile(r"^(?:jmp\w*|b|br)\s")  # a jump without a condition
INDIRECT = re.compile(r"^(?:jmp\w*\s+\*|br\s)")
RETURN = re.compile(r"^(?:ret|ud2|brk|udf)")

FRAME = re.compile(r"^(?:movq?\s+%rsp,\s*(%rbp)|(?:mov|add)\s+(x29), sp)")
VECTOR = re.compile(r"%[xyz]mm\d|\b[qvsdhb]\d+\b")
FMA = re.compile(r"^(?:vfn?m(?:add|sub)\d+p[sd]|fml[as])\s")
DOT = re.compile(r"^(?:vpdpbusds?|[su]dot|usdot|vdpbf16ps)\s")
COMPARISON = re.compile(r"^(?:v?p?cmp\w*\s.*%[xyz]mm|f?cm\w+\s+v)")
X86_MEMORY = re.compile(r"\(([^()]*)\)")
ARM_MEMORY = re.compile(r"\[(sp|x\d+)")
NO_ACCESS = re.compile(r"^(?:lea|nop|prefetch|prfm|cs\s+nop)")


@dataclass
class Contents:
    """The number of instructions of each kind."""

    fmas: int = 0  # of vectors
    dots: int = 0  # of four 8-bit integers, or two bfloat16 numbers, in each lane
    comparisons: int = 0  # of vectors
    loads: int = 0  # of vectors, from anywhere but the stack; operands in memory are loads
    stores: int = 0  # of vectors, to anywhere but the stack
    spills: int = 0  # loads and stores of vectors from and to the stack
    scalars: int = 0  # other accesses to the stack

    @property
    def products(self) -> int:
        """FMAs and dot products."""
        return self.fmas + self.dots

    def __iadd__(self, other: "Contents") -> "Contents":
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self


@dataclass
class Part:
    """A loop without the loops inside it, or what is left of a function without its loops."""

    function: str
    address: int
    is_innermost: bool
    contents: Contents


@dataclass
class Function:
    """A function's instructions and where they are."""

    name: str
    addresses: list[int]
    instructions: list[str]


def functions_of(objdump: str, path: Path) -> Iterator[Function]:
    """Disassemble an object file."""
    command = [objdump, "-d", "-C", "--no-show-raw-insn", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{objdump} cannot disassemble {path}: {done.stderr.strip()}")
    return read(done.stdout)


def read(listing: str) -> Iterator[Function]:
    """Read what objdump prints."""
    function = Function("", [], [])
    for line in listing.splitlines():
        if match := INSTRUCTION.match(line):
            function.addresses.append(int(match[1], 16))
            function.instructions.append(NOISE.sub("", match[2]).strip())
        elif match := FUNCTION.match(line):
            if function.instructions:
                yield function
            function = Function(match[1], [], [])
    if function.instructions:
        yield function


def parts_of(function: Function) -> Iterator[Part]:
    """Split a function into loops, the smallest first, and the rest."""
    starts, successors = _blocks(function)
    ends = [*starts[1:], len(function.instructions)]
    frame = next(filter(None, map(FRAME.match, function.instructions)), None)
    bases = {"%rsp", "sp", *(filter(None, frame.groups()) if frame else ())}
    contents = []
    for start, end in zip(starts, ends, strict=True):
        contents.append(Contents())
        for instruction in function.instructions[start:end]:
            _count(instruction, bases, contents[-1])

    inside: set[int] = set()
    everything = set(range(len(starts)))
    for body in [*sorted(_loops(successors), key=len), everything]:
        own = sorted(body - inside)
        total = Contents()
        for block in own:
            total += contents[block]
        if own:
            is_innermost = len(own) == len(body) and body is not everything
            yield Part(function.name, function.addresses[starts[own[0]]], is_innermost, total)
        inside |= body


def _blocks(function: Function) -> tuple[list[int], list[list[int]]]:
    """Find where basic blocks begin, and the blocks that may follow each."""
    index = {address: i for i, address in enumerate(function.addresses)}
    count = len(function.instructions)
    targets: dict[int, int | None] = {}  # of the instructions that end blocks
    for i, instruction in enumerate(function.instructions):
        if match := JUMP.match(instruction):
            targets[i] = index.get(int(match[1], 16))
        elif RETURN.match(instruction) or INDIRECT.match(instruction):
            targets[i] = None
    starts = {0, *(i + 1 for i in targets), *(i for i in targets.values() if i is not None)}
    starts.discard(count)
    order = sorted(starts)
    block_at = {start: block for block, start in enumerate(order)}
    successors: list[list[int]] = []
    for block, end in enumerate([*order[1:], count]):
        last = function.instructions[end - 1]
        following = []
        target = targets.get(end - 1)
        if target is not None:
            following.append(block_at[target])
        if end < count and not ALWAYS.match(last) and not RETURN.match(last):
            following.append(block + 1)
        successors.append(following)
    # A jump table leads to blocks that nothing else leads to.
    reached = {0, *(block for following in successors for block in following)}
    for block, end in enumerate([*order[1:], count]):
        if INDIRECT.match(function.instructions[end - 1]):
            successors[block] = [other for other in range(len(order)) if other not in reached]
    return order, successors


def _loops(successors: list[list[int]]) -> list[set[int]]:
    """Return the blocks of each natural loop: of all jumps back to the same block."""
    predecessors: list[list[int]] = [[] for _ in successors]
    for block, following in enumerate(successors):
        for other in following:
            predecessors[other].append(block)
    bodies: dict[int, set[int]] = {}
    open_blocks, visited = set(), set()
    for root in range(len(successors)):
        way = [] if root in visited else [(root, iter(successors[root]))]
        while way:
            block, following = way[-1]
            visited.add(block)
            open_blocks.add(block)
            other = next(following, None)
            if other is None:
                way.pop()
                open_blocks.remove(block)
            elif other in open_blocks:
                _add_predecessors(block, bodies.setdefault(other, {other}), predecessors)
            elif other not in visited:
                way.append((other, iter(successors[other])))
    return list(bodies.values())


def _add_predecessors(block: int, body: set[int], predecessors: list[list[int]]) -> None:
    waiting = [block]
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting.extend(predecessors[block])


def _count(instruction: str, bases: set[str], contents: Contents) -> None:
    """Add one instruction. A register of `bases` points to the stack."""
    contents.fmas += bool(FMA.match(instruction))
    contents.dots += bool(DOT.match(instruction))
    contents.comparisons += bool(COMPARISON.match(instruction))
    x86 = X86_MEMORY.search(instruction)
    memory = x86 or ARM_MEMORY.search(instruction)
    if not memory or NO_ACCESS.match(instruction):
        return
    if x86:
        is_store = instruction.endswith(")")
        vectors = int(bool(VECTOR.search(X86_MEMORY.sub("", instruction))))
    else:
        is_store = instruction.startswith("st")
        vectors = _vectors_of(instruction[: memory.start()])
    if memory[1].split(",")[0] in bases:
        contents.spills += vectors
        contents.scalars += not vectors
    elif is_store:
        contents.stores += vectors
    else:
        contents.loads += vectors


def _vectors_of(operands: str) -> int:
    """Count the registers that AArch64 loads or stores: q0, q1 or {v0.4s-v3.4s}."""
    if match := re.search(r"v(\d+)\.\w+-v(\d+)\.", operands):
        return (int(match[2]) - int(match[1])) % 32 + 1
    return len(VECTOR.findall(operands))
