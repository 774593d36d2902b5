"""Inputs of sparse MLA tests: shapes, traps in them, and the tolerance of each type."""

from dataclasses import dataclass

import torch

from glm5_vllm.attention import reference

LATENT, ROPE = 512, 64
SCALE = 256**-0.5

# relative error norm of the output. float32 differs by the order of its sums; 16-bit types by the rounding of the
# softmax weights before the second product (half a unit in the last place of 8 or 11 bits) and of the result
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}
# scores are float32 sums of exact products, so the logarithm of their sum is close whatever the type
LSE_TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-4, torch.bfloat16: 1e-4}


@dataclass(frozen=True)
class Case:
    """q, flat KV rows as the kernel gets them and as float32, slots and counts."""

    q: torch.Tensor
    kv: torch.Tensor
    kv_float: torch.Tensor
    slots: torch.Tensor
    counts: torch.Tensor
    kv_scale: float


def grouped_rows(latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """Pack latent [slots, 512] and rope [slots, 64] as 656-byte rows: fp8, four float32 scales, 16-bit rope."""
    groups = latent.float().view(-1, 4, 128)
    # as vLLM writes it: zeros have the least normal scale
    scale = (groups.abs().amax(-1) / 448).clamp(min=torch.finfo(torch.float32).tiny)
    packed = torch.empty(latent.shape[0], 656, dtype=torch.uint8, device=latent.device)
    packed[:, :512] = (groups / scale[..., None]).view(-1, 512).to(torch.float8_e4m3fn).view(torch.uint8)
    packed[:, 512:528] = scale.contiguous().view(torch.uint8)
    packed[:, 528:] = rope.contiguous().view(torch.uint8)
    return packed


def grouped_float(packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The float32 values of `grouped_rows`."""
    scale = packed[:, 512:528].contiguous().view(torch.float32)
    latent = (
        packed[:, :512].contiguous().view(torch.float8_e4m3fn).float().view(-1, 4, 128) * scale[..., None]
    )
    rope = packed[:, 528:].contiguous().view(dtype).float()
    return torch.cat((latent.view(-1, 512), rope), 1)


def make_case(
    rows: int,
    heads: int,
    width: int,
    num_slots: int,
    dtype: torch.dtype,
    kv_kind: str = "wide",
    device: str = "cpu",
    seed: int = 0,
) -> Case:
    """Random rows with every trap: -1 anywhere, slots beyond the count, an empty row, NaN in all that is unused."""
    generator = torch.Generator(device).manual_seed(seed)
    q = torch.randn(rows, heads, LATENT + ROPE, generator=generator, device=device).to(dtype)
    values = torch.randn(num_slots, LATENT + ROPE, generator=generator, device=device)
    slots = torch.randint(1, num_slots, (rows, width), generator=generator, device=device, dtype=torch.int32)
    slots[torch.rand(rows, width, generator=generator, device=device) < 0.2] = -1
    slots[0, 0] = 1  # at least one entry counts somewhere
    counts = torch.randint(1, width + 1, (rows,), generator=generator, device=device, dtype=torch.int32)
    counts[0] = width
    if rows > 1:
        counts[1] = 0
    if rows > 2:
        slots[2] = -1
    column = torch.arange(width, device=device)
    used = torch.zeros(num_slots, dtype=torch.bool, device=device)
    valid = (column < counts[:, None]) & (slots >= 0)
    used[slots[valid].long()] = True
    # beyond the count stand slots that hold NaN
    slots = torch.where(column < counts[:, None], slots, 0)
    kv_scale = 1.0
    if kv_kind == "wide":
        kv = values.to(dtype)
        kv_float = kv.float()
        kv[~used] = float("nan")
    elif kv_kind == "fp8":
        kv_scale = 0.02
        kv = (values / kv_scale).to(torch.float8_e4m3fn)
        kv_float = kv.float() * kv_scale
        kv.view(torch.uint8)[~used] = 0x7F
    else:
        kv = grouped_rows(values[:, :LATENT], values[:, LATENT:].to(dtype))
        kv_float = grouped_float(kv, dtype)
        # NaN as fp8, as float32 and as a 16-bit float
        kv[~used] = 0x7F
        kv[~used, 528:] = 0xFF
        kv[~used, 512:528] = 0xFF
    return Case(q, kv, kv_float, slots, counts, kv_scale)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """||actual - expected|| / ||expected||; NaN stays NaN and so never passes a comparison."""
    return ((actual.float() - expected).norm() / expected.norm()).item()


def largest_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest |actual - expected| where both are finite; infinite if they are not infinite at the same places."""
    if not torch.equal(actual.isinf(), expected.isinf()) or actual.isnan().any():
        return float("inf")
    finite = ~expected.isinf()
    return (actual - expected)[finite].abs().max().item() if finite.any() else 0.0


def expect_reference(case: Case, out: torch.Tensor, lse: torch.Tensor) -> None:
    """What a kernel gave for `case` is the reference's answer within the tolerance of its type; empty rows are zero."""
    expected_out, expected_lse = reference.sparse_mla(case.q, case.kv_float, case.slots, case.counts, SCALE)

    assert relative_error(out, expected_out) < TOLERANCE[case.q.dtype]
    assert largest_difference(lse, expected_lse) < LSE_TOLERANCE[case.q.dtype]
    empty = expected_lse.isinf().all(1)
    assert torch.count_nonzero(out[empty]) == 0
