"""From tensors to a launch of attention: choose, bind, and keep what is bound for the next call with its addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem, spaced_lengths, spread_of
from wavetune.core.config import KernelConfig
from wavetune.errors import CaptureError
from wavetune.kernels import attention, attention_decode
from wavetune.kernels.attention_operands import AttentionDecodeOperands, AttentionOperands
from wavetune.kernels.attention_space import decode_fallback_configs, fallback_configs, first_legal
from wavetune.kernels.call import IS_INTERPRETED, KernelCall, Launch, find_loaded
from wavetune.kernels.launch_cache import LaunchCache
from wavetune.launch.attention_checks import check_starts
from wavetune.launch.checks import SUPPORTED_DTYPES
from wavetune.launch.choices import Choices, next_best
from wavetune.launch.gpu import LaunchGpu, current_stream, find_gpu
from wavetune.launch.next_best import Kind
from wavetune.mapping.attention import decode_workspace_size
from wavetune.mapping.attention_shape import AnyAttentionProblem
from wavetune.mapping.legality import TMA_ALIGNMENT
from wavetune.runtime.attention_choice import choose_attention, rank_attention

_launches = LaunchCache()
_choices = Choices()


def run_attention(
    q: Any, k: Any, v: Any, cu_seqlens: Any, cu_seqlens_k: Any, *, causal: bool, scale: float, window: int,
    max_seqlen: int, max_seqlen_k: int, return_lse: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """Launch a prefill of checked tensors; a count of 0 was not given.

    Returns
    -------
    out : Tensor
        Of q's shape.
    lse : Tensor
        fp32, (batch, heads, q_len) or (heads, q_tokens); empty if not wanted.
    """
    result = torch.empty_like(q)
    out = result if is_usable(result) else torch.empty(q.shape, dtype=q.dtype, device=q.device)
    q, k, v = (usable(tensor) for tensor in (q, k, v))
    lse = torch.empty(_lse_shape(q, cu_seqlens) if return_lse else (0,), dtype=torch.float32, device=q.device)
    if q.numel() == 0:
        return result, lse
    if k.numel() == 0:
        attention.fill_without_keys(result, lse)
        return result, lse
    if cu_seqlens is None:
        batch, heads, q_len, head_dim = q.shape
        problem = AttentionProblem(
            (q_len,) * batch, (k.shape[2],) * batch, heads, k.shape[1], head_dim, causal, window,
            SUPPORTED_DTYPES[q.dtype],
        )  # fmt: skip
        q_starts, kv_starts, lse_view = None, None, lse
        views = (q, k, v, out)
    else:
        cu_seqlens_k, max_seqlen_k = (
            (cu_seqlens, max_seqlen) if cu_seqlens_k is None else (cu_seqlens_k, max_seqlen_k)
        )  # fmt: skip
        q_lengths = packed_lengths("cu_seqlens", cu_seqlens, q.shape[0], max_seqlen)
        kv_lengths = packed_lengths("cu_seqlens_k", cu_seqlens_k, k.shape[0], max_seqlen_k)
        problem = AttentionProblem(
            q_lengths, kv_lengths, q.shape[1], k.shape[1], q.shape[2], causal, window, SUPPORTED_DTYPES[q.dtype],
            is_packed=True,
        )  # fmt: skip
        q_starts, kv_starts = (part.to(q.device).contiguous() for part in (cu_seqlens, cu_seqlens_k))
        lse_view = lse.unsqueeze(0)
        views = (_as_batch(q), _as_batch(k), _as_batch(v), _as_batch(out))
    operands = AttentionOperands(problem, *views, q_starts, kv_starts, lse_view if return_lse else None, scale)
    gpu = find_gpu(q.device)
    config = _choose(problem, gpu, return_lse)
    tensors = (q, k, v, out, q_starts, kv_starts, lse if return_lse else None)
    _launch(gpu, operands, config, tensors, (scale, *(view.stride() for view in views)))
    return (result if out is result else result.copy_(out)), lse


def run_decode(
    q: Any, k_cache: Any, v_cache: Any, block_table: Any, lengths: Any, *, scale: float, window: int, max_length: int,
    return_lse: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """Launch a decode step of checked tensors; a count of 0 was not given.

    Returns
    -------
    out : Tensor of shape (batch, heads, head_dim)
        The result.
    lse : Tensor of shape (batch, heads)
        fp32; empty if not wanted.
    """
    result = torch.empty_like(q)
    out = result if is_usable(result) else torch.empty(q.shape, dtype=q.dtype, device=q.device)
    q, k_cache, v_cache = (usable(tensor) for tensor in (q, k_cache, v_cache))
    batch, heads, head_dim = q.shape
    page_size = k_cache.shape[1]
    lse = torch.empty((batch, heads) if return_lse else (0,), dtype=torch.float32, device=q.device)
    if batch == 0:
        return result, lse
    longest = min(max_length or block_table.shape[1] * page_size, block_table.shape[1] * page_size)
    if longest == 0 or k_cache.shape[0] == 0:
        attention.fill_without_keys(result, lse)
        return result, lse
    # How long the others are is known to the GPU alone.
    problem = AttentionDecodeProblem(
        (longest,) * batch, heads, k_cache.shape[2], head_dim, page_size, window, SUPPORTED_DTYPES[q.dtype]
    )
    gpu = find_gpu(q.device)
    config = _choose(problem, gpu, return_lse)
    n_partials = decode_workspace_size(problem, int(config["splits"]))
    partials = torch.empty(n_partials, dtype=torch.float32, device=q.device) if n_partials else None
    if block_table.shape[1] > 1 and block_table.stride(1) != 1:
        block_table = block_table.contiguous()
    lengths = lengths.contiguous()
    operands = AttentionDecodeOperands(
        problem, q, k_cache, v_cache, block_table, lengths, out, lse if return_lse else None, scale, partials
    )
    tensors = (q, k_cache, v_cache, block_table, lengths, out, lse if return_lse else None, partials)
    strides = (tensor.stride() for tensor in (q, k_cache, v_cache, block_table, out))
    _launch(gpu, operands, config, tensors, (scale, *strides))
    return (result if out is result else result.copy_(out)), lse


def is_usable(tensor: Any) -> bool:
    """Whether kernels can read and write a tensor where it is: rows of adjacent elements, 16-byte aligned."""
    unit = TMA_ALIGNMENT // tensor.element_size()
    strides = [stride for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if size > 1]
    is_aligned = tensor.data_ptr() % TMA_ALIGNMENT == 0
    return is_aligned and tensor.stride(-1) == 1 and all(stride > 0 and stride % unit == 0 for stride in strides)


def usable(tensor: Any) -> Any:
    """Return a tensor that kernels can read: itself, or a copy."""
    return tensor if is_usable(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def packed_lengths(name: str, starts: Any, tokens: int, longest: int) -> tuple[int, ...]:
    """Return the lengths of packed sequences, as far as they can be known.

    Where only the longest is known, the others are taken to be evenly spaced with the right sum: the grid depends on
    the longest alone, and the choice of a configuration on little more. Otherwise starts on a GPU are read, which waits
    for it.

    Raises
    ------
    OperandError
        If starts that are read are impossible.
    CaptureError
        If they would have to be read while a graph is captured.
    """
    if starts.device.type == "cpu":
        return check_starts(name, starts.tolist(), tokens)
    if longest:
        n_sequences = starts.shape[0] - 1
        others = (tokens - longest) // max(n_sequences - 1, 1)
        spread = spread_of([longest] + [min(max(others, 0), longest)] * (n_sequences - 1))
        return spaced_lengths(n_sequences, longest, spread)
    if torch.cuda.is_current_stream_capturing():
        raise CaptureError(f"{name} cannot be read while a CUDA graph is captured; give max_seqlen (and max_seqlen_k)")
    return check_starts(name, starts.tolist(), tokens)


@dataclass(frozen=True, slots=True)
class Family:
    """What the launcher needs of the kernels of a family.

    Parameters
    ----------
    calls : callable
        Takes operands, a configuration and an `ArchSpec`; describes the launches.
    bind : callable
        Takes the stream as well; returns a function that launches. Raises what compiling and loading raises.
    refusal : callable
        Takes a problem, a configuration and an `ArchSpec`; says what is against them, or None.
    fixed_rule : callable
        Takes a problem and an `ArchSpec`; yields configurations for want of a model.
    """

    calls: Callable[..., list[KernelCall]]
    bind: Callable[..., Launch]
    refusal: Callable[..., str | None]
    fixed_rule: Callable[..., Iterator[KernelConfig]]


_FAMILIES: dict[str, Family] = {
    AttentionProblem.kernel: Family(
        attention.attention_calls, attention.bind_attention, attention.illegal_reason, fallback_configs
    ),
    AttentionDecodeProblem.kernel: Family(
        attention_decode.decode_calls,
        attention_decode.bind_decode,
        attention_decode.decode_illegal_reason,
        decode_fallback_configs,
    ),
}


def _choose(problem: AnyAttentionProblem, gpu: LaunchGpu, has_lse: bool) -> KernelConfig:
    """Return the model's choice, or without a model that of the fixed rule; the latter is logged once.

    Where the choice cannot run on the GPU, what took its place is the choice.
    """
    key = (problem, gpu, has_lse)
    return _choices.get(key) or _choices.add(
        key,
        problem,
        gpu,
        lambda arch, num_sms: choose_attention(problem, arch=arch, num_sms=num_sms).config,
        lambda reason: first_legal(_FAMILIES[problem.kernel].fixed_rule(problem, gpu.arch), problem, gpu.arch),
    )


def _launch(
    gpu: LaunchGpu, operands: Any, config: KernelConfig, tensors: tuple[Any, ...], layout: tuple[object, ...]
) -> None:  # fmt: skip
    with gpu.activate():
        stream = 0 if gpu.index is None else current_stream(gpu.index)
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        key = (operands.problem, config, gpu, stream, layout, *addresses)
        launch = _launches.get(key)
        if launch is None:
            used, launch = _bind_first(gpu, operands, config, stream)
            # What stands in may have a workspace that is not among the addresses.
            if used == config:
                _launches.add(key, launch)
        launch()


def _bind_first(
    gpu: LaunchGpu, operands: Any, config: KernelConfig, stream: int
) -> tuple[KernelConfig, Launch]:  # fmt: skip
    """Bind a choice, or what takes its place where it cannot be compiled or loaded."""
    problem, has_lse = operands.problem, operands.lse is not None
    family = _FAMILIES[problem.kernel]
    return _choices.run(
        (problem, gpu, has_lse),
        config,
        gpu,
        _kind(problem, gpu, has_lse),
        problem,
        others=next_best(problem, config, gpu, rank_attention, family.refusal, family.fixed_rule),
        is_loaded=lambda candidate: is_loaded(_with_workspace(operands, candidate), candidate, gpu),
        run=lambda candidate: family.bind(_with_workspace(operands, candidate), candidate, gpu.arch, stream),
    )


def is_loaded(operands: Any, config: KernelConfig, gpu: LaunchGpu) -> bool:
    """Whether a launch would compile nothing on the current device."""
    calls = _FAMILIES[operands.problem.kernel].calls
    return IS_INTERPRETED or all(find_loaded(call) is not None for call in calls(operands, config, gpu.arch))


def _with_workspace(operands: Any, config: KernelConfig) -> Any:
    """Return operands for a configuration, which may split more than the one that they were made for."""
    return operands.with_workspace(config) if isinstance(operands, AttentionDecodeOperands) else operands


def _kind(problem: AnyAttentionProblem, gpu: LaunchGpu, has_lse: bool) -> Kind:
    """Return what decides, beside the configuration, which kernels compute a problem."""
    shared = (problem.kernel, gpu.index, problem.dtype, problem.layout, problem.window > 0, has_lse)
    if isinstance(problem, AttentionProblem):
        return *shared, problem.is_causal, problem.is_packed
    return *shared, problem.page_size, problem.group


def _as_batch(packed: Any) -> Any:
    """See packed tokens (tokens, heads, head_dim) as a batch of one."""
    return packed.transpose(0, 1).unsqueeze(0)


def _lse_shape(q: Any, cu_seqlens: Any) -> tuple[int, ...]:
    return tuple(q.shape[:3]) if cu_seqlens is None else (q.shape[1], q.shape[0])
