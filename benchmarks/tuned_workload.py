"""A real workload, recorded and tuned: what tuning gains over the model's picks, the fixed default and torch.mm.

Builds a Qwen3 or Llama model of few layers from its published sizes, with random weights; records prefill and decode
with `wavetune workload record`, by torch's operations and by cuBLASLt's log of the same run; says whether the two
agree; and runs `wavetune quicktune` on the recording. Needs a GPU, torch and transformers; two to three minutes.

    python benchmarks/tuned_workload.py --out tuned-workload.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SIZES: dict[str, dict[str, int]] = {
    "qwen3": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936,
    },
    "llama": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 128256,
    },
}  # fmt: skip
"""Of Qwen3-8B and Llama-3-8B, from their published config.json."""

PREFILL = (512, 2048)
"""Lengths of prompts, one sequence each."""

DECODE = (1, 8, 16, 64)
"""Sequences that are decoded together."""

STEPS = 32
"""Tokens that each batch decodes: decode is called that much more often than prefill."""

LAYERS = 2
LIMIT_S = 150.0


def run_model(family: str, n_layers: int, device: str) -> None:
    """Run prefill and decode once; the program that is recorded. Prints nothing: its stdout is the recorder's."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise SystemExit(f"{error}; pip install torch transformers") from None
    config_class, model_class = {
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    }[family]
    config = config_class(**SIZES[family], num_hidden_layers=n_layers, max_position_embeddings=8192)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = model_class(config).eval()
    with torch.inference_mode():
        for length in PREFILL:
            model(torch.randint(0, config.vocab_size, (1, length), device=device), use_cache=True, logits_to_keep=1)
        for batch in DECODE:
            cache = None
            token = torch.randint(0, config.vocab_size, (batch, 1), device=device)
            for _ in range(STEPS):
                step = model(token, past_key_values=cache, use_cache=True)
                cache, token = step.past_key_values, step.logits[:, -1:].argmax(-1)
    if device == "cuda":
        torch.cuda.synchronize()


def wavetune_json(arguments: Sequence[str], timeout_s: float) -> Any:
    """Run a verb with --json; its notes go to this program's stderr."""
    command = [sys.executable, "-m", "wavetune", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout_s)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[2:4])} failed with exit code {done.returncode}\n{done.stdout}")
    # A recorded program may print as well, before.
    return json.loads(done.stdout[done.stdout.index("{\n") :])


def record(family: str, n_layers: int, device: str, workload: Path, timeout_s: float) -> dict[str, Any]:
    """Record the model; return what the two recordings say of each other."""
    program = [sys.executable, __file__, "--run-model", "--family", family, "--layers", str(n_layers)]
    program += ["--device", device]
    arguments = ["workload", "record", "--json", "--out", str(workload), "--", *program]
    document = wavetune_json(arguments, timeout_s)
    return {
        "problems": len(document["problems"]),
        "calls": sum(problem["count"] for problem in document["problems"]),
        "agreement": document.get("agreement"),
    }


def main() -> None:
    """Record, tune, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--family", choices=sorted(SIZES), default="qwen3")
    parser.add_argument("--layers", type=int, default=LAYERS, help="depth; shapes do not depend on it")
    parser.add_argument("--top", type=int, default=16, help="candidates for each problem")
    parser.add_argument("--folder", type=Path, help="keep workload, journal and tables here; goes on from there")
    parser.add_argument("--arch", help="GPU, if it is not to be found")
    parser.add_argument("--skip-slow", action="store_true", help="as of wavetune tune")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all of it")
    parser.add_argument("--device", default="cuda", help="where the model is recorded; tuning needs the GPU")
    parser.add_argument("--run-model", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run_model:
        run_model(args.family, args.layers, args.device)
        return
    if args.out is None:
        parser.error("--out is needed")
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        workload = folder / "recorded.json"
        recorded = record(args.family, args.layers, args.device, workload, args.limit)
        record_s = time.perf_counter() - began
        arguments = ["quicktune", str(workload), "--out", str(folder / "tuned"), "--top", str(args.top), "--json"]
        arguments += ["--arch", args.arch] if args.arch else []
        arguments += ["--skip-slow"] if args.skip_slow else []
        document = wavetune_json(arguments, max(args.limit - record_s, 1.0))
        seconds = {"record": round(record_s, 1), "quicktune": round(time.perf_counter() - began - record_s, 1)}
    tune = document["tune"]
    totals = {
        name: {
            "problems": part["problems"], "calls": part["calls"], "tuned_us": round(part["tuned_us"], 1),
            **{f"{rival}_us": round(us, 1) for rival, us in part["rival_us"].items()},
            **{f"{rival}_over_tuned": round(ratio, 4) for rival, ratio in part["speedup_over"].items()},
        }
        for name, part in tune["totals"].items()
    }  # fmt: skip
    rows = [
        {
            name: problem[name]
            for name in ("m", "n", "k", "dtype", "count", "status", "latency_us", "spread_us", "model_us",
                         "default_us", "torch_us", "config", "model_config", "winner", "winner_us")
        }
        for problem in tune["problems"]
    ]  # fmt: skip
    result = {
        "family": args.family, "sizes": SIZES[args.family], "layers": args.layers, "prefill": PREFILL,
        "decode": DECODE, "steps": STEPS, "top": args.top, "recorded": recorded, "seconds": seconds,
        "stages": {stage: round(value, 2) for stage, value in tune["seconds"].items()},
        "outcomes": tune["outcomes"], "weighted": totals, "not_tuned": tune["not_tuned"],
        "verify": document["verify"]["summary"], "environment": tune["environment"],
        "conditions": tune["conditions"], "rows": rows,
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


def show(result: dict[str, Any]) -> None:
    """Print the short table."""
    recorded, agreement = result["recorded"], result["recorded"]["agreement"]
    print(f"{result['family']}: {recorded['problems']} problems, {recorded['calls']:,} calls recorded")
    if agreement is None:
        print("one recording only: there is no log of cuBLASLt beside torch's operations")
    else:
        same, torch_calls, log_calls = (agreement[name] for name in ("same_calls", "torch_calls", "cublaslt_calls"))
        verdict = "they agree" if same == torch_calls == log_calls else "they differ"
        print(f"torch ran {torch_calls:,} products, cuBLASLt logged {log_calls:,}, {same:,} are the same: {verdict}")
        for line in agreement["different"][:5]:
            print(f"  {line}")
    print(f"{'class':8} {'problems':>8} {'calls':>7} {'tuned us':>11} {'model':>8} {'default':>8} {'torch.mm':>8}")
    for name, part in result["weighted"].items():
        ratios = " ".join(f"{part[f'{rival}_over_tuned'] or 0.0:8.3f}" for rival in ("model", "default", "torch"))
        print(f"{name:8} {part['problems']:8} {part['calls']:7,} {part['tuned_us']:11,.1f} {ratios}")
    print(f"(time of all calls over the tuned time) outcomes {result['outcomes']}")
    seconds = result["seconds"]
    print(f"verify {result['verify']}; {seconds['record']} s recording, {seconds['quicktune']} s tuning")


if __name__ == "__main__":
    main()
