"""Print the README's commands for a fresh machine: the sh blocks of its section "Two commands"."""

import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8")
section = re.search(r"^## Two commands.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
if section is None:
    sys.exit('README.md has no section "Two commands"')
for block in re.findall(r"^```sh\n(.*?)^```", section.group(0), re.MULTILINE | re.DOTALL):
    print(" && ".join(line for line in block.splitlines() if line.strip()))
