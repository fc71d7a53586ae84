"""Bugs in caches."""

from planted_bug import Bug

CACHE = "python/regard/_cache/"
TABLE = "cpp/dispatch/page_table.cpp"
STEP = "cpp/dispatch/append_step.cpp"
STATES = "tests/cache/test_cache_states.py"
PAGES = ("tests/cache/test_cache_pages.py", STATES)
WINDOW = ("tests/cache/test_cache_window.py", STATES)
FILES = ("tests/cache/test_cache_files.py", "tests/cache/test_cache_interrupts.py")

BUGS = [
    Bug(
        "an adopted entry stays in its cache",
        TABLE,
        "  other.state_ = left;\n",
        "",
        (STATES,),
        "adopt: the pages of the text have two owners and count one",
    ),
    Bug(
        "kept tokens are found as if no page had been evicted",
        TABLE,
        "pool.copy_rows(pool, row[from / rows - evicted], from % rows,",
        "pool.copy_rows(pool, row[from / rows], from % rows,",
        (STATES,),
        "keep in a cache with a window: other tokens are kept",
    ),
    Bug(
        "a budget counts the pages before an append",
        "cpp/dispatch/page_pool.cpp",
        "  std::int64_t bytes = more;\n",
        "  std::int64_t bytes = more * 0;\n",
        ("tests/cache/test_cache.py",),
        "max_bytes: one append goes beyond it",
    ),
    Bug(
        "packed tokens of a later entry are the first entry's",
        "cpp/dispatch/store_rows.cpp",
        "row_of(from, outer, head, before + row)",
        "row_of(from, outer, head, row)",
        (STATES,),
        "append_ragged with tokens for more than one entry",
    ),
    Bug(
        "ragged tasks follow the entries in their original order",
        "cpp/dispatch/attention/tasks.cpp",
        "return {order_[static_cast<std::size_t>(first - first_task_.begin())], index - *first};",
        "return {first - first_task_.begin(), index - *first};",
        (STATES, "tests/attention/test_ragged.py"),
        "sequences of different lengths: some rows are not computed",
    ),
    Bug(
        "a page is evicted one token too early",
        STEP,
        "(length - layout.keep_last) / rows - first_pages - evicted",
        "(length - layout.keep_last + 1) / rows - first_pages - evicted",
        WINDOW,
        "an undone append to a cache with a window: the last token's window is gone",
    ),
    Bug(
        "a page with two owners is written to",
        STEP,
        "pool.owners(entries.row(entry)[own.owned - 1]) > 1",
        "pool.owners(entries.row(entry)[own.owned - 1]) > 2",
        PAGES,
        "appending to one of two caches or entries that share a page that is not full",
    ),
    Bug(
        "all entries of a shared page leave it",
        STEP,
        "    if (left > 1) {\n",
        "    if (left > 0) {\n",
        ("tests/cache/test_cache.py",),
        "beams that share a page that is not full: one page too many is taken",
    ),
    Bug(
        "the pages of a fork have one owner too few",
        TABLE,
        "  fork->state_ = shared(chosen);\n",
        "  fork->state_ = shared(chosen);\n  pools_->give_back(held_of(*fork->state_));\n",
        PAGES,
        "fork: the pages are free too early",
    ),
    Bug(
        "an entry with only first pages counts as having lost others",
        TABLE,
        "if (length <= first_tokens) evicted = 0;",
        "if (length < first_tokens) evicted = 0;",
        WINDOW,
        "truncating a cache with a window to exactly its first pages",
    ),
    Bug(
        "an append that fails keeps its pages",
        TABLE,
        "    if (!begun) pools_->give_back(step->taken);\n",
        "",
        PAGES,
        "an append that becomes infinite, with errstate(over='raise')",
    ),
    Bug(
        "two threads' appends are both kept",
        TABLE,
        "    check_same_entries(state_ == state && step_ == begun);\n",
        "",
        ("tests/cache/test_cache_attacks.py",),
        "two threads that append to the same cache: pages without an owner",
    ),
    Bug(
        "a file is written in place",
        "python/regard/_runtime/saving.py",
        'temporary = os.path.join(os.path.dirname(place), f".regard-{os.urandom(8).hex()}.part")',
        "temporary = place",
        FILES,
        "a process that dies while it saves a cache",
    ),
    Bug(
        "pages of a file are found at the beginning of its tensors",
        CACHE + "file.py",
        'offset = 8 + size + entry["data_offsets"][0]',
        "offset = 8 + size",
        FILES,
        "load: other tensors precede the pages",
    ),
    Bug(
        "a table may name pages that a file does not have",
        CACHE + "file.py",
        "if ((named < 0) | (named >= count)).any():",
        "if (named < 0).any():",
        FILES,
        "a damaged file: a page beyond its end",
    ),
    Bug(
        "the first token of padding counts as real",
        CACHE + "append.py",
        "np.arange(keys.shape[2]) < counts[:, None]",
        "np.arange(keys.shape[2]) <= counts[:, None]",
        ("tests/wrong_calls/test_wrong_caches.py",),
        "a ragged append to an int8 cache with NaN in padding: an unwarranted error",
    ),
    Bug(
        "an option's window hides one more first token",
        CACHE + "attend.py",
        "np.minimum(positions - left, geometry.keep_first)",
        "np.minimum(positions - left + 1, geometry.keep_first)",
        ("tests/cache/test_cache_masks.py",),
        "attending to a cache with first tokens, with a window option that reaches them",
    ),
]
