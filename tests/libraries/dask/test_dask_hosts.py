"""A scheduler and two workers run on separate hosts, in network namespaces. One host loses its
network during the computation, and the bits equal the bits of a single process."""

import contextlib
import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("dask.array", reason='pip install ".[dask]"')
pytest.importorskip("distributed", reason='pip install ".[dask]"')

HOSTS = {"scheduler": "10.77.0.1", "worker": "10.77.0.2", "other": "10.77.0.3"}
ADDRESS = f"tcp://{HOSTS['scheduler']}:8786"
# The timeouts after which a silent host is given up.
TIMEOUTS = {
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "3s",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
}
CLIENT = """
import sys, time
import dask, dask.array as da, distributed, numpy as np
import regard.dask

def slowly(block):
    time.sleep(0.1)
    return block

def collection(is_slow):
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((3, 4, 2000, 32), np.float32)
    chunked = [da.from_array(x, chunks=(2, 230, 32)) for x in arrays]
    query, key, value = (
        [x.map_blocks(slowly, dtype=x.dtype) for x in chunked] if is_slow else chunked
    )
    options = {"is_causal": True, "dropout_p": 0.2, "dropout_seed": 3}
    output, lse = regard.dask.scaled_dot_product_attention(
        query, key, value, return_lse=True, split_every=2, **options
    )
    gradients = regard.dask.scaled_dot_product_attention_backward(
        output, query, key, value, output, lse, split_every=2, **options
    )
    return [output, lse, *gradients[:3]]

def held(client):
    what = client.has_what().values()
    return [sum("attention-part" in str(key) for key in keys) for keys in what]

if __name__ == "__main__":
    alone = dask.compute(*collection(False), scheduler="synchronous")
    with distributed.Client(sys.argv[1], timeout=60) as client:
        client.wait_for_workers(2, timeout=60)
        futures = client.compute(collection(True))
        while not (len(held(client)) == 2 and all(held(client))):
            time.sleep(0.02)
        assert any(future.status == "pending" for future in futures)
        print("cut", flush=True)
        results = client.gather(futures)
        print(all(a.tobytes() == b.tobytes() for a, b in zip(alone, results, strict=True)))
        print(len(client.scheduler_info()["workers"]), flush=True)
"""

pytestmark = pytest.mark.slow


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def hosts():
    """Yield the names, by role, of namespaces that are connected by a switch, which is one more
    namespace."""
    if shutil.which("ip") is None:
        pytest.skip("no program ip: apt-get install iproute2")
    names = {role: f"regard-{os.getpid()}-{role}" for role in ("switch", *HOSTS)}
    with contextlib.ExitStack() as stack:
        for name in names.values():
            try:
                ip("netns", "add", name)
            except OSError as error:
                pytest.skip(f"no network namespaces here: {error}")
            stack.callback(ip, "netns", "delete", name)
        try:
            ip("-n", names["switch"], "link", "add", "bridge", "type", "bridge")
            ip("-n", names["switch"], "link", "set", "bridge", "up")
            for number, (role, address) in enumerate(HOSTS.items()):
                port, host = f"port{number}", names[role]
                ends = ("link", "add", port, "type", "veth", "peer", "name", "net0")
                ip("-n", names["switch"], *ends, "netns", host)
                ip("-n", names["switch"], "link", "set", port, "master", "bridge", "up")
                ip("-n", host, "address", "add", f"{address}/24", "dev", "net0")
                ip("-n", host, "link", "set", "net0", "up")
                ip("-n", host, "link", "set", "lo", "up")
        except OSError as error:
            pytest.skip(f"no virtual networks here: {error}")
        yield names


def test_a_host_loses_its_network(hosts, tmp_path):
    script = tmp_path / "client.py"
    script.write_text(CLIENT, encoding="utf-8")

    def start(role, *arguments, **options):
        command = ["ip", "netns", "exec", hosts[role], sys.executable, *map(str, arguments)]
        log = stack.enter_context((tmp_path / f"{role}.log").open("a", encoding="utf-8"))
        return stack.enter_context(ended(command, cwd=tmp_path, stderr=log, **options))

    with contextlib.ExitStack() as stack:
        module, quiet = "distributed.cli.dask_", {"stdout": subprocess.DEVNULL}
        at = ("--host", HOSTS["scheduler"], "--port", "8786", "--no-dashboard")
        start("scheduler", "-m", f"{module}scheduler", *at, **quiet)
        for role in ("worker", "other"):
            own = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", role)
            start(role, "-m", f"{module}worker", ADDRESS, *own, **quiet)
        client = start("scheduler", script, ADDRESS, stdout=subprocess.PIPE, text=True)
        told = client.stdout.readline().strip()
        assert told == "cut", (tmp_path / "scheduler.log").read_text(encoding="utf-8")
        ip("-n", hosts["other"], "link", "set", "net0", "down")
        printed, _ = client.communicate(timeout=90)
        assert client.returncode == 0
        assert printed.split() == ["True", "1"]


@contextlib.contextmanager
def ended(command, **options):
    """Run a process, and end it whatever happens."""
    environment = os.environ | TIMEOUTS
    with subprocess.Popen(command, env=environment, **options) as process:
        try:
            yield process
        finally:
            process.kill()
