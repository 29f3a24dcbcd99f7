"""Many threads get the answers of one, and no number of calls or shapes grows memory without bound."""

from __future__ import annotations

import gc
import random
import sys
import threading
import tracemalloc
from collections.abc import Callable

import pytest

import wavetune
from wavetune.runtime import choose as choose_module
from wavetune.runtime import misses as misses_module

ARCH = "nvidia-h200"
N_THREADS = 16

Ask = Callable[[], object]


def mixed_questions(n_questions: int, seed: int) -> list[Ask]:
    """Return lookups of every kind: repeated and new shapes, in and beyond the cells, rare options, explanations."""
    rng = random.Random(seed)
    questions: list[Ask] = []
    for _ in range(n_questions):
        kind = rng.random()
        m = int(2 ** rng.uniform(0, 13))
        n, k = rng.choice([(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)])
        if kind < 0.5:
            questions.append(lambda m=m % 64 + 1, n=n, k=k: wavetune.choose_config(m, n, k, arch=ARCH))
        elif kind < 0.8:
            n, k = 8 * rng.randint(8, 4000), 8 * rng.randint(8, 4000)
            questions.append(lambda m=m, n=n, k=k: wavetune.choose_config(m, n, k, arch=ARCH))
        elif kind < 0.85:
            questions.append(lambda m=m, k=k: wavetune.choose_config(m, 48, 131 * k, arch=ARCH))
        elif kind < 0.9:
            questions.append(lambda m=m, n=n, k=k: wavetune.choose_config(m, n, k, arch=ARCH, alignment=2))
        elif kind < 0.97:
            options = {"numerics": "batch_invariant", "num_sms": rng.choice([None, 60])}
            questions.append(lambda m=m, n=n, k=k, o=options: wavetune.choose_config(m, n, k, arch=ARCH, **o))
        elif kind < 0.999:
            questions.append(lambda m=m, n=n, k=k: wavetune.choose_config(m, n, k, arch=ARCH, on_miss="default"))
        else:
            questions.append(lambda m=m, n=n, k=k: wavetune.explain_choice(m, n, k, arch=ARCH))
    return questions


def check_threads(n_questions: int, memo_limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the same questions in many threads at once, each in its own order, while caches overflow."""
    questions = mixed_questions(n_questions, seed=1)
    expected = [ask() for ask in questions]
    wavetune.clear_caches()
    monkeypatch.setattr(choose_module, "MEMO_LIMIT", memo_limit)
    monkeypatch.setattr("wavetune.runtime.form_search.MAX_HINTS", 50)
    monkeypatch.setattr("wavetune.runtime.numerics.MAX_LAYERS", 2)
    monkeypatch.setattr("wavetune.runtime.chooser.MAX_READY", 20)
    barrier = threading.Barrier(N_THREADS)
    wrong: list[object] = []
    done: list[int] = []

    def work(seed: int) -> None:
        order = list(range(len(questions)))
        random.Random(seed).shuffle(order)
        barrier.wait()
        try:
            for index in order:
                answer = questions[index]()
                if answer != expected[index]:
                    wrong.append((index, answer, expected[index]))
            done.append(seed)
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(N_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert len(done) == N_THREADS


def test_threads_get_the_answers_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen threads that start with empty caches, with tiny limits and frequent switches."""
    check_threads(1_000, 200, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_threads_get_the_answers_of_one_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen threads with a hundred thousand mixed lookups each."""
    check_threads(100_000, 20_000, monkeypatch)


def test_configuration_may_change_between_answers() -> None:
    """While one thread configures and clears, others get answers of one setting or the other, and no error."""
    dims = (1_000, 48, 1_000_000)
    allowed = {wavetune.choose_config(*dims, arch=ARCH, on_miss=policy) for policy in ("model", "default")}
    assert len(allowed) == 2
    seen: set[object] = set()
    errors: list[BaseException] = []
    stop = threading.Event()

    def ask() -> None:
        try:
            while not stop.is_set():
                seen.add(wavetune.choose_config(*dims, arch=ARCH))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for round_ in range(6):
        wavetune.configure(on_miss="default" if round_ % 2 else "model")
        wavetune.choose_config(*dims, arch=ARCH)
        wavetune.clear_caches()
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert seen <= allowed
    assert wavetune.choose_config(*dims, arch=ARCH, on_miss="model") != wavetune.choose_config(*dims, arch=ARCH)


def retained(ask: Ask, n_calls: int) -> int:
    """Return the bytes that many calls leave behind, after as many to warm up."""
    for _ in range(n_calls):
        ask()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(n_calls):
            ask()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "ask",
    [
        lambda: wavetune.choose_config(512, 4096, 4096, arch=ARCH),
        lambda: wavetune.choose_config(511, 4096, 4096, arch=ARCH),
        lambda: wavetune.choose_config(17, 48, 1_000_000, arch=ARCH),
        lambda: wavetune.choose_config(17, 48, 1_000_000, arch=ARCH, on_miss="default", num_sms=60),
        lambda: wavetune.choose_config(17, 4096, 4096, arch=ARCH, numerics="batch_invariant"),
        lambda: wavetune.explain_choice(17, 48, 1_000_000, arch=ARCH),
    ],
)
def test_a_repeated_call_retains_nothing(ask: Ask) -> None:
    """A hundred repeated calls leave less behind than ten dictionary entries would."""
    assert retained(ask, 100) < 1000


def grown_by(n_shapes: int) -> int:
    """Return the bytes that ever new shapes leave behind."""
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(n_shapes):
            wavetune.choose_config(number % 5000 + 1, 8 * (number // 5000 + 8), 4096, arch=ARCH)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_new_shapes_do_not_grow_memory_past_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small limits, three times the shapes leave no more behind."""
    for module, name in ((choose_module, "MEMO_LIMIT"), (misses_module, "MAX_MISSES")):
        monkeypatch.setattr(module, name, 500)
    wavetune.choose_config(8, 64, 64, arch=ARCH)
    first = grown_by(3_000)
    assert grown_by(9_000) < max(first, 300_000)
    assert len(choose_module._memo) <= 500


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_shapes_stay_within_the_bound() -> None:
    """A million distinct shapes leave less than 64 MiB behind, the bound of memo and list of misses."""
    wavetune.choose_config(8, 64, 64, arch=ARCH)
    assert grown_by(1_000_000) < 64 * 2**20
    assert len(choose_module._memo) <= choose_module.MEMO_LIMIT
