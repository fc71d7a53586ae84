"""Attend over a sequence that is distributed over the ranks of an MPI job, by ring attention.

    mpirun -n 4 python examples/mpi_ring.py

Each rank has some queries, and the keys and values of the same tokens. The queries stay. Keys and
values circulate: in each round a rank attends to the keys that it has, while it sends them to the
next rank and receives the keys of the previous rank. After as many rounds as there are ranks, every
rank has seen all keys and merges its partial results (Liu et al. 2023, "Ring Attention with
Blockwise Transformers for Near-Infinite Context").

With causal attention, the rank with the last tokens would have the most work. The sequence is
therefore cut into twice as many pieces as there are ranks, and rank r has pieces r and 2n - 1 - r:
each rank computes the same number of pairs of pieces.

The script needs mpi4py. It compares the result with a single call, which one rank can make only
because the example is small.
"""

import numpy as np
from mpi4py import MPI

import regard

HEADS, KV_HEADS, LENGTH, HEAD_DIM = 8, 2, 2048, 64

Piece = tuple[int, np.ndarray, np.ndarray]


def attend(query: np.ndarray, start: int, pieces: list[Piece]) -> tuple[np.ndarray, np.ndarray]:
    """Attend from the queries at `start` to pieces of keys, and return the output and lse."""
    outputs, lses = [], []
    for key_start, key, value in pieces:
        if key_start >= start + query.shape[-2]:
            continue  # all of them are in the future
        output, lse = regard.scaled_dot_product_attention(
            *(query, key, value),
            is_causal=True,
            query_offset=start - key_start,
            return_lse=True,
            threads=1,
        )
        outputs.append(output)
        lses.append(lse)
    if not outputs:
        return np.zeros_like(query), np.full(query.shape[:-1], -np.inf, query.dtype)
    return regard.merge_attention_states(outputs, lses)


def ring(
    comm: MPI.Comm, queries: list[tuple[int, np.ndarray]], key: np.ndarray, value: np.ndarray
) -> list[np.ndarray]:
    """Attend from a rank's pieces of queries to the keys of all ranks.

    `key` and `value` have the rank's two pieces along their first axis.
    """
    rank, size = comm.rank, comm.size
    states: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in queries]
    held, coming = np.stack([key, value]), np.empty((2, *key.shape), key.dtype)
    for round_ in range(size):
        owner = (rank - round_) % size
        requests = []
        if round_ < size - 1:
            requests = [
                comm.Isend(held, (rank + 1) % size),
                comm.Irecv(coming, (rank - 1) % size),
            ]
        starts = [number * key.shape[-2] for number in (owner, 2 * size - 1 - owner)]
        pieces = list(zip(starts, held[0], held[1], strict=True))
        for state, (start, query) in zip(states, queries, strict=True):
            state.append(attend(query, start, pieces))
        MPI.Request.Waitall(requests)
        held, coming = coming, held
    return [regard.merge_attention_states(*zip(*state, strict=True))[0] for state in states]


def main() -> None:
    """Attend in a ring, and compare with a single call."""
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    piece = -(-LENGTH // (2 * size))
    length = 2 * size * piece
    rng = np.random.default_rng(0)  # every rank draws all numbers, to compare the results
    query = rng.standard_normal((HEADS, length, HEAD_DIM), np.float32)
    key, value = rng.standard_normal((2, KV_HEADS, length, HEAD_DIM), np.float32)

    starts = rank * piece, (2 * size - 1 - rank) * piece

    def mine(array: np.ndarray) -> np.ndarray:
        return np.stack([array[:, start : start + piece] for start in starts])

    queries = list(zip(starts, mine(query), strict=True))
    comm.Barrier()
    begun = MPI.Wtime()
    outputs = ring(comm, queries, mine(key), mine(value))
    seconds = comm.allreduce(MPI.Wtime() - begun, MPI.MAX)
    single = regard.scaled_dot_product_attention(query, key, value, is_causal=True)
    worst = comm.allreduce(np.abs(np.stack(outputs) - mine(single)).max(), MPI.MAX)
    if rank == 0:
        sent = (size - 1) * 2 * KV_HEADS * 2 * piece * HEAD_DIM * 4
        print(f"{size} ranks, {length} tokens: {seconds:.3f} s, {sent / 1e6:.1f} MB sent by each")
        print(f"equal to a single call up to rounding: {worst < 1e-5}, {worst:.1e}")


if __name__ == "__main__":
    main()
