"""How many CPUs regard counts, by the affinity on machines of any size and the quotas of cgroups,
and how large their L2 caches are."""

import math
import os
import sys

import pytest

import regard
from call_families import with_families

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts CPUs as Linux does")
testing = regard._core.testing


@pytest.mark.parametrize("kernel", [64, 1024, 1025, 4096, 8192, 2**20])
def test_machines_of_any_size(kernel):
    """A kernel that was built for more CPUs than a mask has bits refuses the mask."""
    for allowed in (1, 33, 64, kernel):
        assert testing.count_cpus(kernel, allowed) == allowed
    # An affinity that cannot be read is 0 rather than 1, so that the next source is asked.
    assert testing.count_cpus(0, 0) == testing.count_cpus(2**21, 1) == 0


@pytest.mark.parametrize(
    ("allowed", "cpus"), [("0-1023,1030,2040-2047", 1033), ("", 0), ("all", 0), ("0-3;5", 0)]
)
def test_the_list_in_status(allowed, cpus, tmp_path):
    status = tmp_path / "proc/self/status"
    status.parent.mkdir(parents=True)
    status.write_text(
        f"Name:\tcat\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nMems_allowed:\t1\n"
    )
    assert testing.cpus_of_status(str(tmp_path)) == cpus
    assert testing.cpus_of_status("") == len(os.sched_getaffinity(0))
    assert testing.cpus_of_status("/nowhere") == 0


# Quotas


CGROUP2 = "30 23 0:26 {root} {mount} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
CGROUP1 = "33 25 0:29 {root} {mount} rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
OTHER1 = "34 25 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"


def unified(group, limits, mount="/sys/fs/cgroup", root="/"):
    return {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": "1 1 8:1 / / rw - ext4 /dev/sda rw\n"
        + CGROUP2.format(root=root, mount=mount.replace(" ", r"\040")),
    } | {f"{mount[1:]}{at}/cpu.max": limit for at, limit in limits.items()}


def version_1(group, limits, mount="/sys/fs/cgroup/cpu,cpuacct", root="/"):
    files = {
        "proc/self/cgroup": f"5:cpuset:/else\n4:cpu,cpuacct:{group}\n1:name=systemd:/x\n0::/x\n",
        "proc/self/mountinfo": OTHER1 + CGROUP1.format(root=root, mount=mount),
    }
    for at, (quota, period) in limits.items():
        files[f"{mount[1:]}{at}/cpu.cfs_quota_us"] = f"{quota}\n"
        files[f"{mount[1:]}{at}/cpu.cfs_period_us"] = f"{period}\n"
    return files


SERVICE = "/system.slice/job.service"
QUOTAS = {
    "no files at all": ({}, math.inf),
    "a service's own": (unified(SERVICE, {SERVICE: "150000 100000"}), 1.5),
    "the least counts": (
        unified(SERVICE, {SERVICE: "400000 100000", "/system.slice": "40000 20000"}),
        2.0,
    ),
    "a part is mounted": (
        unified("/docker/a1/job", {"/job": "250000 100000"}, root="/docker/a1"),
        2.5,
    ),
    "a longer name": (unified("/docker/a1x", {"x": "50000 100000"}, root="/docker/a1"), math.inf),
    "a namespace's parent": (unified("/../job", {"": "75000 100000"}), 0.75),
    "a group that is gone": (unified("/a/gone", {"/a": "100000 50000"}), 2.0),
    "a mount point with a space": (unified("/", {"": "50000 100000"}, mount="/my cgroups"), 0.5),
    "version 1, the parent's": (
        version_1("/pod/box", {"/pod/box": (-1, 100000), "/pod": (25000, 10000)}),
        2.5,
    ),
    "without /proc": ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
    "lines that say nothing": (
        {
            "proc/self/cgroup": "\nnothing\n0:\n",
            "proc/self/mountinfo": "\n - \n1 2 - cgroup2\n",
            "sys/fs/cgroup/cpu.max": "oops",
        },
        math.inf,
    ),
}


@pytest.mark.parametrize(("files", "quota"), QUOTAS.values(), ids=QUOTAS)
def test_quota(files, quota, tmp_path):
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert testing.cgroup_quota(str(tmp_path)) == quota
    assert testing.cpus_within(64, quota) == min(64, max(1, math.ceil(min(quota, 64))))


# Caches


def write_cache(root, index, **facts):
    cache = root / f"sys/devices/system/cpu/cpu0/cache/index{index}"
    cache.mkdir(parents=True)
    for name, text in facts.items():
        (cache / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("size", "wanted"), [("512K", 512 << 10), ("2M", 2 << 20), ("262144", 262144), ("", 0)]
)
def test_the_l2_cache_of_linux(size, wanted, tmp_path):
    assert testing.l2_cache_of_linux(str(tmp_path)) == 0  # a system that says nothing
    write_cache(tmp_path, 0, level=1, type="Data", size="32K")
    write_cache(tmp_path, 1, level=1, type="Instruction", size="32K")
    write_cache(tmp_path, 2, level=2, type="Unified", size=size)
    write_cache(tmp_path, 3, level=3, type="Unified", size="32M")
    assert testing.l2_cache_of_linux(str(tmp_path)) == wanted


def test_the_size_that_calls_use(run_python):
    """The variable replaces what the system says, of which only sizes that CPUs have count."""
    script = "from regard import _core; print(_core.l2_cache_bytes())"
    assert 128 << 10 <= int(run_python(script).stdout) <= 2 << 20
    assert int(run_python(script, REGARD_L2_CACHE="4096").stdout) == 4096
    for text in ("512K", "0"):
        done = run_python(script, REGARD_L2_CACHE=text)
        assert f"REGARD_L2_CACHE must be a positive number of bytes, got '{text}'" in done.stderr


def test_no_bits_depend_on_the_l2_cache(output_of):
    """With several pieces of keys or one, the gradients of queries, and of masks that keys or
    queries share, are summed in the same order."""
    script = """
    import hashlib
    calls = call_families(512)
    results = [a for f in calls.values() for a in f(2)]
    random = np.random.default_rng(0)
    query, key = random.normal(size=(2, 4, 130, 16)), random.normal(size=(2, 4, 2000, 16))
    for shape in ((4, 1, 1), (130, 1), (2000,), (1, 1)):
        mask = np.zeros(shape)
        given = query, key, key
        output, lse = regard.scaled_dot_product_attention(*given, mask, return_lse=True)
        results.append(
            regard.scaled_dot_product_attention_backward(
                query, *given, output, lse, mask, with_respect_to=["mask"]
            ).mask
        )
    print(hashlib.sha256(b"".join(a.tobytes() for a in results)).hexdigest())
    """
    sizes = ("1", "300000", "100000000")
    assert len({output_of(with_families(script), REGARD_L2_CACHE=size) for size in sizes}) == 1
