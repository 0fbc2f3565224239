"""The layers' matrix products of SmolLM2-135M, ours against torch's, weights coming from memory: best of five.

python benchmarks/kernels/compare_linear.py
"""

import time
from collections.abc import Callable

import torch

from chairlift.execution.torch_backend.cpu_kernels import make_cpu_kernels

SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576))
NUM_LAYERS = 30
NUM_THREADS = 2


def best_s(run: Callable[[], None]) -> float:
    """Seconds of the fastest of five runs, after one that does not count."""
    run()
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Measure and print."""
    ready = make_cpu_kernels(torch.float32, NUM_THREADS, head_size=64)
    weights = [[torch.randn(outputs, inputs) for inputs, outputs in SHAPES] for _ in range(NUM_LAYERS)]
    packed = [[ready.kernels.pack_linear(weight) for weight in layer] for layer in weights]
    for rows in (1, 8, 24, 64, 256, 512):
        inputs = [torch.randn(rows, size) for size, _ in SHAPES]

        def ours(inputs: list[torch.Tensor] = inputs) -> None:
            for layer in packed:
                for x, weight in zip(inputs, layer, strict=True):
                    ready.kernels.linear(x, weight)

        def theirs(inputs: list[torch.Tensor] = inputs) -> None:
            for layer in weights:
                for x, weight in zip(inputs, layer, strict=True):
                    torch.nn.functional.linear(x, weight)

        gflop = 2 * rows * sum(a * b for a, b in SHAPES) * NUM_LAYERS / 1e9
        torch.set_num_threads(1)
        first = gflop / best_s(ours)
        torch.set_num_threads(NUM_THREADS)
        print(f"{rows:4} rows: ours {first:.0f}, torch {gflop / best_s(theirs):.0f} GFLOP/s", flush=True)
    ready.close()


if __name__ == "__main__":
    main()
