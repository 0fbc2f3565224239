"""What a model is, in numbers: one frozen description for every architecture.

Knows nothing of the files the numbers come from; :mod:`weights` reads those.
"""

from dataclasses import dataclass, field

from chairlift.errors import ModelLoadError

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """How positions rotate queries and keys; see :func:`layers.rope.inverse_frequencies`.

    ``original_max_positions`` is the length the model was first trained for, before ``factor`` stretched it
    (``llama3`` and ``yarn``). ``dynamic`` only changes anything beyond ``max_position_embeddings``, which is refused.
    ``frequency_divisors``, one per pair of dimensions, is how GGUF files carry Llama 3's scaling.
    """

    kind: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_positions: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    frequency_divisors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in ROPE_KINDS:
            raise ModelLoadError(f"rope type {self.kind!r} is not supported; supported: {', '.join(ROPE_KINDS)}")
        if self.kind in ("llama3", "yarn") and self.original_max_positions is None:
            raise ModelLoadError(f"rope type {self.kind!r} needs original_max_position_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer with grouped-query attention, rotary positions and a gated MLP.

    Raises:
        ModelLoadError: the numbers contradict each other.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    """Tokens in one sequence at most, with rope scaling already counted in."""
    rope: RopeConfig = field(default_factory=RopeConfig)
    windows: tuple[int | None, ...] = ()
    """Per layer: how many of the last tokens attention sees, ``None`` for all."""
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"):
            if getattr(self, name) < 1:
                raise ModelLoadError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads: not a multiple"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ModelLoadError(f"head size must be even for rotary positions, got {self.head_dim}")
        if len(self.windows) != self.num_layers:
            raise ModelLoadError(f"{len(self.windows)} attention windows for {self.num_layers} layers")
        divisors = self.rope.frequency_divisors
        if divisors is not None and len(divisors) != self.head_dim // 2:
            raise ModelLoadError(f"{len(divisors)} rope frequency divisors for a head size of {self.head_dim}")

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token adds to the KV cache, over all layers, keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim
