"""Compiles every kernel variant a server can reach and times the attested ones, before graphs are captured.

After this no launch compiles anything. The times go to the attestation; the KV rows they read fit into the L2 cache.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from glm5_vllm import attest
from glm5_vllm.attention.kernels.configs import ATTESTED_ROWS, FUSED_ROWS, KVFormat, LaunchConfig
from glm5_vllm.attention.kernels.inputs import (
    GROUPED_ROW_BYTES,
    LATENT,
    ROPE,
    KVRows,
    Positions,
    Query,
    Slots,
)
from glm5_vllm.attention.kernels.launch import attend, configuration

if TYPE_CHECKING:
    from glm5_vllm.attention.impl import TritonMLASparseImpl

_KV_ROWS = 8192
# some 10 ms, longer than the host needs to enqueue the timed calls
_QUEUE_CYCLES = 20_000_000
_done: set[tuple[object, ...]] = set()


def compile_and_time(impl: TritonMLASparseImpl, max_rows: int, block_size: int, device: torch.device) -> None:
    """Run each distinct configuration of up to `max_rows` rows once, then time ATTESTED_ROWS; once a process."""
    key = (impl.kernel_heads, impl.top_k, impl.kv_format, impl.dtype, impl.batch_invariant, block_size)
    if key in _done:
        return
    _done.add(key)
    inputs = _Inputs(impl, min(max_rows, max(ATTESTED_ROWS)), block_size, device)
    for rows, config in _distinct_configurations(impl, max_rows, device).items():
        inputs.attend(min(rows, inputs.most_rows), config)
        attest.kernel_configured(f"rows>={rows}", {**asdict(config.tile), "splits": config.splits})
    for rows in ATTESTED_ROWS:
        if rows <= inputs.most_rows:
            attest.kernel_timed(rows, inputs.seconds(rows))


def _distinct_configurations(
    impl: TritonMLASparseImpl, max_rows: int, device: torch.device
) -> dict[int, LaunchConfig]:
    """Least row count of each run of equal configurations."""
    found: dict[int, LaunchConfig] = {}
    last = None
    for rows in range(1, max_rows + 1):
        config = configuration(
            rows, impl.kernel_heads, impl.top_k, impl.kv_format, device, impl.batch_invariant
        )
        if config != last:
            found[rows] = last = config
    return found


class _Inputs:
    """Random rows of the impl's shapes, laid out as vLLM lays them out."""

    def __init__(
        self, impl: TritonMLASparseImpl, most_rows: int, block_size: int, device: torch.device
    ) -> None:
        self.impl, self.most_rows, self.block_size = impl, most_rows, block_size
        heads, dtype = impl.kernel_heads, impl.dtype
        # heads first, as the product with W_UK leaves them
        self.q_latent = torch.randn(heads, most_rows, LATENT, dtype=dtype, device=device).transpose(0, 1)
        self.q_rope = torch.randn(most_rows, heads, ROPE, dtype=dtype, device=device)
        self.kv = KVRows(_random_rows(impl.kv_format, dtype, device))
        self.positions = torch.randint(0, _KV_ROWS, (most_rows, impl.top_k), dtype=torch.int32, device=device)
        self.counts = torch.full((most_rows,), impl.top_k, dtype=torch.int32, device=device)
        blocks = torch.arange(_KV_ROWS // block_size, dtype=torch.int32, device=device)
        self.block_table = blocks.expand(most_rows, -1).contiguous()
        self.request_of_row = torch.arange(most_rows, dtype=torch.int32, device=device)

    def attend(self, rows: int, config: LaunchConfig | None = None) -> None:
        """Both kinds of index, as far as the server would take them with this many rows, whole and in two query parts."""
        parts = self._parts(rows)
        for q in (parts, torch.cat(parts, -1)):
            query = Query.of(q, self.impl.scale)
            self._attend(query, self._slots(rows), config)
            if rows <= FUSED_ROWS:
                self._attend(query, self._positions(rows), config)

    def seconds(self, rows: int, repeats: int = 9) -> float:
        """Median time of one call on the card: the calls queue up behind a wait, so the host's time does not count."""
        query = Query.of(self._parts(rows), self.impl.scale)
        index = self._positions(rows) if rows <= FUSED_ROWS else self._slots(rows)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        self._attend(query, index)
        torch.cuda._sleep(_QUEUE_CYCLES)
        for event in events:
            event.record()
            self._attend(query, index)
        events[-1].synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events)) / 1e3

    def _attend(self, query: Query, index: Slots | Positions, config: LaunchConfig | None = None) -> None:
        batch_invariant = self.impl.batch_invariant
        attend(query, self.kv, index, self.impl.workspace(), batch_invariant=batch_invariant, config=config)

    def _parts(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.q_latent[:rows], self.q_rope[:rows]

    def _slots(self, rows: int) -> Slots:
        return Slots(self.positions[:rows], self.counts[:rows])

    def _positions(self, rows: int) -> Positions:
        positions, request_of_row = self.positions[:rows], self.request_of_row[:rows]
        return Positions(positions, self.block_table, request_of_row, self.block_size, self.block_size)


def _random_rows(kv_format: KVFormat, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if kv_format is KVFormat.FP8_GROUPED:
        # any bytes will do for compiling and timing; what is computed from them is thrown away
        return torch.randint(0, 64, (_KV_ROWS, GROUPED_ROW_BYTES), dtype=torch.uint8, device=device)
    rows = torch.randn(_KV_ROWS, LATENT + ROPE, dtype=dtype, device=device)
    return rows.to(torch.float8_e4m3fn) if kv_format is KVFormat.FP8 else rows
