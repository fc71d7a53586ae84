"""Bugs in caches."""

from planted_bug import Bug

CACHE = "python/regard/_cache/"
PAGES = ("tests/cache/test_cache_pages.py", "tests/cache/test_cache.py")
WINDOW = ("tests/cache/test_cache_window.py", "tests/cache/test_cache_model.py")
FILES = ("tests/cache/test_cache_file_damage.py", "tests/cache/test_cache_files.py")

BUGS = [
    Bug(
        "the pages of an adopted entry have one owner too few",
        CACHE + "content.py",
        "            pool.share(pages)\n            self._become(state.joined(moved)",
        "            self._become(state.joined(moved)",
        ("tests/cache/test_cache_entries.py",),
        "adopt: the pages of the text are free, and another append takes them",
    ),
    Bug(
        "kept tokens are found as if no page had been evicted",
        CACHE + "content.py",
        "columns = wanted // size - (evicted if first >= geometry.first_pages else 0)",
        "columns = wanted // size",
        ("tests/cache/test_cache_entries.py",),
        "keep in a cache with a window: other tokens are kept",
    ),
    Bug(
        "a budget counts the pages before an append",
        CACHE + "storage/pool.py",
        "self._check_budget(end)",
        "self._check_budget(self._used)",
        ("tests/cache/test_cache_entries.py",),
        "max_bytes: one append goes beyond it",
    ),
    Bug(
        "packed tokens of a later entry are the first entry's",
        "cpp/dispatch/store_rows.cpp",
        "row_of(from, outer, head, before + row)",
        "row_of(from, outer, head, row)",
        ("tests/cache/test_cache_ragged.py",),
        "append_ragged with tokens for more than one entry",
    ),
    Bug(
        "ragged tasks follow the entries in their original order",
        "cpp/dispatch/attention/tasks.cpp",
        "return {order_[static_cast<std::size_t>(first - first_task_.begin())], index - *first};",
        "return {first - first_task_.begin(), index - *first};",
        ("tests/cache/test_cache_ragged.py", "tests/attention/test_ragged.py"),
        "sequences of different lengths: some rows are not computed",
    ),
    Bug(
        "a page is evicted one token too early",
        CACHE + "growth.py",
        "hidden = (before - geometry.keep_last) // geometry.page_size",
        "hidden = (before - geometry.keep_last + 1) // geometry.page_size",
        (*WINDOW, "tests/cache/test_cache_attacks.py"),
        "an undone append to a cache with a window: the last token's window is gone",
    ),
    Bug(
        "a page with two owners is written to",
        CACHE + "growth.py",
        "        if owners > 1:\n            left[page]",
        "        if owners > 2:\n            left[page]",
        PAGES,
        "appending to one of two caches or entries that share a page that is not full",
    ),
    Bug(
        "a page that is added twice gets only one more owner",
        CACHE + "storage/pool.py",
        "np.add.at(self._owners, pages, 1)",
        "self._owners[pages] += 1",
        PAGES,
        "reorder with one entry chosen twice: its pages are free too early",
    ),
    Bug(
        "an entry with only sink pages counts as having lost others",
        CACHE + "content.py",
        "evicted[shorter <= first_pages * size] = 0",
        "evicted[shorter < first_pages * size] = 0",
        WINDOW,
        "truncating a cache with a window to exactly its sink pages",
    ),
    Bug(
        "guesses are undone on a page that others share",
        CACHE + "content.py",
        "spare = spare_alike(length, 0, self.geometry) if is_own else 0",
        "spare = spare_alike(length, 0, self.geometry)",
        PAGES,
        "fork, truncate within a page, append: the fork's tokens are overwritten",
    ),
    Bug(
        "a fork leaves its parent the last page",
        CACHE + "content.py",
        "shared = state._replace(spare=0)",
        "shared = state",
        PAGES,
        "appending to a cache and to its fork within a page",
    ),
    Bug(
        "a record counts whatever its checksum",
        CACHE + "storage/header.py",
        "if number < 2**62 and record(number, numbers) == content:",
        "if number < 2**62:",
        FILES,
        "a file with a damaged record",
    ),
    Bug(
        "both records of a ledger are in one place",
        CACHE + "storage/ledger.py",
        "self.records[number % 2]",
        "self.records[0]",
        FILES,
        "a process that dies while it writes lengths: nothing whole is left",
    ),
    Bug(
        "a header points to data that is not written yet",
        CACHE + "storage/ledger.py",
        "        lines.write_record(state)\n"
        "        if self._lines is not None and columns > self._lines.table.shape[1]:\n"
        "            room.flush()  # this is rare, and a power failure now would lose everything\n"
        "        self._point_to(lines)\n",
        "        self._point_to(lines)\n"
        "        lines.write_record(state)\n"
        "        if self._lines is not None and columns > self._lines.table.shape[1]:\n"
        "            room.flush()  # this is rare, and a power failure now would lose everything\n",
        ("tests/cache/test_cache_interrupts.py", "tests/cache/test_cache_file_growth.py", *FILES),
        "a process that dies while it rewrites a ledger",
    ),
    Bug(
        "the first token of padding counts as real",
        CACHE + "storage/quantize.py",
        "np.arange(new) < counts[:, None]",
        "np.arange(new) <= counts[:, None]",
        ("tests/cache/test_cache_errors.py",),
        "a ragged append to an int8 cache with NaN in padding: an unwarranted error",
    ),
    Bug(
        "an option's window hides one more sink token",
        CACHE + "window.py",
        "np.minimum(positions - left, first_tokens)",
        "np.minimum(positions - left + 1, first_tokens)",
        WINDOW,
        "attending to a cache with sink tokens, with a window option that reaches them",
    ),
]
