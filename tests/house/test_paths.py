"""Functions that write files treat symbolic links alike."""

import numpy as np
import pytest

import regard

X = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)


WRITERS = {
    "KVCache": lambda path: regard.KVCache(1, 2, 8).save(path),
    "KVCaches": lambda path: regard.KVCaches(2, 1, 2, 8).save(path),
    "save of a recording": lambda path: regard.SelfAttention(8, 4, rng=0).record(X).save(path),
    "replacing a recording": lambda path: (
        regard.SelfAttention(8, 4, rng=0).record(X).save(path, overwrite=True)
    ),
    "save of a page": lambda path: regard.explore(X, X, tokens=list("abcde")).save(path),
    "replacing a page": lambda path: regard.explore(X, X, tokens=list("abcde")).save(
        path, overwrite=True
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_to_nothing_creates_nothing(name, tmp_path):
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    with pytest.raises((FileExistsError, FileNotFoundError), match="link"):
        WRITERS[name](link)
    assert link.is_symlink()
    assert not target.exists()


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_may_be_a_link(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    WRITERS[name](tmp_path / "link" / "file")
    assert (tmp_path / "folder" / "file").is_file()
