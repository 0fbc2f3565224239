"""A latency model from data sheets: every part of a step takes as long as its arithmetic or its memory traffic.

Knows nothing of kernels. Source of the idea: Williams et al., "Roofline" (CACM 2009).

Per step, on each of ``n`` devices of a tensor-parallel group that splits every layer::

    linear layers   max(2 * weights * rows / flops, weight bytes / memory)   + activations / memory
    attention       decodes:  max(KV bytes / memory, 4 * heads * size * context / flops)
                    chunks:   max(4 * heads * size * pairs / flops, KV bytes / memory)
    output head     max(2 * vocabulary * width * sampled / flops, head bytes / memory)
    all-reduce      two per layer: bytes / link + latency
    host copies     page bytes / host link; the two directions run side by side
"""

from dataclasses import dataclass

from chairlift.simulator.latency.model import MachineFacts, StepShape, StepTime

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSheet:
    """A device in numbers, as its vendor gives them; efficiencies say how much of them kernels reach.

    Those of arithmetic and memory are fitted to measured operators (:mod:`~.operator_tables`): over five machines and
    eight steps of each, the roofline is off by 4.3 % on average and by 12.2 % at worst.
    """

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    flops_per_s: float
    """Dense, in 16 bits."""
    host_link_bytes_per_s: float
    """In one direction."""
    device_link_bytes_per_s: float
    """In one direction, to the other devices of a group."""
    flop_efficiency: float = 0.74
    memory_efficiency: float = 0.75
    link_efficiency: float = 0.8
    host_link_efficiency: float = 0.8
    usable_memory: float = 0.9
    """Part of the memory that weights and KV may take."""
    step_overhead_us: float = 500.0
    """Per step outside of the kernels that are counted: launches, sampling, scheduling."""
    layer_overhead_us: float = 8.0
    """Per layer: the small kernels between the big ones."""
    all_reduce_us: float = 8.0
    """Latency of one all-reduce."""
    operator_tables: str | None = None
    """Where the tables of :mod:`~.operator_tables` have the device."""
    copy_overlap: float = 0.0
    """Part of the copies between device and host that hides behind the step's arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSheet:
    """A decoder-only transformer in numbers, with grouped-query attention and a gated MLP."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_model_len: int
    weight_bytes: float = 2.0
    """Bytes of one weight."""
    kv_bytes: float = 2.0
    """Bytes of one number in the KV memory."""

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's linear parts."""
        attention = self.head_size * (2 * self.num_heads + 2 * self.num_kv_heads) * self.hidden_size
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def total_weights(self) -> int:
        """All weights: layers, embedding and output head."""
        return self.num_layers * self.layer_weights + 2 * self.vocab_size * self.hidden_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return int(2 * self.num_layers * self.num_kv_heads * self.head_size * self.kv_bytes)


class RooflineLatency:
    """Implements :class:`~.model.LatencyModel` for ``num_devices`` equal devices that split every layer."""

    def __init__(self, device: DeviceSheet, model: ModelSheet, num_devices: int = 1) -> None:
        self.device, self.model, self.num_devices = device, model, num_devices
        kv_bytes = num_devices * device.memory_bytes * device.usable_memory - model.total_weights * model.weight_bytes
        group = f"{num_devices} x " if num_devices > 1 else ""
        self.facts = MachineFacts(
            name=f"{model.name} on {group}{device.name}, roofline",
            max_model_len=model.max_model_len,
            num_kv_tokens=max(0, int(kv_bytes // model.kv_bytes_per_token)),
            kv_bytes_per_token=model.kv_bytes_per_token,
            host_bytes_per_s=device.host_link_bytes_per_s * device.host_link_efficiency * num_devices,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
        )
        self._flops_per_ns = device.flops_per_s * device.flop_efficiency * num_devices / _NS_PER_S
        self._bytes_per_ns = device.memory_bytes_per_s * device.memory_efficiency * num_devices / _NS_PER_S
        self._fixed_ns = 1000 * (
            device.step_overhead_us
            + model.num_layers * (device.layer_overhead_us + (2 * device.all_reduce_us if num_devices > 1 else 0.0))
        )
        weights = model.num_layers * model.layer_weights
        self._weights_ns = weights * model.weight_bytes / self._bytes_per_ns
        self._row_ns = 2 * weights / self._flops_per_ns
        self._row_traffic_ns = self._row_bytes_ns()
        head = model.vocab_size * model.hidden_size
        self._head_ns = head * model.weight_bytes / self._bytes_per_ns
        self._head_row_ns = 2 * head / self._flops_per_ns
        self._kv_token_ns = model.kv_bytes_per_token / self._bytes_per_ns
        self._pair_ns = 4 * model.num_layers * model.num_heads * model.head_size / self._flops_per_ns
        # Each device copies its own part of a page over its own link.
        link = device.host_link_bytes_per_s * device.host_link_efficiency * num_devices / _NS_PER_S
        self._copied_token_ns = model.kv_bytes_per_token / link

    def _row_bytes_ns(self) -> float:
        """Activations of one row: read and written around each of a layer's parts, and all-reduced twice."""
        model, device, others = self.model, self.device, self.num_devices - 1
        width = 2.0 * (6 * model.hidden_size + 3 * model.intermediate_size)
        traffic_ns = model.num_layers * width / self._bytes_per_ns
        reduced = 2 * model.num_layers * 2.0 * model.hidden_size * 2 * others / self.num_devices
        return traffic_ns + reduced / (device.device_link_bytes_per_s * device.link_efficiency) * _NS_PER_S

    def copy_ns(self, num_tokens: int) -> float:
        """Return how long the KV of so many tokens takes from device to host or back."""
        return num_tokens * self._copied_token_ns

    def time(self, shape: StepShape, page_size: int) -> StepTime:
        """Return how long a step takes."""
        num_rows = shape.num_decodes + shape.num_chunk_rows
        compute_ns = self.small_kernels_ns(num_rows)
        compute_ns += max(self._row_ns * num_rows, self._weights_ns)
        context = shape.num_decode_context_tokens
        compute_ns += max(self._kv_token_ns, self._pair_ns) * context
        if shape.num_chunks:
            compute_ns += max(self._pair_ns * shape.num_chunk_pairs, self._kv_token_ns * shape.num_chunk_context_tokens)
        if shape.num_sampled:
            compute_ns += max(self._head_row_ns * shape.num_sampled, self._head_ns)
        return self.with_copies(compute_ns, shape, page_size)

    def small_kernels_ns(self, num_rows: int) -> float:
        """Return the time of everything in a step but products with weights and attention."""
        return self._fixed_ns + num_rows * self._row_traffic_ns

    def with_copies(self, compute_ns: float, shape: StepShape, page_size: int) -> StepTime:
        """Add the copies of a step to its arithmetic."""
        if not (shape.num_pages_out or shape.num_pages_in):
            return StepTime(int(compute_ns))
        copy_ns = self.copy_ns(page_size * max(shape.num_pages_out, shape.num_pages_in))
        hidden_ns = self.device.copy_overlap * min(compute_ns, copy_ns)
        return StepTime(int(compute_ns + copy_ns - hidden_ns), int(copy_ns))
