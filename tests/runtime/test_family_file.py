"""The model file of a kernel with its own mapping: written and read alike, refused by file and field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redigest import with_digest

from wavetune.core.config import KernelConfig
from wavetune.errors import ModelFileError
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.choice import Source
from wavetune.runtime.codec import read_model
from wavetune.runtime.family_chooser import FamilyChooser
from wavetune.runtime.family_correction import feature_names
from wavetune.runtime.family_file import (
    FamilyFile,
    FamilyForm,
    decode_family,
    encode_family,
    family_file_name,
    is_family_file,
    read_family,
    write_family,
)
from wavetune.runtime.family_forms import form_latency_us
from wavetune.waves.family_terms import FAMILY_TERMS, N_BASIC_TERMS

SMALL = KernelConfig(BLOCK=64, EVEN="True", num_warps=4, num_stages=1)
LARGE = KernelConfig(BLOCK=1024, EVEN="False", num_warps=8, num_stages=2)
MODEL = FamilyFile(
    kernel="pkg.mod:row_sum",
    dtype="fp16+fp32",
    layout="CAUSAL=True",
    dims=("M", "N"),
    arch="nvidia-h200",
    num_sms=132,
    mapping_digest="sha256:12",
    forms=(
        FamilyForm(SMALL, 8, 32, 0, (3.0, 0.5, 0.1, 0.02, 0.3, 0.004, 0.07, 0.05, 0.25)),
        FamilyForm(LARGE, 2, 64, 4096, (4.0, 0.5, 0.3, 0.0, 0.1, 0.001, 0.0, 0.0, 0.2)),
    ),
    default_index=1,
    exact={(16, 4096): (0, 12.5), (1, 64): (1, 4.25)},
    fit_range={"M": (1, 8192), "N": (64, 65536)},
    provenance={"created": "2026-11-29", "environment": {"triton": "3.6.0"}},
    accuracy={"relative_error": 0.02, "held_out": None},
)
TEXT = encode_family(MODEL).decode()


def shape(dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
    """Map a launch: one CTA a row."""
    m, n = dims
    trips = -(-n // int(config["BLOCK"]))
    return LaunchShape(m, trips, m * trips, 2 * m * n)


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    """All fields come back; the text is sorted, one form a line, and knows its kind."""
    path = tmp_path / "nvidia-h200" / family_file_name(MODEL.kernel, MODEL.dtype, MODEL.layout)
    assert path.name == "pkg.mod-row_sum-fp16+fp32-CAUSAL-True.json"
    write_family(MODEL, path)
    again = read_family(path)
    assert again.digest.startswith("sha256:")
    assert replace(again, digest="", path="") == MODEL
    assert is_family_file(path)
    assert encode_family(again) == path.read_bytes()
    assert sum(line.strip().startswith('{"config"') for line in TEXT.splitlines()) == 2
    with pytest.raises(ModelFileError, match="schema"):
        read_model(path)


def test_no_form_is_evaluated_otherwise_than_defined() -> None:
    """A form is the sum of coefficients and terms: waves of mean CTAs, depth, work, the longest CTA and megabytes."""
    form = MODEL.forms[0]
    waves, depth = -(-2000 // (8 * 132)), -(-2000 // 132)
    for longest in (7, 100):
        launch = LaunchShape(grid_size=2000, loop_trips=longest, total_trips=9000, moved_bytes=3_000_000)
        expected = (
            3.0 + 0.5 * waves + 0.1 * waves * 4.5 + 0.02 * depth * 4.5 + 0.3 * 2000 / 132 + 0.004 * 9000 / 132
            + 0.07 * longest + 0.05 * max(longest, 9000 / 132) + 0.25 * 3.0
        )  # fmt: skip
        assert form_latency_us(form, launch, 132) == pytest.approx(expected)
    assert form_latency_us(form, LaunchShape(0, 7, 0, 0), 132) == 0.0


def test_crowds_are_counted_wave_by_wave() -> None:
    """With 3 CTAs resident and 7 on the busiest SM, two full waves and one of a lone CTA; the longest counts too."""
    launch = LaunchShape(grid_size=7 * 132, loop_trips=9, total_trips=7 * 132 * 4, moved_bytes=0)
    for place, expected in {
        "wave_longest": 3 * 9, "depth_longest": 7 * 9, "crowd_1": 2 * 2 * 4, "crowd_2": 2 * 1 * 4, "crowd_3": 0,
    }.items():  # fmt: skip
        coefficients = tuple(float(name == place) for name in FAMILY_TERMS)
        assert form_latency_us(FamilyForm(SMALL, 3, 32, 0, coefficients), launch, 132) == pytest.approx(expected)


def test_a_file_of_basic_terms_is_read() -> None:
    """Files from before the other terms say the same as they did."""
    document = {
        "terms": list(FAMILY_TERMS[:N_BASIC_TERMS]),
        "schema_version": 1,
        "forms": [{**row, "coefficients": row["coefficients"][:N_BASIC_TERMS]} for row in json.loads(TEXT)["forms"]],
    }
    assert decode_family(edited(**document), "kernel.json").forms == MODEL.forms


def test_answers_say_where_they_come_from() -> None:
    """Exact, then the forms; equal predictions go to the first; what the kernel no longer has is never answered."""
    chooser = FamilyChooser(MODEL, shape)
    assert [(c.config, c.source, c.latency_us) for c in [chooser.choose((16, 4096))] if c] == [
        (SMALL, Source.EXACT, 12.5)
    ]  # fmt: skip
    near = chooser.choose((17, 4096))
    assert near is not None
    assert near.source is Source.NEAREST
    assert near.config == chooser.rank((17, 4096))[0].config
    empty = chooser.choose((0, 4096))
    assert empty is not None
    assert (empty.source, empty.latency_us) == (Source.EMPTY, 0.0)
    fewer = FamilyChooser(MODEL, shape, usable={LARGE})
    assert {c.config for dims in ((16, 4096), (17, 64)) if (c := fewer.choose(dims))} == {LARGE}
    assert FamilyChooser(MODEL, shape, usable=set()).choose((16, 4096)) is None
    twin = replace(MODEL, forms=(MODEL.forms[0], replace(MODEL.forms[0], config=LARGE)))
    first = FamilyChooser(twin, lambda dims, config: LaunchShape(5, 5, 25, 0)).choose((5, 5))
    assert first is not None
    assert first.config == SMALL


def edited(**changes: Any) -> bytes:
    """Change fields of the file and give it the right digest."""
    document = json.loads(TEXT)
    for field, value in changes.items():
        if value is None:
            del document[field]
        else:
            document[field] = value
    return with_digest(json.dumps(document))


FORM = json.loads(TEXT)["forms"][0]
FEATURES = list(feature_names(MODEL.forms[0].config, MODEL.dims))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kernel": None}, "kernel"), ({"schema": "wavetune-model"}, "schema"), ({"schema_version": 3}, "newer"),
        ({"arch": "gpu-9"}, "gpu-9"), ({"num_sms": 0}, "num_sms"), ({"dims": ["M", "M"]}, "dims"),
        ({"dims": ["M", 3]}, "dims"), ({"terms": ["launch"]}, "terms"), ({"default": 2}, "default"),
        ({"forms": []}, "forms"), ({"forms": [FORM, FORM]}, "forms"), ({"forms": [{**FORM, "ctas_per_sm": 0}]}, "ctas"),
        ({"forms": [{**FORM, "coefficients": [1.0] * 6}]}, "coefficients"),
        ({"forms": [{**FORM, "coefficients": [-1.0] * 9}]}, "coefficients"),
        ({"forms": [{**FORM, "coefficients": [0] * 8 + [1]}]}, "coefficients"),
        ({"forms": [{**FORM, "config": {"BLOCK": 1.5}}]}, "config"), ({"exact": [[16, 4096, 5, 1.0]]}, "exact"),
        ({"exact": [[16, 4096, 0, 0.0]]}, "exact"), ({"exact": [[1, 2, 0, 1.0]] * 2}, "exact"),
        ({"exact": [[1, 0, 1.0]]}, "exact"), ({"fit_range": {"M": [1, 5]}}, "fit_range"),
        ({"fit_range": {"M": [5, 1], "N": [1, 1]}}, "fit_range"), ({"mapping_digest": 5}, "mapping_digest"),
        ({"provenance": []}, "provenance"),
        ({"correction_features": FEATURES, "correction_trees": [10**400]}, r"correction_trees\[0\]"),
        ({"correction_features": FEATURES, "correction_trees": [[0, -(10**400), 0.0, 0.0]]}, "correction_trees"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(changes: dict[str, Any], field: str) -> None:
    """With the name of the file and of the field."""
    with pytest.raises(ModelFileError, match=f"kernel.json.*{field}"):
        decode_family(edited(**changes), "kernel.json")


def test_edits_and_cuts_are_noticed(tmp_path: Path) -> None:
    """A digest that does not match, and text that ends early."""
    with pytest.raises(ModelFileError, match="digest"):
        decode_family(TEXT.replace("12.5", "11.5").encode(), "kernel.json")
    with pytest.raises(ModelFileError, match="cut"):
        decode_family(TEXT[:-30].encode(), "kernel.json")
    with pytest.raises(ModelFileError, match="cannot read"):
        read_family(tmp_path / "none.json")
    with pytest.raises(ModelFileError, match="cannot write"):
        write_family(replace(MODEL, accuracy={"relative_error": float("nan")}), tmp_path / "x.json")
    assert not is_family_file(tmp_path / "none.json")
