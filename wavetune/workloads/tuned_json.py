"""Tuned configurations of vLLM and SGLang: a JSON file for each layer, whose name says which."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from wavetune.core.element import find_element
from wavetune.core.strict_json import json_error, load_json
from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import WavetuneError, WorkloadError
from wavetune.workloads.bench_options import positive
from wavetune.workloads.intake import Intake
from wavetune.workloads.source import LineSource
from wavetune.workloads.tunableop import NO_COUNTS

# A device name may hold blanks, slashes and commas: it reaches to the next part that is known, or to the end.
_NAME = re.compile(
    r"(?:E=(?P<experts>\d+),)?N=(?P<n>\d+)(?:,K=(?P<k>\d+))?,device_name=(?P<device>.+?)"
    r"(?:,dtype=(?P<dtype>\w+))?(?:,block_shape=\[(?P<block_n>\d+), ?(?P<block_k>\d+)\])?"
    r"(?:,per_channel_quant=(?P<per_channel>True|False))?(?P<down>_down)?\.json"
)

_DTYPES = {
    "": ("bf16", "bf16", "none"),
    "fp8_w8a8": ("fp8", "fp8", "tensor"),
    "int8_w8a8": ("int8", "int8", "tensor"),
    "int8_w8a16": ("bf16", "int8", "none/row"),
    "int4_w4a16": ("bf16", "int4", "none/row"),
    "fp8_w8a16": ("bf16", "fp8", "none/tensor"),
    "float16": ("fp16", "fp16", "none"),
    "bfloat16": ("bf16", "bf16", "none"),
    "float32": ("fp32", "fp32", "none"),
}
"""Types of A and B, and scaling, by the name's dtype part."""

_VERSION = "triton_version"


@dataclass(frozen=True, slots=True)
class TunedFileName:
    """What the name of a file says.

    Parameters
    ----------
    experts : int
        Experts per rank; 0 for a dense layer.
    n, k : int
        Dense: the layer's. Fused experts: n is the intermediate size, and k is 0, for the name does not say it.
    device : str
        The GPU, as the file has it.
    dtype_a, dtype_b, scale : str
        Element types and scaling.
    is_down : bool
        Whether this is for the down projection only.
    """

    experts: int
    n: int
    k: int
    device: str
    dtype_a: str
    dtype_b: str
    scale: str
    is_down: bool

    @classmethod
    def parse(cls, name: str) -> TunedFileName:
        """Read a file name; folders before it are ignored, unless they are part of a device's name.

        Raises
        ------
        WorkloadError
            If it is none of vLLM's or SGLang's, or names an unknown dtype.
        """
        # A device name with a slash makes a folder of everything before it.
        found = next((match for match in (_NAME.fullmatch(text) for text in _tails(name)) if match is not None), None)
        if found is None or (found["experts"] is None) == (found["k"] is None):
            expected = (
                "E=64,N=768,device_name=NVIDIA_H200.json or N=4096,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"
            )
            raise WorkloadError(f"{name}: the name must say the layer, like {expected}")
        spelled = found["dtype"] or ""
        if spelled not in _DTYPES:
            known = ", ".join(filter(None, _DTYPES))
            raise WorkloadError(f"{name}: unknown dtype {spelled!r} in the name; known: {known}")
        dtype_a, dtype_b, scale = _DTYPES[spelled]
        if found["block_n"] is not None:
            scale = f"block{found['block_n']}x{found['block_k']}"
        elif found["per_channel"] == "True":
            scale = "row"
        return cls(
            int(found["experts"] or 0), int(found["n"]), int(found["k"] or 0), found["device"], dtype_a, dtype_b, scale,
            found["down"] is not None,
        )  # fmt: skip


def read_tuned_json(source: LineSource, intake: Intake) -> None:
    """Read a file: one problem for each token count, or two for fused experts (gate and up together, and down)."""
    account = intake.account
    name = TunedFileName.parse(source.path)
    document = _load(source)
    account.read = len(document)
    device = name.device.replace(" ", "_")
    if intake.origins.is_elsewhere(device):
        account.leave(device, count=len(document))
        return
    facts = {"GPU": device}
    if _VERSION in document:
        facts[_VERSION] = str(document.pop(_VERSION))
        account.recognised += 1
    account.provenance |= facts
    try:
        intake.origins.agree(facts, source.name)
        rejection = ""
    except WorkloadError as error:
        rejection = str(error)
    for number, (text, config) in enumerate(document.items(), start=1 + (_VERSION in facts)):
        try:
            if rejection:
                raise WorkloadError(rejection)
            tokens = positive("a token count", text)
            if not isinstance(config, dict):
                raise WorkloadError(f"a configuration must be an object, got {config!r}")
            keys = _keys(name, tokens, source.path, intake)
            taken = [intake.row(key, number, {"config": dict(config)}) for key in keys]
            account.recognised += all(taken)
        except WavetuneError as error:
            account.refuse(number, str(error))
    account.note(NO_COUNTS)


def _tails(path: str) -> list[str]:
    parts = PurePath(path).parts
    return ["/".join(parts[first:]) for first in range(len(parts) - 1, -1, -1)]


def _load(source: LineSource) -> dict[str, Any]:
    try:
        document = load_json(source.text())
    except ValueError as error:
        raise WorkloadError(f"{source.name}:{getattr(error, 'lineno', 1)}: {json_error(error)}") from None
    if not isinstance(document, dict):
        raise WorkloadError(f"{source.name}: must be an object of token counts and configurations")
    return document


def _keys(name: TunedFileName, tokens: int, path: str, intake: Intake) -> list[WorkloadKey]:
    dtype_d = "" if find_element(name.dtype_a) in ("bf16", "fp16", "fp32") else "bf16"
    common: Mapping[str, Any] = {
        "dtype": name.dtype_a, "dtype_b": name.dtype_b, "scale": name.scale, "dtype_d": dtype_d,
    }  # fmt: skip
    if not name.experts:
        return [WorkloadKey(tokens, name.n, name.k, **common)]
    hidden, per_token = intake.options.hidden_size, intake.options.experts_per_token
    if not hidden or not per_token:
        raise WorkloadError(
            "a fused-experts file says neither the hidden size nor the experts of a token: "
            "pass --hidden-size and --experts-per-token"
        )
    if per_token > name.experts:
        # On a rank with few of the experts, too: no expert takes a token twice.
        raise WorkloadError(
            f"--experts-per-token {per_token} is more than the {name.experts} experts that the name says; "
            "pass how many of these a token is sent to"
        )
    common = {**common, "operation": "grouped_gemm", "batch": name.experts}
    rows = tokens * per_token
    down = WorkloadKey(rows, hidden, name.n, **common)
    if name.is_down:
        return [down]
    up = WorkloadKey(rows, 2 * name.n, hidden, **common)
    # With a file of its own for the down projection, this one is not looked up for it.
    return [up] if Path(f"{path.removesuffix('.json')}_down.json").exists() else [up, down]
